"""Real NVIDIA GPUs behind the driver's contract.

probe       is there a driver and the extra's packages? By ctypes; imports nothing of NVIDIA's
driver      the contract
device/     contexts, memory and captures by the CUDA driver API; kernels compiled and loaded
build       from a launch's form to its builder
codegen/    one template per form, and what builders share
index/, linalg/, nn/    functions that `Routine` forms name
libraries/  NVIDIA's libraries by ctypes
include/    CUDA C++: prelude.cuh stands before every kernel, the others belong to builders
"""
