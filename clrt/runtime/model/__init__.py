"""Models: `load` and `Model`, pickling, and models in other processes."""
