"""Helpers that know nothing of models: environment, host limits, files, text, integer math."""
