"""What commands do, callable from Python: convert, compare, tune, choose a device."""
