"""Templates of CUDA C++, and helpers of the builders of kernels.

One template for each form: pointwise (with pointwise_several, fused, transpose and element_loops), reduction, scan,
source, multi_tensor.
Helpers: kernel_layout (merged dims, division by multiplication), elements, rows (rows in registers), windows (for
pooling and convolution), scratch; multi_kernel and kernel_steps are launches of several kernels or library calls.
"""
