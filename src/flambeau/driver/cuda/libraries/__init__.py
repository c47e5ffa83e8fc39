"""NVIDIA's libraries by ctypes: libraries (how functions are declared), cublas, cublaslt, cudnn, cufft, cusolver, nccl,
nvml, nvtx, and handles for programs that call them themselves.
"""
