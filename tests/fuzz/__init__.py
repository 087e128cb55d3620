"""Hostile content of kernel files: nothing crashes, and no number comes out of nothing."""
