"""Control flow, sequences and maps."""
