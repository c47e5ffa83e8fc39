# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.nn.parallel."""


from flambeau.nn.parallel.data_parallel import DataParallel as DataParallel
from flambeau.nn.parallel import coalescing as coalescing
from flambeau.nn.parallel import comm as comm
from flambeau.nn.parallel.data_parallel import data_parallel as data_parallel
from flambeau.nn.parallel.scatter_gather import gather as gather
from flambeau.core.names import lacking as lacking
from flambeau.nn.parallel.parallel_apply import parallel_apply as parallel_apply
from flambeau.nn.parallel.replicate import replicate as replicate
from flambeau.nn.parallel.scatter_gather import scatter as scatter
from flambeau.nn.parallel import scatter_gather as scatter_gather

