"""Getting bars from where they are published; each source leaves files that `load_bars` reads as they are."""
