"""The code of tools/convert_dataset.py and tools/convert_checkpoint.py."""
