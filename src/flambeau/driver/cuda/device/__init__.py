"""Devices through the CUDA driver API, and the compiled kernels that run on them.

calls (checked calls), contexts, device (facts, primary context, scratch memory), workspaces, allocations,
virtual_memory, ipc_handles, capture (stream captures and graphs), host_calls, assertions (what kernels check);
program (a form's kernels with their parameters: what `load` returns), compiler (CUDA C++ to cubin by NVRTC),
kernel_cache (compiled kernels on disk), functions (kernels loaded into contexts).
"""
