"""Deferred launches of pointwise operators, issued as fused kernels: the default mode of `torch.compile`."""
