"""clrt.ray on a Ray cluster of several nodes on one machine: `make test-ray`."""
