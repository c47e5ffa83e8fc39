# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.profiler."""


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

import enum
import os
from collections.abc import Callable, Iterable
from typing import Any
from flambeau.autograd import profiler as autograd_profiler
from flambeau.autograd.profiler_list import EventList
class ProfilerActivity(enum.Enum):
    CPU = 0
    XPU = 1
    MTIA = 4
    CUDA = 2
    HPU = 3
    PrivateUse1 = 5
class ProfilerAction(enum.Enum):
    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3
def supported_activities() -> set[ProfilerActivity]:
    ...
def schedule(*, wait: int, warmup: int, active: int, repeat: int=..., skip_first: int=..., skip_first_wait: int=...) -> Callable[[int], ProfilerAction]:
    ...
class profile:

    def __init__(self, *, activities: Iterable[ProfilerActivity] | None=..., schedule: Callable[[int], ProfilerAction] | None=..., on_trace_ready: Callable[[profile], Any] | None=..., record_shapes: bool=..., profile_memory: bool=..., with_stack: bool=..., with_flops: bool=..., with_modules: bool=..., experimental_config: None=..., execution_trace_observer: None=..., acc_events: bool=..., use_cuda: bool | None=..., custom_trace_id_callback: None=..., post_processing_timeout_s: float | None=...) -> None:
        ...

    def __enter__(self) -> profile:
        ...

    def __exit__(self, *error: object) -> None:
        ...

    def start(self) -> None:
        ...

    def step(self) -> None:
        ...

    def stop(self) -> None:
        ...

    def _go_to(self, action: ProfilerAction) -> None:
        ...

    def _finish(self, notify: bool) -> None:
        ...

    def _begin_step(self) -> None:
        ...

    def _end_step(self) -> None:
        ...

    def _require_recorded(self, what: str) -> autograd_profiler.profile:
        ...

    def events(self) -> EventList:
        ...

    def key_averages(self, group_by_input_shape: bool=..., group_by_stack_n: int=...) -> EventList:
        ...

    def export_stacks(self, path: str | os.PathLike[str], metric: str=...) -> None:
        ...

    def add_metadata(self, key: str, value: str) -> None:
        ...

    def add_metadata_json(self, key: str, value: str) -> None:
        ...

    def preset_metadata_json(self, key: str, value: str) -> None:
        ...

    def export_chrome_trace(self, path: str | os.PathLike[str], use_python_export: bool=...) -> None:
        ...
def tensorboard_trace_handler(dir_name: str, worker_name: str | None=..., use_gzip: bool=..., use_python_export: bool=...) -> Callable[[profile], None]:
    ...
from flambeau.autograd.profiler_events import DeviceType as DeviceType
from flambeau.autograd.profiler_list import EventList as EventList
from flambeau.core.errors import NotSupportedError as NotSupportedError
from flambeau.autograd import profiler as autograd_profiler
from flambeau.autograd.profiler_trace import chrome_trace as chrome_trace
from flambeau.autograd.profiler import kineto_available as kineto_available
from flambeau.autograd.profiler import record_function as record_function

TYPE_CHECKING: _bool
