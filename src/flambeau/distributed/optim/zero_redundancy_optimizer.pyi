# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.optim.zero_redundancy_optimizer."""


from flambeau.optim.zero_redundancy import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

