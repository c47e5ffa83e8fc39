# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.optim.post_localSGD_optimizer."""


from flambeau.optim.post_local_sgd import PostLocalSGDOptimizer as PostLocalSGDOptimizer

