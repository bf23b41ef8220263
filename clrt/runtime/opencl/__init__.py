"""Devices, programs, buffers and kernels: the only user of pyopencl."""
