"""Hostile scalars, sizes and modes for all public callables, on a virtual GPU that must survive them.

A call takes its arguments by the signatures that Flambeau's argument parser has: functions of `torch` and its
namespaces, methods of tensors, modules with their forward, optimizers and schedulers with their steps. Some arguments
are hostile: negative, zero, huge, infinite, NaN, bools, strings, tensors on the GPU, NumPy's scalars, tuples of other
lengths. Tensors hold indices in range and probabilities, so that no fault depends on data.

The call may raise an error of a public type. An error of Flambeau's own code, or a lost GPU, is a failure.
"""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np  # noqa: F401 (`eval` reads it)
from harness import Fuzzer

import flambeau as torch
from flambeau.core.errors import DriverError
from flambeau.tensor.arguments.arg_errors import CallSignature, Expected, Parser

ROOMS = (
    "",
    "nn.functional",
    "fft",
    "linalg",
    "special",
    "Tensor",
    "nn",
    "nn.utils",
    "nn.init",
    "optim",
    "optim.lr_scheduler",
)

_SKIPPED = {
    # what changes the process, reads files, asks the machine, prints, or takes functions and other objects
    "compile", "load", "save", "from_file", "set_default_device", "set_default_dtype", "set_default_tensor_type",
    "set_deterministic_debug_mode", "set_float32_matmul_precision", "set_flush_denormal", "set_grad_enabled",
    "set_num_interop_threads", "set_num_threads", "set_printoptions", "set_rng_state", "set_warn_always", "seed",
    "set_anomaly_enabled", "use_deterministic_algorithms", "autocast", "share_memory_", "module_load", "apply_", "map_",
    "map2_", "vmap", "cond", "register_hook", "register_post_accumulate_grad_hook", "backward", "record_stream",
    "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential", "Container",
    "DataParallel", "SyncBatchNorm", "Optimizer", "LRScheduler", "set_autocast_enabled", "set_autocast_dtype",
    "set_autocast_cache_enabled", "virtual", "load_ipython_extension", "unload_ipython_extension", "manual_seed", "ZeroRedundancyOptimizer", "TransformerEncoder",
    "TransformerDecoder", "RNNCellBase",
    # work in proportion to a number: iterations, terms
    "svd_lowrank", "pca_lowrank", "lobpcg", "mvlgamma", "mvlgamma_", "multigammaln",
}  # fmt: skip
_MODES = (
    "mean", "sum", "none", "max", "nearest", "linear", "bilinear", "area", "constant", "reflect", "replicate", "circular",
    "zeros", "border", "fro", "nuc", "tanh", "relu", "gelu", "floor", "trunc", "ortho", "forward", "ij", "valid", "same",
)  # fmt: skip
_HOSTILE: tuple[Any, ...] = (
    -1, 0, -2, -9, 7, 1 << 12, 1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 200, True, False, 0.0, -0.5,
    1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 1j, "x", "", "mean", b"x", None, (), [], (0,), (1,),
    (2, 2), (-1, -1), (0, 1, 2), (1, 2, 3, 4, 5, 6, 7), (True, 2), (1.5, 2), (None, 1), ("x",), (1 << 40, 1 << 40),
    (1 << 63, 1), [1, -1], {}, {1: 2}, range(2), slice(1), ..., object,
)  # fmt: skip
_NUMPY = (
    "int64(-1)", "int32(2)", "float64(0.5)", "float32('nan')", "bool_(True)", "complex64(1)", "uint8(255)", "str_('x')",
    "array(2)", "array([1, 2])", "array([0.5])",
)  # fmt: skip
_SHAPES = ((2, 3), (3, 3), (3,), (2, 2, 3), (1, 2, 4, 4), (1, 2, 3, 3, 3), (), (0, 3))
_REFUSALS = (
    TypeError, ValueError, RuntimeError, NotImplementedError, IndexError, AssertionError, KeyError, OverflowError,
)  # fmt: skip
_WORDED_AS_PYTORCHS = {
    AssertionError: r".",
    IndexError: r"^Dimension |cannot be applied|out of (range|bounds)|is supposed|Expected reduction dim|Number of ind|"
    r"[Ii]ndex",
    KeyError: r"'initial_lr' is not specified",  # of a scheduler that resumes
    # Of ints beyond 64 bits, and of an infinite ratio of a pooling.
    OverflowError: r"^int too big to convert$|^can't convert negative int to unsigned$|output_ratio must be finite",
}
_LEAKS = re.compile(
    r"cannot convert float|int too large|ufunc|operands could not be|array is too|negative dimensions|"
    r"Maximum allowed|Python integer .* out of bounds|math (domain|range) error|setting an array element"
)
"""Texts of errors of Python and NumPy about numbers that the public function should have refused."""


class T(NamedTuple):
    """A tensor of a call: random in (0, 1), or zeros where they are integers."""

    shape: tuple[int, ...]
    kind: str = "float32"
    device: str = "cuda"

    def build(self) -> Any:
        kind = getattr(torch, self.kind)
        if kind.is_floating_point or kind.is_complex:
            return (torch.rand(self.shape) * 0.9 + 0.05).to(kind).to(self.device)
        return torch.zeros(self.shape, dtype=kind, device=self.device)


class N(NamedTuple):
    """A value of NumPy, or a name of `torch`, as text."""

    text: str

    def build(self) -> Any:
        return eval(f"np.{self.text}") if "(" in self.text else getattr(torch, self.text)


class Call(NamedTuple):
    """A call: where its name is, the arguments, and those of what it returns (a module, an optimizer, a scheduler)."""

    room: str
    name: str
    args: tuple[Any, ...]
    given: dict[str, Any]
    then: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts = [*map(repr, self.args), *[f"{name}={value!r}" for name, value in self.given.items()]]
        return f"{self.room}.{self.name}({', '.join(parts)}) of {self.then}"


def _room(path: str) -> Any:
    found: Any = torch
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    return found


@cache
def callables() -> tuple[tuple[str, str, tuple[CallSignature, ...]], ...]:
    """Return room, name and signatures of all that is called."""
    found = []
    for room in ROOMS:
        for name in sorted(dir(_room(room))):
            define = getattr(_room(room), name)
            public = not name.startswith(("_", "sym_")) and name not in _SKIPPED and callable(define)
            if not public or isinstance(define, type) != (room in ("nn", "optim", "optim.lr_scheduler")):
                continue
            if isinstance(define, type) and (
                issubclass(define, Exception | torch.Tensor) or inspect.isabstract(define)
            ):
                continue
            try:
                signatures = _signatures(define, room, name)
            except (TypeError, ValueError):  # built in: without a signature
                continue
            if (
                room != "nn.utils" or signatures[0].parameters[0].name == "parameters"
            ):  # the others take modules
                found.append((room, name, tuple(signatures)))
    return tuple(found)


def _signatures(define: Any, room: str, name: str) -> list[CallSignature]:
    prefix = "F." if room == "nn.functional" else "linalg_" if room == "linalg" else ""
    target = define.__init__ if isinstance(define, type) else inspect.unwrap(define)
    parser = Parser(target, prefix + name, isinstance(define, type) or room == "Tensor", set())
    return parser.signatures


# -- drawing --------------------------------------------------------------------------------------------------


def draw(rng: random.Random) -> Call:
    """Draw a call with one hostile argument or more, and where it is made: a module, an optimizer or a scheduler."""
    return draw_call(rng, rng.choice(_SHAPES), "cuda", rng.choice((0.2, 0.5, 1.0)), 0.05)


def draw_call(
    rng: random.Random, shape: tuple[int, ...], device: str, hostility: float, no_tensor: float
) -> Call:
    """Draw a call whose tensors mostly have a shape.

    Args:
        rng: The source of the draw.
        shape: The shape.
        device: The device of most tensors.
        hostility: Probability of a hostile value for an argument.
        no_tensor: That of one for a tensor.
    """
    room, name, signatures = rng.choice(callables())
    kind = rng.choice(("float32",) * 6 + ("int64", "float16", "complex64", "bool"))
    tensor = T(shape, kind, device)
    args, given = _arguments(rng, rng.choice(signatures), tensor, hostility, no_tensor)
    if room == "optim":
        args = ([T((2, 2)), T(())], *args[1:])
    elif room == "optim.lr_scheduler":
        args = ("optimizer", *args[1:])
    elif room == "Tensor":
        args = (tensor, *args)
    then = (
        tuple([_fitting_tensor(rng, tensor) for _ in range(rng.choice((1, 1, 2, 3)))]) if room == "nn" else ()
    )
    return Call(room, name, args, given, then)


def _arguments(
    rng: random.Random, signature: CallSignature, tensor: T, hostility: float, no_tensor: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args: list[Any] = []
    given: dict[str, Any] = {}
    late = False
    for each in signature.parameters:
        if each.optional and rng.random() < 0.5:
            late = True
            continue
        kinds = {kind.name for kind in each.kinds}
        hostile = rng.random() < (
            hostility if kinds.isdisjoint({"Tensor", "tuple of Tensors"}) else no_tensor
        )
        value = _hostile(rng) if hostile else _fitting(rng, each, tensor)
        if late or each.by_keyword:
            given[each.name] = value
        else:
            args.append(value)
    if signature.more is not None:
        args += [_hostile(rng) if rng.random() < 0.3 else tensor for _ in range(rng.randrange(3))]
    return tuple(args), given


def _hostile(rng: random.Random) -> Any:
    draw = rng.random()
    if draw < 0.1:
        return T(
            rng.choice(((), (1,), (2,))),
            rng.choice(("int64", "float32", "bool")),
            rng.choice(("cuda", "cpu")),
        )
    return N(rng.choice(_NUMPY)) if draw < 0.2 else rng.choice(_HOSTILE)


def _fitting(rng: random.Random, each: Expected, tensor: T) -> Any:
    kind = rng.choice(each.kinds).name
    if kind == "Tensor":
        index = any(
            word in each.name for word in ("index", "indices", "target", "offsets", "lengths", "pivots")
        )
        return (
            T(tensor.shape, "int64", tensor.device)
            if index and rng.random() < 0.7
            else _fitting_tensor(rng, tensor)
        )
    if kind == "tuple of Tensors":
        return [tensor] * rng.randrange(4)
    if kind == "int":
        return rng.choice((0, 1, 1, 2, 3))
    if kind in ("float", "Number"):
        return rng.choice((0.5, 1.0, 0.1, 1, 2))
    if kind.startswith("tuple of"):
        return rng.choice((1, 2, (1,), (1, 2), (2, 2), (1, 1, 1), (0, 1), [2, 1]))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "torch.dtype":
        return N(rng.choice(("float32", "float64", "int64", "complex64")))
    if kind == "str":
        return rng.choice(_MODES)
    if kind == "" and (
        "mode" in each.name or each.name in ("reduction", "norm", "padding_mode", "nonlinearity")
    ):
        return rng.choice(_MODES)
    return rng.choice((tensor, 1, 2, 0.5, (1, 2), None, True)) if kind == "" else None


def _fitting_tensor(rng: random.Random, tensor: T) -> T:
    return T(rng.choice(_SHAPES), "float32", tensor.device) if rng.random() < 0.1 else tensor


# -- calling --------------------------------------------------------------------------------------------------


def _build(value: Any) -> Any:
    if isinstance(value, T | N):
        return value.build()
    if value == "optimizer":
        return torch.optim.SGD([torch.ones(2, device="cuda")], 0.1, momentum=0.9)
    if isinstance(value, list):
        return [_build(each) for each in value]
    return tuple([_build(each) for each in value]) if type(value) is tuple else value


def take(call: Call) -> None:
    """Make a call on a virtual GPU, which must work afterwards."""
    with torch.virtual(devices=1, data=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_per_process_memory_fraction(0.003)  # 120 MB: a result of honest size may have more
        args, given = _build(call.args), {name: _build(value) for name, value in call.given.items()}
        refusal: Exception | None = None
        try:
            _run(getattr(_room(call.room), call.name), call, args, given)
            torch.cuda.synchronize()
        except _REFUSALS as error:
            refusal = error
        except ZeroDivisionError as error:
            is_root = call.name.lower().replace("_", "").startswith("lppool")
            if (
                call.room not in ("optim.lr_scheduler", "nn.init") and not is_root
            ):  # PyTorch divides in Python, too
                raise
            refusal = ValueError(str(error))
        _require_alive(refusal)
        if refusal is not None:
            _require_public(refusal)
            if isinstance(refusal, AssertionError):  # with a text, as PyTorch's modules raise it
                raise ValueError(f"{refusal}") from refusal
            raise refusal


def _run(define: Callable[..., Any], call: Call, args: Any, given: Any) -> None:
    made = define(*args, **given)
    if isinstance(made, torch.nn.Module):  # options of modules are in the same namespace
        made.to(call.then[0].device)(*_build(call.then))
    elif call.room == "optim":
        for parameter in args[0]:
            parameter.grad = torch.ones_like(parameter)
        made.step(*[lambda: torch.ones(())] if call.name == "LBFGS" else ())
    elif call.room == "optim.lr_scheduler":
        for _ in range(3):
            args[0].step()
            made.step(*[0.5] if call.name == "ReduceLROnPlateau" else ())


def _require_alive(refusal: Exception | None) -> None:
    if isinstance(refusal, DriverError):
        raise AssertionError(f"the GPU is lost: {refusal}") from refusal
    torch.cuda.synchronize()
    x = torch.ones(3, device="cuda") + 1
    assert x.tolist() == [2.0, 2.0, 2.0], "the GPU computes other values"


def _require_public(refusal: Exception) -> None:
    """Raise AssertionError for an error of Flambeau's own code, of NumPy, or of Python's arithmetic."""
    text = str(refusal)
    worded = re.search(_WORDED_AS_PYTORCHS.get(type(refusal), "."), text, re.DOTALL)
    leaked = _LEAKS.search(text) and not isinstance(refusal, TypeError)
    if not worded or leaked or type(refusal).__module__.startswith("numpy"):
        raise AssertionError(f"{type(refusal).__name__}: {text}") from refusal


FUZZER = Fuzzer("scalars", draw, take, tuple(kind for kind in _REFUSALS if kind is not AssertionError))
