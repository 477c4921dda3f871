"""The modules of tools/bench.py: configurations (rows), machine and inputs, commands, results (blipft, pytorch, ops) and
the table."""
