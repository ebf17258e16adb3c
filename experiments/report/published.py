"""Scores that others published, full scale, in percent; shown as such beside our own, never mixed with them."""

LRA_COLUMNS = ("lra/listops", "lra/text", "lra/retrieval", "lra/image", "lra/pathfinder", "lra/pathx")
LRA: dict[str, tuple[tuple[float | None, ...], str]] = {
    "Transformer": ((36.37, 64.27, 57.46, 42.44, 71.40, None), "google-research/long-range-arena"),
    "Linear Transformer": ((16.13, 65.90, 53.09, 42.34, 75.30, None), "google-research/long-range-arena"),
    "Performer": ((18.01, 65.40, 53.82, 42.77, 77.05, None), "google-research/long-range-arena"),
    "Linformer": ((35.70, 53.94, 52.27, 38.56, 76.34, None), "google-research/long-range-arena"),
    "S4 v2": ((59.60, 86.82, 90.90, 88.65, 94.20, 96.35), "its authors"),
    "Mega": ((63.14, 90.43, 91.25, 90.44, 96.01, 97.98), "its authors"),
    "Mamba": ((38.02, 82.98, 72.14, 69.82, 69.26, 67.32), "arXiv 2505.09022"),
}
