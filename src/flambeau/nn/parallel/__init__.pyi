# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.nn.parallel."""


from flambeau.nn.parallel.data_parallel import DataParallel as DataParallel
from flambeau.nn.parallel.distributed import DistributedDataParallel as DistributedDataParallel
from flambeau.nn.parallel import comm as comm
from flambeau.nn.parallel import containers as containers
from flambeau.nn.parallel.data_parallel import data_parallel as data_parallel
from flambeau.nn.parallel import delayed as delayed
from flambeau.nn.parallel import distributed as distributed
from flambeau.nn.parallel import flat_buckets as flat_buckets
from flambeau.nn.parallel.scatter_gather import gather as gather
from flambeau.nn.parallel import mixed_precision as mixed_precision
from flambeau.nn.parallel import module_devices as module_devices
from flambeau.nn.parallel.parallel_apply import parallel_apply as parallel_apply
from flambeau.nn.parallel.replicate import replicate as replicate
from flambeau.nn.parallel.scatter_gather import scatter as scatter
from flambeau.nn.parallel import scatter_gather as scatter_gather
from flambeau.nn.parallel import sink as sink

