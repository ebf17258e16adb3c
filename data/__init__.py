"""Data sets: each file builds or loads one, caches it, and collates its rows into ``Batch``."""
