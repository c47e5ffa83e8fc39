"""Sparse tensors: storages of indices and values, and operators composed of those of strided tensors.

See Note [Sparse tensors] in core/sparse_meta.py, and docs/sparse.md.
"""
