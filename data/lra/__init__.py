"""Long Range Arena (Tay et al. 2021)."""
