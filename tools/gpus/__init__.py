"""What is known of clrt's kernels on GPUs without having one: plans, compilers, a report."""
