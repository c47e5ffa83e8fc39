"""Launches of operators with drawn sizes, layouts and special values, and their bodies' results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import flambeau
from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.kernel_names import TYPES
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op
from flambeau.tensor.call import signature
from flambeau.testing.operator_properties import Layout, maker, plain, reversed_dims, tensor_of, with_gaps

Array = np.ndarray[Any, Any]
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 65519.0, 3e38)
SIZES = (1, 2, 7, 8, 9, 33, 1030, 2100)
LAYOUTS = (plain, plain, reversed_dims, with_gaps)


def launch_of(op: Op, inputs: list[Any], params: tuple[Any, ...]) -> Launch:
    found = signature(op, inputs, params)
    return Launch(op.kernel, found.outputs, found.inputs, found.params)


def arrays_of(launch: Launch, inputs: list[Any]) -> list[Any]:
    """Return the inputs of a launch as its body receives them: broadcast arrays, and scalars."""
    found: list[Any] = []
    for x, passed in zip(launch.inputs, inputs, strict=True):
        if isinstance(x, Meta):
            found.append(array_at(passed.data_ptr(), x.shape, x.dtype.numpy, x.byte_strides))
        else:
            value = passed.item() if isinstance(passed, flambeau.Tensor) else passed
            found.append(float(value) if x.is_floating_point else int(value))
    return found


def run(body: Any, launch: Launch, arrays: list[Any]) -> list[Array]:
    """Run a body on new outputs of a launch, in their layouts."""
    results = []
    for out in launch.outputs:
        memory = np.zeros(max(out.span, 1), np.uint8)
        results.append(np.ndarray(out.shape, out.dtype.numpy, memory, 0, out.byte_strides))
    with np.errstate(all="ignore"):
        body(results, arrays)
    return results


@st.composite
def calls(
    draw: Callable[..., Any], op: Op, layouts: Sequence[Layout] = LAYOUTS, sizes: Sequence[int] = SIZES
) -> tuple[list[Any], tuple[Any, ...]]:
    kind = draw(st.sampled_from([kind for kind in op.dtypes if kind in TYPES]))
    seed = draw(st.integers(0, 99))
    random = np.random.default_rng(seed)
    inputs, params = draw(st.sampled_from(list(op.samples(maker(kind, seed), kind))))
    old = sorted({n for x in inputs if isinstance(x, np.ndarray) for n in x.shape if n > 1})
    if old:
        which, new = draw(st.sampled_from(old)), draw(st.sampled_from(sizes))
        inputs = [resized(x, which, new, random) for x in inputs]
    if draw(st.booleans()):
        inputs = [spoiled(x, random) for x in inputs]
    chosen = st.sampled_from(layouts)
    return [tensor_of(x, draw(chosen)) if isinstance(x, np.ndarray) else x for x in inputs], params


def resized(x: Any, old: int, new: int, random: np.random.Generator) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    shape = [new if n == old else n for n in x.shape]
    return random.choice(x.reshape(-1), shape) if x.size else np.zeros(shape, x.dtype)


def spoiled(x: Any, random: np.random.Generator) -> Any:
    """Return the array with special values, if it has floats."""
    if not isinstance(x, np.ndarray) or not x.size or np.dtype(x.dtype).kind not in "fV":
        return x
    x = x.copy()
    with np.errstate(all="ignore"):
        x.reshape(-1)[random.integers(0, x.size, 1 + x.size // 20)] = random.choice(SPECIAL)
    return x
