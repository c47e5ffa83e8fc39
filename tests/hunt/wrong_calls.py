"""Calls of `torch`, its Tensor, `linalg`, `fft`, `special`, indexing and the modules of `nn` with one wrong argument.

    PYTHONPATH=src:tests python -m hunt.wrong_calls --seed 0 --count 20000 [--only gather] [--all]

PyTorch accepts each call before one argument is replaced, so that every check of a function is reached.
"""

from __future__ import annotations

import inspect
import random
import signal
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from hunt.api_calls import Call, Like, Name, T, _build, _run, draw, functions, main
from hunt.functional_calls import WRONG
from support import torch

import flambeau

INDICES = [
    0,
    -1,
    slice(None),
    slice(0, 2),
    None,
    ...,
    T((2,), "int64", fill="index"),
    T((2, 3), "bool"),
    [0, 1],
]
ODD_INDICES = [
    True, 1.0, 5, -4, 1 << 40, 1 << 63, "x", b"x", (), [], [True], [None], [0, "x"], {}, range(2), object, slice(None, None, -1),
    slice(None, None, 0), slice(1.0, None), slice("x", None), slice(1 << 70), T((), "int64", fill="index"), T((), "bool"),
    slice(T((), "int64", fill="index")), T((2,), "float32"), T((3, 2), "bool"), T((2,), "uint8", fill="index"), T((2,), "complex64"),
    T((2,), "int32", fill="index"), T((3,), "int64", fill="index"), T((0,), "int64"), np.int64(1), np.float64(1), np.ones(2),
    np.array([0, 1]), np.array([True, False]), Name("float32"), float("nan"), 1j,
]  # fmt: skip
VALUES = [
    1,
    1.5,
    1j,
    True,
    None,
    "x",
    [1],
    (),
    T(()),
    T((3,)),
    T((2, 3)),
    T((5,)),
    T((2, 3), "complex64"),
    np.ones(3),
    1 << 70,
    float("nan"),
]
MORE_WRONG = [
    -7,
    3,
    1e30,
    (-1,),
    (1 << 40, 1 << 40),
    (1 << 62,),
    T((2, 3), "complex64"),
    T((2, 3), "bool"),
    T((), "float64", fill="odd"),
    Name("complex64"),
    Name("int64"),
    Name("bool"),
    Like("numpy", 2),
]
X, PLACES, SQUARE, SOURCE = T((2, 3)), T((2, 3), "int64", fill="index"), T((3, 3)), T((2, 3), seed=1)
ROWS, ROW, STACK = T((2,), "int64", fill="index"), T((3,)), T((2, 3, 3))
# Functions whose arguments fit too seldom when they are drawn: those of both rooms, of torch and of Tensor alone, and of linalg.
FITTING: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("gather", (X, 1, PLACES)), ("scatter", (X, 1, PLACES, SOURCE)), ("scatter", (X, 0, PLACES, 1.5)), ("scatter_reduce", (X, 1, PLACES, SOURCE, "sum")),
    ("scatter_add", (X, 1, PLACES, SOURCE)), ("index_reduce", (X, 0, ROWS, SOURCE, "prod")), ("index_copy", (X, 0, ROWS, SOURCE)),
    ("index_put", (X, (ROWS,), ROW, True)), ("narrow_copy", (X, 1, 0, 2)), ("split_with_sizes", (X, (1, 2), 1)), ("renorm", (X, 2.0, 0, 1.0)),
    ("permute", (X, (1, 0))), ("moveaxis", (X, 0, 1)), ("movedim", (X, (0, 1), (1, 0))), ("logsumexp", (X, 1)), ("multinomial", (T((2, 3), fill="unit"), 2)),
    ("bincount", (ROWS, None, 3)), ("lerp", (X, SOURCE, 0.5)), ("bmm", (STACK, STACK)), ("mv", (SQUARE, ROW)), ("addmm", (SQUARE, SQUARE, SQUARE)),
    ("addmv", (ROW, SQUARE, ROW)), ("addbmm", (SQUARE, STACK, STACK)), ("baddbmm", (STACK, STACK, STACK)), ("select_scatter", (X, ROW, 0, 1)),
    ("diagonal_scatter", (X, T((2,)), 0, 0, 1)), ("bitwise_xor", (PLACES, PLACES)), ("stft", (T((40,)), 8, 4, None, None, True, "reflect", False, True, True)),
)  # fmt: skip
TORCH = (
    ("where", (T((2, 3), "bool"), X, SOURCE)), ("dot", (ROW, ROW)), ("einsum", ("ij,jk->ik", SQUARE, SQUARE)), ("polygamma", (1, X)), ("lcm", (PLACES, PLACES)),
    ("layer_norm", (X, (3,))), ("bilinear", (X, X, T((4, 3, 3)), T((4,)))), ("conv2d", (T((1, 2, 5, 5)), T((3, 2, 2, 2)), T((3,)), 1, 0, 1, 1)),
    ("conv_transpose2d", (T((1, 2, 5, 5)), T((2, 3, 2, 2)), T((3,)), 1, 0, 0, 1, 1)), ("max_pool2d", (T((1, 2, 4, 4)), 2, 2, 0, 1, False)),
    ("embedding", (T((4, 3)), ROWS, -1)), ("histogramdd", (X, 3)), ("histogram", (X, 3)), ("constant_pad_nd", (X, (1, 1), 2.0)), ("chunk", (X, 2, 1)),
    ("complex", (X, SOURCE)), ("tensor", (1.0,)), ("as_tensor", ([1, 2],)), ("sparse_coo_tensor", (PLACES, ROW, (3, 3))), ("randint", (0, 5, (2, 3))),
    ("normal", (0.0, 1.0, (2, 3))), ("empty_strided", ((2, 3), (3, 1))), ("full", ((2, 3), 1.0)), ("arange", (0, 5, 1)), ("linspace", (0, 1, 5)), ("logspace", (0, 1, 5, 10.0)),
    ("eye", (3, 2)), ("zeros", ((2, 3),)), ("randperm", (5,)), ("tril_indices", (3, 3, 0)), ("bartlett_window", (5, True)),
)  # fmt: skip
TENSOR = (
    ("repeat", (X, (2, 1))), ("tile", (X, (2, 1))), ("unfold", (X, 1, 2, 1)), ("view", (X, (3, 2))), ("expand", (X, (2, 3))), ("as_strided", (X, (2, 2), (1, 1), 0)), ("where", (X, T((2, 3), "bool"), SOURCE)),
    ("scatter_", (X, 1, PLACES, SOURCE)), ("scatter_reduce_", (X, 1, PLACES, SOURCE, "amax")), ("index_copy_", (X, 0, ROWS, SOURCE)), ("index_add_", (X, 0, ROWS, SOURCE)),
    ("index_put_", (X, (ROWS,), ROW, True)), ("renorm_", (X, 2.0, 0, 1.0)), ("new_tensor", (X, [1, 2])), ("to", (X, Name("float64"))), ("type", (X, Name("float64"))), ("item", (T(()),)),
)  # fmt: skip
LINALG = (
    ("solve_triangular", (SQUARE, SQUARE)), ("tensorinv", (T((6, 2, 3)), 1)), ("tensorsolve", (T((2, 3, 6)), X)), ("householder_product", (SQUARE, ROW)), ("cholesky_ex", (SQUARE,)),
    ("vander", (ROW,)), ("norm", (X, 2, 1)), ("matrix_power", (SQUARE, 2)),
)  # fmt: skip
# What their constructors take is not tensors and numbers alone.
_SKIPPED = {
    "Module",
    "Container",
    "Parameter",
    "DataParallel",
    "Buffer",
    "Transformer",
    "UninitializedParameter",
    "UninitializedBuffer",
    "TransformerEncoder",
    "TransformerDecoder",
}


@cache
def _bases() -> tuple[Call, ...]:
    """Return calls that PyTorch accepts: up to two of each function and of each module's constructor."""
    found = []
    for function in functions():
        if function.room == "nn.functional":
            continue
        rng = random.Random(f"{function.room}.{function.name}")
        drawn = (_plain(draw(rng, function, fits=True)) for _ in range(10))
        found += islice(filter(_is_accepted, drawn), 2)
    named = {"": (*FITTING, *TORCH), "Tensor": (*FITTING, *TENSOR), "linalg": LINALG}
    fitting = [Call(room, name, args, {}) for room, lines in named.items() for name, args in lines]
    return (*found, *filter(_is_accepted, fitting), *_modules())


def _plain(call: Call) -> Call:
    """Return a call without NaN, infinities and tensors without elements: PyTorch's LAPACK crashes for some."""
    args = [_finite(value) for value in call.args]
    return call._replace(
        args=tuple(args), kwargs={name: _finite(value) for name, value in call.kwargs.items()}
    )


def _finite(value: Any) -> Any:
    if isinstance(value, T):
        return value._replace(
            shape=value.shape if 0 not in value.shape else (2, 3), fill=value.fill.replace("odd", "normal")
        )
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _modules() -> Iterator[Call]:
    for name in sorted({*dir(torch.nn)} & {*dir(flambeau.nn)} - _SKIPPED):
        kind = getattr(torch.nn, name)
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)) or name.startswith("Lazy"):
            continue
        parameters = [
            p for p in inspect.signature(kind).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        for size in (4, 2):
            given = {
                p.name: size if p.default is p.empty else p.default
                for p in parameters
                if p.name not in ("device", "dtype")
            }
            call = Call("nn", name, (), given)
            if given and _is_accepted(call):
                yield call
                break


def _is_accepted(call: Call) -> bool:
    args, kwargs = _build(call.args, {}), {k: _build(v, {}) for k, v in call.kwargs.items()}
    return not isinstance(_run(torch, call, args, kwargs), Exception)


def _index(rng: random.Random) -> Call:
    """Return a read or a write of elements with an index of which one part is wrong, or the value is."""
    parts = [rng.choice(INDICES) for _ in range(rng.randint(1, 3))]
    parts[rng.randrange(len(parts))] = rng.choice(ODD_INDICES)
    index = parts[0] if len(parts) == 1 and rng.random() < 0.7 else tuple(parts)
    x = T((2, 3), rng.choice(["float32", "int64", "bool"]))
    if rng.random() < 0.5:
        return Call("Tensor", "__getitem__", (x, index), {})
    return Call("Tensor", "__setitem__", (x, index, rng.choice(VALUES)), {})


def calls(seed: int, count: int, only: str = "") -> Iterator[Call]:
    """Yield calls of a seed: one argument of each is wrong, or a part of an index."""
    rng = random.Random(seed)
    bases = [base for base in _bases() if only in ("", base.name)]
    for _ in range(count):
        if only.endswith("item__") or (not only and rng.random() < 0.05):
            yield _index(rng)
            continue
        base = rng.choice(bases)
        args, kwargs = list(base.args), dict(base.kwargs)
        places = [*range(base.room == "Tensor", len(args)), *kwargs]
        if not places:
            args.append(rng.choice(WRONG))
        else:
            place = rng.choice(places)
            (kwargs if isinstance(place, str) else args)[place] = rng.choice([*WRONG, *MORE_WRONG])  # type: ignore[call-overload, index]
        yield Call(base.room, base.name, tuple(args), kwargs)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(__doc__, calls)
