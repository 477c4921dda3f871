"""What tools/compare.py does: blipft beside transformers, and two builds of it."""
