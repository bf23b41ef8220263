"""Static analysis of clrt's GPU kernels without a GPU: plans, compilers, a report."""
