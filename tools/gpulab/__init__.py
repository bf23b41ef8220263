"""All that a machine with a new GPU is asked for, by one command that can be broken off."""
