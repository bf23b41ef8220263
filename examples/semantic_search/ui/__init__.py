"""Graphical user interface; only this package uses Qt."""
