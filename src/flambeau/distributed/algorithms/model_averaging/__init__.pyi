# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.algorithms.model_averaging."""


from flambeau.distributed.algorithms.model_averaging import averagers as averagers
from flambeau.distributed.algorithms.model_averaging import hierarchical_model_averager as hierarchical_model_averager
from flambeau.distributed.algorithms.model_averaging import utils as utils

