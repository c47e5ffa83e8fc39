# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.optim.zero_redundancy_optimizer."""


from typing import Any


class ZeroRedundancyOptimizer:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
