# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.optim."""


from flambeau.distributed.optim import post_localSGD_optimizer as post_localSGD_optimizer
from flambeau.distributed.optim import zero_redundancy_optimizer as zero_redundancy_optimizer

