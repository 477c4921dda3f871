"""The code of tools/golden.py, which computes the golden data of the tests."""
