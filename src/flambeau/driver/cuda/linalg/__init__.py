"""Builders for linear algebra: products (cuBLASLt) and direct_products (our own kernel), linear_solve and spectra
(cuSOLVER, cuBLAS) over matrices, transforms (cuFFT), norms, geometry, sparse_matrices.
"""
