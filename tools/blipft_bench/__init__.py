"""The rooms behind tools/bench.py: what is run (rows), on what (machine, inputs), how (commands), and what is read and
printed of it (blipft, pytorch, ops, table)."""
