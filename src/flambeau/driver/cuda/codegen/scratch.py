"""How a stream's scratch memory is divided.

The head holds counters of blocks that are done: zero between kernels, since each kernel leaves them so. All else
comes after it and holds nothing between kernels.
"""

COUNTERS = 65536  # words of four bytes
HEAD = 4 * COUNTERS
