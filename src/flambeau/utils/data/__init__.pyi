# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.utils.data."""


from typing import Any, NoReturn

from flambeau.data.sampler import BatchSampler as BatchSampler
from flambeau.data.dataset import ChainDataset as ChainDataset
from flambeau.data.dataset import ConcatDataset as ConcatDataset
from flambeau.data.loader import DataLoader as DataLoader
from flambeau.data.dataset import Dataset as Dataset
from flambeau.data.distributed_sampler import DistributedSampler as DistributedSampler
from flambeau.data.dataset import IterableDataset as IterableDataset
from flambeau.data.sampler import RandomSampler as RandomSampler
from flambeau.data.sampler import Sampler as Sampler
from flambeau.data.sampler import SequentialSampler as SequentialSampler
from flambeau.data.dataset import StackDataset as StackDataset
from flambeau.data.dataset import Subset as Subset
from flambeau.data.sampler import SubsetRandomSampler as SubsetRandomSampler
from flambeau.data.dataset import TensorDataset as TensorDataset
from flambeau.data.sampler import WeightedRandomSampler as WeightedRandomSampler
from flambeau.utils.data import dataloader as dataloader
from flambeau.utils.data import dataset as dataset
from flambeau.data.collate import default_collate as default_collate
from flambeau.data.collate import default_convert as default_convert
from flambeau.utils.data import distributed as distributed
from flambeau.data.worker import get_worker_info as get_worker_info
from flambeau.data.dataset import random_split as random_split
from flambeau.utils.data import sampler as sampler

class DFIterDataPipe:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DataChunk:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IterDataPipe:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class MapDataPipe:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def argument_validation(*args: Any, **kwargs: Any) -> NoReturn: ...
class functional_datapipe:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class guaranteed_datapipes_determinism:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class non_deterministic:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def runtime_validation(*args: Any, **kwargs: Any) -> NoReturn: ...
class runtime_validation_disabled:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
