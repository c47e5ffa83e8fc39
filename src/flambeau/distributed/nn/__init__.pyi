# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.nn."""


from flambeau.distributed.nn.functional import all_gather as all_gather
from flambeau.distributed.nn.functional import all_reduce as all_reduce
from flambeau.distributed.nn.functional import all_to_all as all_to_all
from flambeau.distributed.nn.functional import all_to_all_single as all_to_all_single
from flambeau.distributed.nn.functional import broadcast as broadcast
from flambeau.distributed.nn import functional as functional
from flambeau.distributed.nn.functional import gather as gather
from flambeau.distributed.nn.functional import reduce as reduce
from flambeau.distributed.nn.functional import reduce_scatter as reduce_scatter
from flambeau.distributed.nn.functional import scatter as scatter

