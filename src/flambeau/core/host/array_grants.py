"""`ask_before_arrays`: NumPy asks a function before it allocates the memory of a large array.

# Note [Temporary arrays]
Problem: A kernel's temporary arrays take from none to forty times the memory of its operands, or its square (windows,
attention), and Linux kills a process that commits more than the host has. Rule: NumPy asks before it allocates an array
of 1 MiB or more, and raises MemoryError if the answer is no. Why: an estimate for each kernel would refuse calls that
fit, or accept some that do not. How: a context variable of NumPy selects the functions that allocate (NEP 49), so only
the contexts that run kernels of virtual GPUs ask. An exception in those functions is lost, so Ctrl-C must be deferred
while they run. Consequences: An array costs 1 us more, so kernels with operands of less than 1 MiB and fewer than a
million operations do not ask. Memory that NumPy's C code takes without an array, such as the buffer of a stable sort,
is not asked for; it has at most the size of an operand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

Grant = Callable[[int], bool]
LARGE = 1 << 20
"""Bytes of the smallest array that NumPy asks for."""
_CAPSULE = b"mem_handler"  # NumPy's name
_SET_HANDLER, _GET_HANDLER = 304, 305  # positions of PyDataMem_SetHandler and _GetHandler in NumPy's C API
_grant: ContextVar[Grant] = ContextVar("grant")
_MALLOC = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = (*_MALLOC, ctypes.c_size_t)

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _Allocator(ctypes.Structure):
    """NumPy's `PyDataMemAllocator`."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.CFUNCTYPE(*_MALLOC)),
        ("calloc", ctypes.CFUNCTYPE(*_CALLOC)),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class _Handler(ctypes.Structure):
    """NumPy's `PyDataMem_Handler`."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


def ask_before_arrays(grant: Grant) -> None:
    """Make NumPy call `grant(nbytes)` before it allocates a large array in the current context.

    NumPy raises MemoryError if `grant` returns False. See Note [Temporary arrays].
    """
    _grant.set(grant)
    _numpy_function(_SET_HANDLER, ctypes.py_object)(_handler()[0])


@cache
def _handler() -> tuple[Any, ...]:
    """Return a NumPy memory handler that asks before it allocates, and the objects that it uses: arrays may keep it
    until the process ends.
    """
    capsule = _numpy_function(_GET_HANDLER)()
    numpys = _Handler.from_address(_pointer_of(capsule, _CAPSULE))
    # NumPy holds the GIL when it calls them, and releases it in them.
    malloc = _function_at(numpys.allocator.malloc, _MALLOC)
    calloc = _function_at(numpys.allocator.calloc, _CALLOC)

    def allocate(context: Any, nbytes: int) -> int | None:
        return malloc(context, nbytes) if _is_granted(nbytes) else None

    def allocate_zeros(context: Any, count: int, size: int) -> int | None:
        return calloc(context, count, size) if _is_granted(count * size) else None

    ours = _Handler.from_buffer_copy(numpys)
    ours.name = b"flambeau"
    ours.allocator.malloc = ctypes.CFUNCTYPE(*_MALLOC)(allocate)
    ours.allocator.calloc = ctypes.CFUNCTYPE(*_CALLOC)(allocate_zeros)
    return _capsule_of(ctypes.addressof(ours), _CAPSULE, None), ours, capsule


def _is_granted(nbytes: int) -> bool:
    return nbytes < LARGE or _grant.get()(nbytes)


def _function_at(pointer: Any, types: tuple[Any, ...]) -> Any:
    """Return a function that ctypes calls without releasing the GIL."""
    return ctypes.cast(pointer, ctypes.PYFUNCTYPE(*types))


def _numpy_function(position: int, *parameters: Any) -> Any:
    """Return a function of NumPy's C API that returns an object."""
    table = ctypes.cast(_pointer_of(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, *parameters)(table[position])
