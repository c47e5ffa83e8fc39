"""Exchange with NumPy, DLPack and __cuda_array_interface__."""
