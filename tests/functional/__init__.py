"""Functions on arrays, and on tensors that stay on a device."""
