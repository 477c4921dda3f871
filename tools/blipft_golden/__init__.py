"""What tools/golden.py computes: the golden data of the tests."""
