"""OpenCL devices, programs, buffers and kernels; the only package that uses pyopencl."""
