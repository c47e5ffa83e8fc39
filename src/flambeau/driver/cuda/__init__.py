"""The driver of real NVIDIA GPUs.

probe       finds out by ctypes whether a GPU, its driver and NVIDIA's packages are available
driver      implements the protocol `Driver`
device/     contexts, memory and captures by the CUDA driver API; compiled and loaded kernels
build       selects the builder of a launch's kernels by the form of its CUDA implementation
codegen/    one C++ template for each form, and helpers of builders
index/, linalg/, nn/    builders of kernels that `Routine` forms name
libraries/  NVIDIA's libraries by ctypes
include/    CUDA C++: prelude.cuh is included in every kernel, the other files by their builders
"""
