"""Sparse tensors: storages of indices and values, and operators composed of those of strided tensors.

See Note [Sparse tensors] in core/sparse_meta.py, and docs/sparse.md. The modules fill the tables of
layout_functions.py, so all are imported together, before a program has its first sparse tensor.
"""

from flambeau.tensor.sparse import layout_entries, methods, reduction, shapes, sparse_gradients
