# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.serialization."""


from flambeau.tensor.tensor import Tensor

from builtins import bool as _bool, complex as _complex, float as _float, int as _int, str as _str
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from flambeau.core.device import device as _device
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.handle import RemovableHandle as _RemovableHandle
from flambeau.core.size import Size as _Size
from flambeau.core.typeinfo import finfo as _finfo, iinfo as _iinfo
from flambeau.runtime.generator import Generator as _Generator
from flambeau.runtime.streams.event import Event as _Event
from flambeau.tape.autograd_node import Node as _Node
from flambeau.tensor.arguments import return_types as _return_types
from flambeau.tensor.arguments.typing import layout as _layout, memory_format as _memory_format
from flambeau.tensor.storages import TypedStorage as _TypedStorage, UntypedStorage as _UntypedStorage

_Number: TypeAlias = _bool | _int | _float | _complex
_Ints: TypeAlias = Sequence[_int]
_IntOrInts: TypeAlias = _int | Sequence[_int]
_Tensors: TypeAlias = Sequence[Tensor]
_Device: TypeAlias = _str | _int | _device | None

from collections.abc import Callable
from typing import Any, TypeAlias
from flambeau.core.device import device
MAP_LOCATION: TypeAlias = Callable[[Any, str], Any] | device | str | dict[str, str] | None
from flambeau.serialization.checkpoint_options import LoadEndianness as LoadEndianness
from flambeau.serialization.checkpoint_options import SourceChangeWarning as SourceChangeWarning
from flambeau.tensor.storages import UntypedStorage as StorageType
from flambeau.tensor.storages import UntypedStorage as UntypedStorage
from flambeau.serialization.safety import add_safe_globals as add_safe_globals
from flambeau.serialization import archive as archive
from flambeau.serialization.checkpoint_options import check_module_version_greater_or_equal as check_module_version_greater_or_equal
from flambeau.serialization import checkpoint_files as checkpoint_files
from flambeau.serialization import checkpoint_options as checkpoint_options
from flambeau.serialization.safety import clear_safe_globals as clear_safe_globals
from flambeau.serialization.places import default_restore_location as default_restore_location
from flambeau.core.device import device as device
from flambeau.serialization.checkpoint_options import get_crc32_options as get_crc32_options
from flambeau.serialization.checkpoint_options import get_default_load_endianness as get_default_load_endianness
from flambeau.serialization.checkpoint_options import get_default_mmap_options as get_default_mmap_options
from flambeau.serialization.safety import get_safe_globals as get_safe_globals
from flambeau.serialization.checkpoint_files import get_unsafe_globals_in_checkpoint as get_unsafe_globals_in_checkpoint
from flambeau.serialization import hub as hub
from flambeau.serialization import legacy as legacy
from flambeau.serialization.checkpoint_files import load as load
from flambeau.serialization.places import location_tag as location_tag
from flambeau.serialization.checkpoint_options import mkdtemp as mkdtemp
from flambeau.serialization.checkpoint_options import normalize_storage_type as normalize_storage_type
from flambeau.serialization import outline as outline
from flambeau.serialization import pickle_machine as pickle_machine
from flambeau.serialization import pickle_names as pickle_names
from flambeau.serialization import pickle_writer as pickle_writer
from flambeau.serialization import places as places
from flambeau.serialization import reader as reader
from flambeau.serialization.places import register_package as register_package
from flambeau.serialization.safety import safe_globals as safe_globals
from flambeau.serialization import safety as safety
from flambeau.serialization.checkpoint_files import save as save
from flambeau.serialization.checkpoint_options import set_crc32_options as set_crc32_options
from flambeau.serialization.checkpoint_options import set_default_load_endianness as set_default_load_endianness
from flambeau.serialization.checkpoint_options import set_default_mmap_options as set_default_mmap_options
from flambeau.serialization.checkpoint_options import skip_data as skip_data
from flambeau.serialization.checkpoint_options import storage_to_tensor_type as storage_to_tensor_type
from flambeau.serialization import unpickler as unpickler
from flambeau.serialization.places import validate_cuda_device as validate_cuda_device
from flambeau.serialization.places import validate_hpu_device as validate_hpu_device

DEFAULT_PROTOCOL: _int
