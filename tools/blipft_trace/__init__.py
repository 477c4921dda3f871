"""Tools that read trace files (docs/trace-format.md). They need numpy and h5py, and matplotlib for pictures."""
