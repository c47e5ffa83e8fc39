"""Random calls of the public API, each run by PyTorch's CPU build and by Flambeau on the CPU and on a virtual GPU.

    PYTHONPATH=src:tests python -m hunt.api_calls --seed 0 --count 20000 [--only hfftn] [--show 3] [--all]

A call takes its arguments by the names of PyTorch's signatures: most fit, a few do not (wrong types and dtypes, NaN, huge
numbers, other shapes, 0-dim and non-contiguous tensors). `CLASSES` says what may go wrong, worst first; `listed.py`,
which differences are known. The others are failures.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from hunt.listed import described, listed
from support import from_torch, same, torch

import flambeau

CLASSES = {
    "crash": "the process ended or hung",
    "dead device": "a virtual GPU was lost by arguments that the host could have refused",
    "internal": "an error of Flambeau's own code came out (AttributeError, AssertionError, KeyError, ...)",
    "error type": "PyTorch raises TypeError, Flambeau another error",
    "refused": "PyTorch accepts the call, Flambeau raises",
    "accepted": "PyTorch raises, Flambeau accepts the call",
    "form": "another dtype, shape or type of result",
    "value": "other values",
    "gradient": "another gradient, or backward raises where PyTorch's does not, or not where it does",
    "device": "the virtual GPU does something else than Flambeau's CPU",
    "order": "both raise, but for different reasons: of several faults of a call another one is reported",
}
INTERNAL = (
    AssertionError, AttributeError, ZeroDivisionError, IndexError, KeyError, StopIteration, NameError, RecursionError,
    MemoryError, UnicodeError, SystemError,
)  # fmt: skip
DTYPES = ("float32", "float64", "int64", "bool", "complex64", "float16", "bfloat16", "int32", "uint8")
ROOMS = {
    "": "torch",
    "nn.functional": "F",
    "fft": "fft",
    "linalg": "linalg",
    "special": "special",
    "Tensor": "Tensor",
    "nn": "nn",
}


class T(NamedTuple):
    """A tensor of a call: its layout, and the seed of its values."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ""  # "", "transposed", "strided" or "expanded"
    fill: str = "normal"
    seed: int = 0

    def build(self) -> Any:
        rng = np.random.default_rng(self.seed)
        shape = self.shape
        if self.fill == "index":
            values: Any = rng.integers(0, 2, shape)
        elif self.fill in ("unit", "zero"):
            values = rng.random(shape) * (self.fill == "unit")
        elif self.fill == "odd":
            values = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -3.0, 1e30], shape)
        else:
            values = rng.normal(0, 2, shape)
        kind = getattr(torch, self.dtype)
        if self.fill == "odd" and not (kind.is_floating_point or kind.is_complex):
            values = rng.integers(-5, 5, shape)
        made = torch.from_numpy(np.asarray(values)).to(kind)
        if self.layout == "transposed" and len(shape) > 1:
            return made.transpose(0, -1).contiguous().transpose(0, -1)
        if self.layout == "strided" and shape:
            return torch.stack([made, made], -1)[..., 0]
        if self.layout == "expanded" and shape and shape[0]:
            return made[:1].expand(shape)
        return made


class Name(NamedTuple):
    """A dtype or another constant of the torch namespace."""

    name: str


class Like(NamedTuple):
    """A value as another type that may stand for it.

    Attributes:
        form: "numpy", "array", "tensor" (without dimensions), "vector" (a tensor of one element), "Size" or "Parameter".
        value: A number, a sequence of ints, or a `T`.
    """

    form: str
    value: Any

    def build(self) -> Any:
        if self.form == "Parameter":
            return torch.nn.Parameter(self.value.build(), requires_grad=False)
        if self.form == "Size":
            return torch.Size(self.value)
        array = np.asarray(self.value)
        if self.form == "numpy":
            return array[()]
        return (
            array if self.form == "array" else torch.from_numpy(array.reshape((1,) * (self.form == "vector")))
        )


class Call(NamedTuple):
    """A call: the room and the name of what is called, and its arguments as records."""

    room: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        shown = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{ROOMS[self.room]}.{self.name}({', '.join(shown)})"


def _show(value: Any) -> str:
    if isinstance(value, T):
        more = [part for part in (value.layout, value.fill.replace("normal", "")) if part]
        return f"{value.dtype}{list(value.shape)}{'/'.join(['', *more])}"
    if isinstance(value, Name):
        return f"torch.{value.name}"
    if isinstance(value, Like):
        return f"{value.form}({_show(value.value)})"
    if isinstance(value, list | tuple):
        parts = ", ".join(map(_show, value))
        return f"[{parts}]" if isinstance(value, list) else f"({parts},)"
    return repr(value)


# -- which functions, with which parameters -------------------------------------------------------------------

# What changes the process, prints, reads files, asks the machine, or is made of other things than tensors.
_SKIPPED = {
    "detach_", "storage_type",
    "apply_", "backward", "compile", "cond", "cudnn_is_acceptable", "data_ptr", "from_dlpack", "from_file", "frombuffer",
    "handle_torch_function", "has_torch_function", "initial_seed", "is_grad_enabled", "load", "map_", "map2_", "manual_seed", "module_load", "numpy", "record_stream",
    "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "resize_as_sparse_", "save", "seed", "set_",
    "share_memory_", "set_default_device", "set_default_dtype", "set_default_tensor_type", "set_deterministic_debug_mode",
    "set_float32_matmul_precision", "set_flush_denormal", "set_grad_enabled", "set_num_interop_threads",
    "set_num_threads", "set_printoptions", "set_rng_state", "set_warn_always", "storage", "tolist", "typename",
    "untyped_storage", "use_deterministic_algorithms", "vmap", "autocast", "multi_head_attention_forward", "unravel_index", "set_anomaly_enabled",
    "triplet_margin_with_distance_loss", "get_rng_state", "cuda", "cpu", "xpu", "pin_memory", "is_pinned", "to", "get_device", "type", "dim_order", "ipu", "mtia",
    "has_names", "handle", "is_shared", "retain_grad", "grad", "utils", "is_tensor", "get_num_threads", "get_num_interop_threads", "data", "enable_grad", "no_grad", "inference_mode", "namedtuple", "lru_cache", "wraps", "overload", "boolean_dispatch",
}  # fmt: skip
# Of these only the form of the result is compared: values are random, or not defined.
_RANDOM = (
    "rand", "normal", "bernoulli", "multinomial", "poisson", "binomial", "dropout", "rrelu", "exponential", "geometric",
    "cauchy", "uniform", "gumbel", "empty", "fractional", "resize", "lowrank", "gamma", "dirichlet", "as_strided",
    "eig", "svd", "qr", "lobpcg", "geqrf", "lstsq",
)  # fmt: skip
_MORE = {
    "arange": "(start, end=None, step=1, *, dtype=None)", "eye": "(n, m=None, *, dtype=None)",
    "full": "(size, fill_value, *, dtype=None)", "linspace": "(start, end, steps, *, dtype=None)",
    "logspace": "(start, end, steps, base=10.0, *, dtype=None)", "ones": "(size, *, dtype=None)",
    "zeros": "(size, *, dtype=None)", "empty": "(size, *, dtype=None)", "rand": "(size, *, dtype=None)",
    "hann_window": "(window_length, periodic=True, *, dtype=None)", "range": "(start, end, step=1, *, dtype=None)",
    "hamming_window": "(window_length, periodic=True, alpha=0.54, beta=0.46)", "tril_indices": "(row, col, offset=0)",
    "kaiser_window": "(window_length, periodic=True, beta=12.0)", "triu_indices": "(row, col, offset=0)",
    "blackman_window": "(window_length, periodic=True)", "randint": "(low, high, size)", "randperm": "(n)",
    "fftfreq": "(n, d=1.0)", "rfftfreq": "(n, d=1.0)", "new_ones": "(self, size, dtype=None)",
    "new_zeros": "(self, size, dtype=None)", "new_full": "(self, size, fill_value, dtype=None)",
    "new_empty": "(self, size, dtype=None)", "broadcast_shapes": "(size, size2)", "promote_types": "(dtype, dtype2)",
}  # fmt: skip


class Function(NamedTuple):
    room: str
    name: str
    parameters: tuple[inspect.Parameter, ...]


def functions() -> list[Function]:
    """What both packages have, with PyTorch's parameters."""
    documented = torch.overrides.get_testing_overrides()
    found = []
    for room in ROOMS:
        theirs, ours = (_room(module, room) for module in (torch, flambeau))
        for name in sorted({*dir(theirs)} & {*dir(ours)} - _SKIPPED):
            define = getattr(theirs, name)
            if name[0] == "_" or not callable(define) or isinstance(define, type):
                continue
            if name in _MORE:
                shown = inspect.signature(eval(f"lambda {_MORE[name][1:-1]}: 0"))
            elif room == "nn.functional" and inspect.isfunction(define):
                shown = inspect.signature(define)
            elif define in documented:
                shown = inspect.signature(documented[define])
            else:
                continue
            found.append(Function(room, name, tuple(shown.parameters.values())))
    return found


def _room(module: Any, room: str) -> Any:
    for part in filter(None, room.split(".")):
        module = getattr(module, part)
    return module


# -- drawing --------------------------------------------------------------------------------------------------

_SHAPES = [(2, 3), (3,), (3, 3), (2, 2, 3), (2, 3, 3), (1, 2, 3, 3), (1, 2, 4, 4, 4), (4,), (2, 2), ()]
_ODD_SHAPES = [(), (0,), (0, 3), (1,), (5,), (3, 2), (2, 0, 3), (1, 1, 1, 1, 1, 1)]
_INTS = [0, 1, 2, 3, -1, -2]
ODD = [
    None, True, False, 0, -1, 5, 1.5, -1.0, float("nan"), float("inf"), -float("inf"), 1j, "x", "mean", [], [1, 2], (0, 1),
    (1.0,), [True], (None,), (-1, -2), 1 << 40, -(1 << 62), (1 << 63) - 1, 1 << 63, 1e300, b"x", {}, object,
    Name("float64"), Name("float32"), Name("strided"), T((), "int64", fill="index"), T((2,), "int64", fill="index"), T(()), T((2,)),
    T((0,)), [T((2,))], range(2), slice(1), ...,
]  # fmt: skip
_INTEGRAL = {
    "dim", "dim0", "dim1", "n", "k", "groups", "diagonal", "offset", "start", "end", "length", "steps", "num_groups",
    "chunks", "shifts", "sections", "num_classes", "bins", "upscale_factor", "downscale_factor", "axis0", "axis1", "row", "col",
    "m", "minlength", "padding_idx", "ignore_index", "blank", "repeats", "driver", "low", "high", "window_length", "step", "N",
}  # fmt: skip
_SIZED = {"kernel_size", "stride", "padding", "dilation", "output_size", "size", "sizes", "shape", "dims", "normalized_shape",
          "size2", "repeats", "pad", "split_size_or_sections", "indices_or_sections", "s", "output_padding"}  # fmt: skip
_INDICES = {
    "index",
    "indices",
    "offsets",
    "mask_index",
    "pivots",
    "LU_pivots",
    "sorter",
    "input_lengths",
    "target_lengths",
}
_NUMBERS = {"alpha", "beta", "value", "eps", "p", "margin", "momentum", "ord", "rtol", "atol", "rcond", "lambd",
            "min_val", "max_val", "negative_slope", "scale", "threshold", "delta", "min", "max", "tol", "q", "fill_value", "d",
            "smoothing", "label_smoothing", "temperature", "dropout_p", "exponent", "weight_decay", "base", "correction", "decimals"}  # fmt: skip
_BOOLS = {"keepdim", "inplace", "training", "upper", "largest", "sorted", "return_indices", "ceil_mode", "descending",
          "stable", "align_corners", "count_include_pad", "log_target", "full", "log_input", "swap", "hermitian", "periodic", "pivot",
          "left", "right", "unitriangular", "transpose", "return_inverse", "return_counts", "unbiased", "include_self", "accumulate"}  # fmt: skip
_LISTS = {"tensors", "matrices", "operands", "seq"}
_DTYPED = {"dtype", "dtype2", "out_dtype"}


def draw(rng: random.Random, function: Function, fits: bool = False) -> Call:
    """Draw a call: the tensors of most calls have one shape and one dtype, and most arguments fit, or all of them."""
    shape = rng.choice(_SHAPES)
    dtype = "float32" if rng.random() < 0.6 else rng.choice(DTYPES)
    oddness, likeness = (0.0, 0.0) if fits else rng.choice([(0.0, 0.0), (0.0, 0.5), (0.15, 0.2), (0.4, 0.0)])
    positional, named = [], {}
    by_name = False
    for at, parameter in enumerate(function.parameters):
        if parameter.name == "out" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [_tensor(rng, shape, dtype) for _ in range(rng.randint(0, 3))]
            continue
        optional = parameter.default is not parameter.empty
        if optional and rng.random() < 0.6:
            by_name = True
            continue
        value = _value(rng, parameter, shape, dtype, at)
        if rng.random() < oddness and not (function.room == "Tensor" and at == 0):
            value = rng.choice(ODD)
        elif rng.random() < likeness and not (function.room == "Tensor" and at == 0):
            value = _likeness(rng, value)
        if by_name or parameter.kind is parameter.KEYWORD_ONLY or (optional and rng.random() < 0.3):
            named[parameter.name] = value
            by_name = True
        else:
            positional.append(value)
    if fits:
        return Call(function.room, function.name, tuple(positional), named)
    if rng.random() < 0.02:
        positional.append(rng.choice(ODD))
    if rng.random() < 0.02 and len(positional) > 1:
        positional.pop()
    return Call(function.room, function.name, tuple(positional), named)


def _value(
    rng: random.Random, parameter: inspect.Parameter, shape: tuple[int, ...], dtype: str, at: int
) -> Any:
    name, kind = parameter.name, str(parameter.annotation)
    if name in _BOOLS or isinstance(parameter.default, bool):
        return rng.random() < 0.5
    if name in _DTYPED:
        return Name(rng.choice(DTYPES)) if rng.random() < 0.7 else None
    if name in _LISTS:
        return [_tensor(rng, shape, dtype) for _ in range(rng.randint(1, 3))]
    if name in _INDICES or (name == "target" and rng.random() < 0.4):
        return _tensor(rng, shape if rng.random() < 0.5 else shape[:1], "int64", "index")
    if name == "mask" or name == "condition":
        return _tensor(rng, shape, "bool")
    if name == "reduction":
        return rng.choice(["mean", "sum", "none"])
    if name == "mode" and isinstance(parameter.default, str):
        return rng.choice([parameter.default, "nearest", "bilinear", "constant", "reflect", "circular"])
    if name in _SIZED and rng.random() < 0.6:
        return tuple([rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 3))])
    if name in _INTEGRAL or name in _SIZED or type(parameter.default) is int:
        return rng.choice(_INTS)
    if name in _NUMBERS or type(parameter.default) is float:
        return rng.choice([0.5, 1.0, 2, -1.0, 0, 0.1])
    if isinstance(parameter.default, str):
        return parameter.default
    if parameter.default is None and "Tensor" not in kind and rng.random() < 0.5:
        return rng.choice([None, 1, (1,), 2.0])
    return _tensor(rng, shape, dtype)


def _likeness(rng: random.Random, value: Any) -> Any:
    """Return a value of another type that may mean the same: some of them PyTorch accepts, others not."""
    if isinstance(value, bool):
        return rng.choice([int(value), float(value), Like("numpy", value), Like("tensor", value), None])
    if isinstance(value, int):
        forms = [float(value), bool(value), (value,), [value], Like("numpy", value), Like("tensor", value)]
        return rng.choice([*forms, Like("vector", value), Like("array", value), Like("numpy", float(value))])
    if isinstance(value, float):
        return rng.choice(
            [int(value), complex(value), *(Like(form, value) for form in ("numpy", "tensor", "vector"))]
        )
    if type(value) is tuple and all(type(each) is int for each in value):
        odd = [
            bool(value[-1]),
            Like("numpy", value[-1]),
            Like("tensor", value[-1]),
            Like("vector", value[-1]),
        ]
        changed = [*value[:-1], rng.choice(odd)] if value else []
        return rng.choice(
            [list(value), Like("Size", value), Like("array", value), changed, tuple(changed), changed[::-1]]
        )
    if isinstance(value, T):
        return rng.choice([Like("Parameter", value), 2.0, 1, None, True, [1.0], (value, value)])
    if isinstance(value, Name):
        return rng.choice([float, int, bool, complex, value.name])
    return value


def _tensor(rng: random.Random, shape: tuple[int, ...], dtype: str, fill: str = "normal") -> T:
    if rng.random() < 0.06:
        dtype = rng.choice(DTYPES)
    if rng.random() < 0.08:
        shape = rng.choice(_ODD_SHAPES)
    if fill == "normal" and rng.random() < 0.1:
        fill = "odd"
    layout = rng.choice(["", "", "", "transposed", "strided", "expanded"])
    return T(shape, dtype, layout, fill, rng.randrange(100))


def calls(seed: int, count: int, only: str = "") -> Iterator[Call]:
    """The calls of a seed. Each has its own generator, so a new function changes few of the others' calls."""
    chosen = [f for f in functions() if not only or only == f.name]
    rounds = range(-(-count // len(chosen)))
    keys = [(f"{seed}:{turn}:{f.room}.{f.name}", turn, f) for turn in rounds for f in chosen]
    keys.sort(key=lambda drawn: (drawn[1], crc32(drawn[0].encode())))
    for key, _, function in keys[:count]:
        yield draw(random.Random(key), function)


# -- running and judging --------------------------------------------------------------------------------------


Drawing = Callable[[int, int, str], Iterator[Call]]
"""Yields calls, given a seed, a count and the name of one function, or ""."""


class Finding(NamedTuple):
    kind: str
    call: Call
    theirs: str
    ours: str

    @property
    def reason(self) -> str:
        """Why the difference is known; empty if it is not."""
        return listed(self.kind, self.call.name, described(self.call, self.theirs, self.ours))


def _build(value: Any, made: dict[int, Any]) -> Any:
    """The arguments as PyTorch's."""
    if isinstance(value, T | Like):
        return value.build()
    if isinstance(value, Name):
        return getattr(torch, value.name)
    if isinstance(value, list):
        return [_build(v, made) for v in value]
    if isinstance(value, slice):
        return slice(*(_build(part, made) for part in (value.start, value.stop, value.step)))
    return tuple([_build(v, made) for v in value]) if type(value) is tuple else value


def _carry(value: Any, device: str) -> Any:
    """PyTorch's arguments as Flambeau's on a device."""
    if isinstance(value, torch.Size):
        return flambeau.Size(value)
    if isinstance(value, torch.nn.Parameter):
        return flambeau.nn.Parameter(_moved(from_torch(value.data), device), requires_grad=False)
    if isinstance(value, torch.Tensor):
        return _moved(from_torch(value), device)
    if isinstance(value, torch.dtype | torch.layout):
        return getattr(flambeau, str(value).split(".")[1])
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)([_carry(v, device) for v in value])
    if isinstance(value, slice):
        return slice(*(_carry(part, device) for part in (value.start, value.stop, value.step)))
    return value


def _moved(x: Any, device: str) -> Any:
    """Return a tensor with the same strides on a device."""
    if device == "cpu" or not x.numel():
        return x.to(device)
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).to(device)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def _run(module: Any, call: Call, args: Any, kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = getattr(_room(module, call.room), call.name)(*args, **kwargs)
            return args[0] if call.name == "__setitem__" else result
        except Exception as error:
            return error


def judge(call: Call, begin: Callable[[str], None] = lambda runner: None) -> Iterator[Finding]:
    """Run a call three times and yield what differs. `begin` is called with the name of each that runs."""
    begin("PyTorch")
    args, kwargs = _build(call.args, {}), {k: _build(v, {}) for k, v in call.kwargs.items()}
    ours = [_carry(args, "cpu"), {k: _carry(v, "cpu") for k, v in kwargs.items()}]
    theirs = _run(torch, call, args, kwargs)
    begin("Flambeau")
    found = _run(flambeau, call, *ours)
    kind = differs(theirs, found, _is_random(call))
    if kind:
        yield Finding(kind, call, brief(theirs), brief(found))
    elif not any(t.numel() >= _HUGE for t in _tensors(theirs)) and not isinstance(theirs, Exception):
        yield from _gradients_differ(call)
    yield from _on_gpu(call, found, theirs)


def _gradients_differ(call: Call) -> Iterator[Finding]:
    """Run an agreeing call of tensors that require gradients, backward too, and yield what differs."""
    if call.name.endswith("_") or _is_random(call):  # in-place functions refuse leaves
        return
    args, kwargs = _build(call.args, {}), {k: _build(v, {}) for k, v in call.kwargs.items()}
    ours = [_carry(args, "cpu"), {k: _carry(v, "cpu") for k, v in kwargs.items()}]
    theirs, found = _gradients(torch, call, args, kwargs), _gradients(flambeau, call, *ours)
    if differs(theirs, found) and not _agree_in_16_bits(call, theirs, found):
        yield Finding("gradient", call, brief(theirs), brief(found))


def _agree_in_16_bits(call: Call, theirs: Any, ours: Any) -> bool:
    """Return True if a call computes in 16 bits, and the gradients differ by what that rounds of their largest element."""
    tolerance = 5e-2 if "bfloat16" in str(call) else 1e-2
    if (
        "float16" not in str(call)
        or isinstance(theirs, Exception)
        or isinstance(ours, Exception)
        or _form(theirs) != _form(ours)
    ):
        return False
    from support import to_torch

    for one, other in zip(_tensors(theirs), _tensors(ours), strict=True):
        a, b = one.to(torch.complex128), to_torch(other).to(torch.complex128)
        largest = a.abs().nan_to_num(0, 0, 0).amax().item() if a.numel() else 0.0
        if not torch.allclose(b, a, rtol=tolerance, atol=tolerance * largest, equal_nan=True):
            return False
    return True


def _gradients(module: Any, call: Call, args: Any, kwargs: Any) -> Any:
    """Return the gradients of a call's floating-point arguments, zeros where there is none; or what was raised."""
    leaves = [t for t in _tensors((args, tuple(kwargs.values()))) if t.is_floating_point() or t.is_complex()]
    for leaf in leaves:
        leaf.requires_grad_()
    result = _run(module, call, args, kwargs)
    if isinstance(result, Exception):
        return result
    outputs = [t for t in _tensors(result) if t.requires_grad]
    if any(t.layout is not module.strided for t in outputs) or not outputs:
        return [len(outputs)]
    try:
        found = module.autograd.grad(
            outputs, leaves, [_cotangent(module, t) for t in outputs], allow_unused=True
        )
    except Exception as error:
        return error
    return [module.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def _cotangent(module: Any, output: Any) -> Any:
    kind = getattr(torch, repr(output.dtype).split(".")[-1])
    made = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(tuple(output.shape)).to(kind)
    return made if module is torch else from_torch(made)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | flambeau.Tensor):
        return [value]
    return [t for each in value for t in _tensors(each)] if isinstance(value, list | tuple) else []


def _on_gpu(call: Call, found: Any, theirs: Any) -> Iterator[Finding]:
    """What the virtual GPU does otherwise than the CPU."""
    try:
        args, kwargs = _build(call.args, {}), {k: _build(v, {}) for k, v in call.kwargs.items()}
        if any(t.numel() >= _HUGE for t in _tensors(theirs)):
            return
        there = _run(flambeau, call, _carry(args, "cuda"), {k: _carry(v, "cuda") for k, v in kwargs.items()})
        flambeau.cuda.synchronize()
        result = there if isinstance(there, Exception) else _to_cpu(there)
    except Exception as error:
        there = result = error
    if isinstance(there, flambeau.DriverError) or (
        isinstance(there, Exception) and "device-side assert" in str(there)
    ):
        if not (isinstance(theirs, Exception) and _depends_on_data(str(theirs) + str(found))):
            yield Finding("dead device", call, brief(theirs), brief(there))
        raise DeadError
    if (
        isinstance(result, Exception)
        and _is_internal(result)
        and type(result) is not type(theirs)
        and type(result) is not type(found)
    ):
        yield Finding("internal", call, brief(theirs), brief(result))
    elif isinstance(found, Exception) != isinstance(result, Exception) or (
        type(found) is not type(result) if isinstance(found, Exception) else _form(found) != _form(result)
    ):
        yield Finding("device", call, brief(found), brief(result))


class DeadError(Exception):
    """The virtual GPU of this call is lost: the next one needs another."""


def _depends_on_data(text: str) -> bool:
    return any(word in text.lower() for word in ("index", "indices", "out of bounds", "range", "probab", "target", "label", "lengths", "all elements", "0 <= p", "class values", "between 0 and 1", "negative values", "repeats", "number of"))  # fmt: skip


def _is_random(call: Call) -> bool:
    return any(word in call.name for word in _RANDOM)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, flambeau.Tensor):
        return value.cpu()
    if isinstance(value, list | tuple):
        return [_to_cpu(v) for v in value]
    return value


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor | flambeau.Tensor):
        return (repr(value.dtype), tuple(value.shape))
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return type(value).__name__


def differs(theirs: Any, ours: Any, random: bool = False) -> str:
    """The class of the difference between two outcomes, "" if there is none."""
    if isinstance(ours, flambeau.NotSupportedError):
        return ""  # said to be missing
    if isinstance(theirs, Exception):
        if not isinstance(ours, Exception):
            return "accepted"
        return _errors_differ(theirs, ours)
    if isinstance(ours, Exception):
        return "internal" if _is_internal(ours) else "refused"
    if _form(theirs) != _form(ours):
        return "form"
    if random:
        return ""
    try:
        _same(ours, theirs)
    except (AssertionError, IndexError):  # of `to_dense` of sparse tensors
        return "value"
    return ""


def _errors_differ(theirs: Exception, ours: Exception) -> str:
    names = [type(error).__name__.lstrip("_") for error in (theirs, ours)]
    if names[0] == names[1] or (isinstance(theirs, INTERNAL) and isinstance(ours, TypeError)):
        return ""  # functions that PyTorch writes in Python raise AttributeError and the like themselves
    if _is_internal(ours):
        return "internal"
    return "error type" if isinstance(theirs, TypeError) else "order"


def _is_internal(error: Exception) -> bool:
    """Return True for an error of the code that raised it; an IndexError with PyTorch's words is not one."""
    return isinstance(error, INTERNAL) and not (
        isinstance(error, IndexError)
        and re.search(
            r"^Dimension |cannot be applied|out of (range|bounds)|is supposed|Expected reduction dim|Number of indices|"
            "too many indices|shape mismatch|valid indices|used as indices|shape of the mask",
            str(error),
        )
    )


_HUGE = 1 << 24


def _same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        for one, other in zip(ours, theirs, strict=True):
            _same(one, other)
    elif isinstance(theirs, torch.Tensor):
        if theirs.numel() >= _HUGE:  # an expanded tensor
            return
        if theirs.layout is not torch.strided:
            assert repr(ours.layout) == repr(theirs.layout)
            if _beyond_size(theirs):
                return
            ours, theirs = ours.to_dense(), theirs.to_dense()
        if theirs.dtype.is_floating_point or theirs.dtype.is_complex:
            wide = torch.complex128 if theirs.dtype.is_complex else torch.float64
            from support import to_torch

            near = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-8, torch.complex128: 1e-8}
            tolerance = near.get(theirs.dtype, 1e-3)
            a, b = to_torch(ours).to(wide), theirs.to(wide)
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            same(ours, theirs, strides=False)
    elif isinstance(theirs, int | float | complex | str | bool | None):
        assert ours == theirs or ours != ours or abs(ours - theirs) <= 1e-3 * abs(theirs)


def _beyond_size(t: Any) -> bool:
    """Return True if indices of a sparse tensor are out of range, which its constructor need not check."""
    if t.layout is not torch.sparse_coo or not t._indices().numel():
        return False
    sizes = torch.tensor(t.shape[: t.sparse_dim()])
    return bool((t._indices().max(1).values >= sizes).any())


def brief(value: Any) -> str:
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {str(value).strip()[:140].splitlines()[0] if str(value).strip() else ''}"
    if isinstance(value, torch.Tensor | flambeau.Tensor):
        dense = (
            value
            if "strided" in repr(value.layout)
            else value.values()
            if "coo" not in repr(value.layout)
            else value._values()
        )
        values = dense.flatten()[:6].tolist() if 0 < value.numel() < _HUGE else []
        return f"{repr(value.dtype).split('.')[-1]}{list(value.shape)} {values}"
    if isinstance(value, list | tuple):
        return f"({', '.join(brief(v) for v in value[:4])})"
    return repr(value)[:80]


# -- in processes of their own, as PyTorch may crash ---------------------------------------------------------


def _work(pipe: Any, drawing: Drawing, seed: int, start: int, count: int, only: str) -> None:
    torch.set_num_threads(1)
    drawn = list(drawing(seed, count, only))
    at = start
    while at < count:
        with flambeau.virtual(1):
            while at < count:
                lost = False
                try:
                    for finding in judge(drawn[at], lambda who, at=at: pipe.send(("at", at, who))):
                        pipe.send(("finding", at, finding))
                except DeadError:
                    lost = True
                at += 1
                if lost:
                    break
    pipe.send(("end", count))


def hunt(
    seed: int, count: int, only: str = "", patience: float = 20.0, drawing: Drawing = calls
) -> list[Finding]:
    """Try `count` calls of a seed; return what was found, the worst first."""
    findings: list[Finding] = []
    context = multiprocessing.get_context("spawn")
    start = 0
    while start < count:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(theirs, drawing, seed, start, count, only))
        process.start()
        theirs.close()
        at, runner, ended = start, "", ""
        try:
            while mine.poll(patience if runner else None):  # a busy machine may take long to import PyTorch
                message = mine.recv()
                if message[0] == "end":
                    at = count
                    break
                at = message[1]
                if message[0] == "finding":
                    findings.append(message[2])
                else:
                    runner = message[2]
            else:
                ended = f"hung for {patience} s"
        except EOFError:
            process.join()
            ended = f"ended with {process.exitcode}"
            if process.exitcode == 1:  # Python's status after an exception, which is the harness's
                raise RuntimeError("the process that compares calls raised an error: see stderr") from None
        if ended and runner == "Flambeau":
            call = next(islice(drawing(seed, count, only), at, None))
            findings.append(Finding("crash", call, "", ended))
        if process.is_alive() and at < count:
            process.kill()
        process.join()
        start = at + 1
    worst = list(CLASSES)
    return sorted(findings, key=lambda f: (worst.index(f.kind), f.call.room, f.call.name))


def main(description: str | None = __doc__, drawing: Drawing = calls) -> None:
    """Hunt with the options of the command line, print what is found, and exit with status 1 for a difference."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--only", default="", help="the name of one function")
    parser.add_argument("--show", type=int, default=3, help="findings shown for each function and class")
    parser.add_argument("--all", action="store_true", help="show the listed differences, too")
    options = parser.parse_args()
    start = time.monotonic()
    found = hunt(options.seed, options.count, options.only, drawing=drawing)
    findings = [finding for finding in found if options.all or not finding.reason]
    shown: Counter[Any] = Counter()
    for finding in findings:
        key = (finding.kind, finding.call.room, finding.call.name)
        shown[key] += 1
        if shown[key] <= options.show:
            print(
                f"{finding.kind}: {finding.call}\n    PyTorch:  {finding.theirs}\n    Flambeau: {finding.ours}"
            )
    counts = Counter(finding.kind for finding in findings)
    classes = ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES)
    print(
        f"seed {options.seed}: {options.count} calls in {time.monotonic() - start:.0f} s; {classes}; {len(found) - len(findings)} listed"
    )
    sys.exit(bool(findings))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
