"""Executables: the plan templates and packed weights of a model in a file, for later processes."""
