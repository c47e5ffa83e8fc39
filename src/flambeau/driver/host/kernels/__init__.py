"""Fast implementations of operators on CPUs, which records name in `Kernel.fast`.

Each computes what the reference implementation of its record computes. `tests/ops/test_host_kernels.py` compares them.
Constants in capitals set sizes of blocks and where a method begins to pay. They have no effect on results.
"""
