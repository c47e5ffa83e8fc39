"""Public functions and methods, one file a family: arithmetic and dunders, creation, views and view_copies,
indexing, joining, sorting, reduction, statistics, norms, matmul and out_dtype_matmul, linalg and
linalg_products, fft and spectral, special, random, gradients; foreach_functions and foreach_update for lists of
tensors.
"""
