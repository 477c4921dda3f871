"""The code of tools/compare.py: blipft against transformers, and two builds of blipft."""
