"""Recording for autograd: recording and recorded_call make the node of a call, in_place that of a change in place.

autograd_meta (where tensors come from), leaves, node_classes (PyTorch's names of nodes), saved (saved tensors),
grad_validation (gradients that formulas return), inplace_checks (what may be changed), composites.
"""
