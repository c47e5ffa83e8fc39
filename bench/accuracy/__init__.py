"""Simulated times compared with real ones: the same random workloads under PyTorch on a GPU and on a virtual GPU.

Read in this order: `kernels` and `programs` (the workloads), `measure` (how one is timed), `__main__` (the commands).
"""
