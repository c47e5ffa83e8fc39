"""Templates of CUDA C++ and what the builders of kernels share.

One template per form: pointwise (with pointwise_several and transpose), reduction, scan, source, multi_tensor.
Parts: kernel_layout (dims merged, division by multiplication), elements, rows (rows in registers), windows (for
pooling and convolution), scratch; multi_kernel and kernel_steps are launches of several kernels or library calls.
"""
