"""Real NVIDIA GPUs behind the driver's contract.

probe       is there a driver and the extra's packages? By ctypes; imports nothing of NVIDIA's
calls       checked calls of the CUDA driver API
device      a device's primary context, facts and scratch memory
driver      the contract
compiler    CUDA C++ to cubin by NVRTC; `cache` keeps them on disk
program     a form's compiled kernels with their parameters: what `load` returns
pointwise, reduction, scan, source    one builder per form; `products` and `routines` for the form Routine
cublaslt    the library behind `products`
passes      launches of several kernels, with a workspace
prelude.cuh the C++ that every kernel begins with; the other headers belong to the builder of their name
"""
