"""Autograd recording. recording and recorded_call create the node of a call, in_place that of a change in place.

autograd_meta (the nodes of tensors, the bases of views), leaves, node_classes (PyTorch's names of nodes), saved
(saved tensors), grad_validation (gradients that formulas return), inplace_checks (which tensors may change),
composites.
"""
