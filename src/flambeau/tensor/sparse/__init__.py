"""Sparse tensors: storages of indices and values, and operators composed of those of strided tensors.

See Note [Sparse tensors] in core/sparse_meta.py, and docs/sparse.md. The modules fill the tables of layouts.py, so
all are imported together, before a program has its first sparse tensor.
"""

from flambeau.tensor.sparse import hooks, methods, reductions, shapes, sparse_gradients
