"""Model-independent helpers: environment variables, host limits, files, text, integer math."""
