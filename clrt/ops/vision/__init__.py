"""Pooling, resizing and sampling of images, and boxes in them."""
