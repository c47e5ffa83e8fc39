"""Random kernels."""
