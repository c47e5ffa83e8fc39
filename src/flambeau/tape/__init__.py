"""The autograd graph and its backward engine.

Modules, in reading order:
    mode: Grad mode of each thread, and the hooks around saved tensors.
    node: `Node`, one recorded operation; `Leaf`, which accumulates the gradient of a leaf tensor.
    engine: `run_backward`, which runs nodes from roots to leaves, each on the stream of its forward operation.

This package needs only three things of a tensor: `meta`, `+` and `record_stream`. The gradient formulas of nodes and
their saved tensors are in `tensor/autograd/autograd_meta.py`; the public names are in `autograd/`.
"""
