# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.algorithms."""


from flambeau.distributed.algorithms import ddp_comm_hooks as ddp_comm_hooks
from flambeau.distributed.algorithms import join as join
from flambeau.distributed.algorithms import model_averaging as model_averaging

