"""Copy and fill kernels."""
