"""Ops of classical machine learning: decision trees, tables, support vector machines."""
