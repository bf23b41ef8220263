"""clrt: an OpenCL-portable inference runtime with a graph compiler."""

__version__ = "0.1.0"
