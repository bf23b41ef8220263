"""What `tools/bench.py` runs: each section measures one thing, and is one file."""
