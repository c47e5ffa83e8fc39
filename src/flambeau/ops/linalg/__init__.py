"""Linear algebra: matmul, linalg (factorizations, solvers, eigenvalues) and linalg_gradients, geometry, fft."""
