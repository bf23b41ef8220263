"""Tests of clrt; sets the environment of pytest, of `python -m tests.…`, and of their processes."""

import os
from pathlib import Path

# The cache is kept between runs, apart from the user's and what the user has tuned.
os.environ.setdefault("CLRT_CACHE_DIR", str(Path(__file__).parents[1] / ".cache-tests"))
os.environ.setdefault("CLRT_VERIFY", "1")
# A test that stores plans says so: others must not run by plans of another version of the code.
os.environ.setdefault("CLRT_EXECUTABLES", "0")
# Tests compare devices with NumPy themselves; a GPU must not be refused before.
os.environ.setdefault("CLRT_SELF_TEST", "never")
# Two tiers would compile each kernel twice; tests of tiers turn them on.
os.environ.setdefault("CLRT_TIERS", "off")
