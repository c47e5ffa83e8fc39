"""Division of a stream's scratch memory.

The first part holds counters of finished blocks. They are zero between kernels, because each kernel resets them. The
contents of the rest are undefined between kernels.
"""

COUNTERS = 65536  # counters of four bytes each
HEAD = 4 * COUNTERS
