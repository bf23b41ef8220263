"""Decompositions of planner and optimiser, which `clrt.ops.index` lists by op class."""
