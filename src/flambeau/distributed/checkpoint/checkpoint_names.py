"""The names of torch.distributed.checkpoint, which can be imported; using one raises NotSupportedError.

Flambeau does not write one checkpoint from several ranks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "DefaultLoadPlanner", "DefaultSavePlanner", "FileSystemReader", "FileSystemWriter",
    "HuggingFaceStorageReader", "HuggingFaceStorageWriter", "LoadPlanner", "SavePlanner", "StorageReader",
    "StorageWriter", "async_save", "load", "load_sharded_optimizer_state_dict", "load_state_dict", "save",
    "save_state_dict",
]  # fmt: skip

_HERE = "torch.distributed.checkpoint"
_ADVICE = "Use torch.save and torch.load, one file a rank or from rank 0."
explain_absent_names(globals(), _HERE)

DefaultLoadPlanner = absent_class(_HERE, "DefaultLoadPlanner", _ADVICE)
DefaultSavePlanner = absent_class(_HERE, "DefaultSavePlanner", _ADVICE)
FileSystemReader = absent_class(_HERE, "FileSystemReader", _ADVICE)
FileSystemWriter = absent_class(_HERE, "FileSystemWriter", _ADVICE)
HuggingFaceStorageReader = absent_class(_HERE, "HuggingFaceStorageReader", _ADVICE)
HuggingFaceStorageWriter = absent_class(_HERE, "HuggingFaceStorageWriter", _ADVICE)
LoadPlanner = absent_class(_HERE, "LoadPlanner", _ADVICE)
SavePlanner = absent_class(_HERE, "SavePlanner", _ADVICE)
StorageReader = absent_class(_HERE, "StorageReader", _ADVICE)
StorageWriter = absent_class(_HERE, "StorageWriter", _ADVICE)
async_save = absent_function(_HERE, "async_save", _ADVICE)
load = absent_function(_HERE, "load", _ADVICE)
load_sharded_optimizer_state_dict = absent_function(_HERE, "load_sharded_optimizer_state_dict", _ADVICE)
load_state_dict = absent_function(_HERE, "load_state_dict", _ADVICE)
save = absent_function(_HERE, "save", _ADVICE)
save_state_dict = absent_function(_HERE, "save_state_dict", _ADVICE)
