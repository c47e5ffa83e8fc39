# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.optim."""


from flambeau.optim.post_local_sgd import PostLocalSGDOptimizer as PostLocalSGDOptimizer
from flambeau.optim.zero_redundancy import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
from flambeau.distributed.optim import post_localSGD_optimizer as post_localSGD_optimizer
from flambeau.distributed.optim import zero_redundancy_optimizer as zero_redundancy_optimizer

