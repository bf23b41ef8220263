"""Functions behind the commands: convert, compare, tune, report on and choose a device."""
