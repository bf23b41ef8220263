"""Reductions, cumulative sums, ArgMax and TopK along axes."""
