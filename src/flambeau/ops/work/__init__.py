"""The work of operator families' kernels on a device: the functions of `Kernel.work`.

They describe PyTorch's kernel of an operator by bytes, instructions, latencies and products. Virtual GPUs turn
that into time (driver/virtual/cost.py). The numbers are measurements of PyTorch 2.11 on an H100, which
bench/accuracy repeats. Read in this order: `element_work`, `row_work`, `selection_work`, `product_work`,
`workspaces`.
"""
