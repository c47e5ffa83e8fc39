"""torch.utils.data: datasets, samplers and the `DataLoader`."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names
from flambeau.utils.data import dataloader, dataset, distributed, sampler
from flambeau.utils.data.dataloader import (
    DataLoader,
    _DatasetKind,
    default_collate,
    default_convert,
    get_worker_info,
)
from flambeau.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from flambeau.utils.data.distributed import DistributedSampler
from flambeau.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler",
    "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset",
    "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "_DatasetKind", "default_collate",
    "default_convert", "get_worker_info", "random_split",
]  # fmt: skip

_HERE = "torch.utils.data"
_ADVICE = "Datapipes are absent: derive the class from Dataset or IterableDataset."
DFIterDataPipe = absent_class(_HERE, "DFIterDataPipe", _ADVICE)
DataChunk = absent_class(_HERE, "DataChunk", _ADVICE)
IterDataPipe = absent_class(_HERE, "IterDataPipe", _ADVICE)
MapDataPipe = absent_class(_HERE, "MapDataPipe", _ADVICE)
argument_validation = absent_function(_HERE, "argument_validation", _ADVICE)
runtime_validation = absent_function(_HERE, "runtime_validation", _ADVICE)
functional_datapipe = absent_class(_HERE, "functional_datapipe", _ADVICE)
guaranteed_datapipes_determinism = absent_class(_HERE, "guaranteed_datapipes_determinism", _ADVICE)
non_deterministic = absent_class(_HERE, "non_deterministic", _ADVICE)
runtime_validation_disabled = absent_class(_HERE, "runtime_validation_disabled", _ADVICE)

explain_absent_names(globals(), "torch.utils.data")
