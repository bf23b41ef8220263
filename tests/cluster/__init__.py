"""Ray itself, on a cluster of several nodes in one machine: `make test-ray`."""
