# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.autograd.forward_ad."""


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

from typing import NamedTuple
from flambeau.tensor.tensor import Tensor
class UnpackedDualTensor(NamedTuple):
    primal: Tensor
    tangent: Tensor | None
def enter_dual_level() -> int:
    ...
def exit_dual_level(*, level: int | None=...) -> None:
    ...
def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None=...) -> Tensor:
    ...
def unpack_dual(tensor: Tensor, *, level: int | None=...) -> UnpackedDualTensor:
    ...
class dual_level:

    def __enter__(self) -> int:
        ...

    def __exit__(self, *error: object) -> None:
        ...
from flambeau.tensor.tensor import Tensor as Tensor

FLOATING: _int
