"""The tape and the walk backward: what was computed from what, and gradients in the opposite order.

mode        whether operations are recorded, per thread; hooks around saved tensors
node        `Node`, one recorded operation; `Leaf`, where gradients come to rest
walk        `backward`: from roots to leaves, each node on the stream of its forward operation

This room knows tensors only as objects that have a `meta`, can be added and say `record_stream`; what a node
computes, and what it saves for that, is `tensor/history.py`'s. The public names are those of `autograd/`.
"""
