"""Fused kernels: the CUDA source of random chains of pointwise operators gives the bits of separate kernels."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.flags import flags
from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.driver.protocol import FusedStep, Launch
from flambeau.driver.row_shares import can_fuse_held_rows
from flambeau.ops.copy import copy
from flambeau.ops.op import Op, table
from flambeau.ops.pointwise.fused_chains import can_fuse, can_fuse_join, can_fuse_rows, fuse
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
EXACT = ("add", "sub", "mul", "div", "neg", "abs", "relu", "maximum", "lt", "where", "sqrt", "clamp_min")
SEVERAL = {"float32": 4, "float16": 2, "int32": 2, "bfloat16": 1}


class Chain:
    """Operators over arrays, each run alone by a reference and collected for one fused launch."""

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays = arrays
        self.metas: list[Meta] = [emulated.meta_of(x, GPU) for x in arrays]
        self.inputs: list[Any] = []
        self.values: list[Any] = []
        self.places: dict[Any, int] = {}
        self.steps: list[FusedStep] = []
        self.results: list[Any] = []

    def place(self, key: Any, operand: Any, value: Any) -> int:
        if key not in self.places:
            self.places[key] = len(self.inputs)
            self.inputs.append(operand)
            self.values.append(value)
        return self.places[key]

    def run(self, op: Op, *args: Any, params: tuple[Any, ...] = (), alone: Any) -> int:
        """Add an operator on inputs (k >= 0), results (-1 - k) and floats. Returns the result's number, -1 - k."""
        metas = [self.meta(a) for a in args]
        found = op.rule(metas, params + tuple([getattr(flags, name) for name in op.flags]))
        launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
        assert (
            can_fuse(launch) or can_fuse_rows(launch) or can_fuse_join(launch) or can_fuse_held_rows(launch)
        )
        values = [self.value(a, x) for a, x in zip(args, found.inputs, strict=True)]
        sources = []
        for a, x, value in zip(args, found.inputs, values, strict=True):
            key = (a, x) if isinstance(a, int) else object()
            sources.append(a if isinstance(a, int) and a < 0 else self.place(key, x, value))
        self.steps.append(FusedStep(launch, tuple(sources)))
        (result,) = alone(launch, values)
        self.results.append(result)
        return -len(self.steps)

    def meta(self, a: Any) -> Any:
        if not isinstance(a, int):
            return type(a)
        return self.metas[a] if a >= 0 else self.steps[-1 - a].launch.outputs[0]

    def value(self, a: Any, x: Any) -> Any:
        if not isinstance(a, int):
            return a
        array = self.arrays[a] if a >= 0 else self.results[-1 - a]
        return np.broadcast_to(array, x.shape)

    def check(self, stored: list[int], **how: Any) -> None:
        outputs = [self.steps[k].launch.outputs[0] for k in stored]
        launch = fuse(self.steps, self.inputs, stored, outputs).with_(capability=(9, 0))
        for got, k in zip(emulated.emulated(launch, self.values, **how), stored, strict=True):
            same_bits(got, self.results[k], launch.kernel.name)
        for got, k in zip(of_layout(launch, self.values), stored, strict=True):
            assert got.dtype == self.results[k].dtype


def of_layout(launch: Launch, values: list[Any]) -> list[Any]:
    """Return the results of a launch's reference implementation, in the layouts of its outputs."""
    kept = [emulated.Memory(meta.span, False) for meta in launch.outputs]
    outputs = [
        array_at(m.ptr, meta.shape, meta.dtype.numpy, meta.byte_strides)
        for m, meta in zip(kept, launch.outputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        launch.kernel.host(launch)(outputs, list(values))
    return [np.array(x) for x in outputs]


def same_bits(got: Any, want: Any, name: str) -> None:
    a, b = np.ascontiguousarray(got), np.ascontiguousarray(want)
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    words = np.dtype(f"u{a.dtype.itemsize}")
    assert np.all(nan | (a.view(words) == b.view(words))), name


def layouts(kind: Any, seed: int) -> list[list[Any]]:
    make = operator_properties.maker(kind, seed)
    low = {"low": 0.2, "high": 3}
    return [
        [make(3, 700, **low), make(3, 700, **low), make(3, 700, **low)],
        [make(40, 3, **low).T, make(3, 40, **low), make(3, 1, **low)],
        [make(2, 3, 5, **low)[:, ::2], make(5, **low), make(1, **low)],
    ]


def random_chain(choice: random.Random, arrays: list[Any], length: int, alone: Any) -> Chain:
    chain = Chain(arrays)
    shape = np.broadcast_shapes(*[x.shape for x in arrays])
    pool: list[int] = []
    full = [k for k, x in enumerate(arrays) if x.shape == shape]
    for _ in range(length):
        op = table[choice.choice(EXACT)]
        truths = [k for k in pool if chain.meta(k).dtype is flambeau.bool]
        numbers = [k for k in pool if chain.meta(k).dtype is not flambeau.bool]
        first = choice.choice(numbers + full)
        second: Any = choice.choice([*numbers, *range(len(arrays)), 1.5])
        if op.name == "where":
            args: list[Any] = [choice.choice(truths), first, second] if truths else []
        else:
            args = [first] if op.arity == 1 else [first, second]
        if not args or (op.name == "sqrt" and not chain.meta(first).dtype.is_floating_point):
            continue
        pool.append(chain.run(op, *args, alone=alone))
        if choice.random() < 0.2:
            to = choice.choice([flambeau.float16, flambeau.bfloat16, flambeau.float32])
            pool.append(chain.run(copy, pool[-1], params=(to, shape), alone=alone))
    return chain


@pytest.mark.parametrize("kind, at", [(kind, at) for kind, count in SEVERAL.items() for at in range(count)])
def test_random_chain_equals_the_reference_exactly(kind: str, at: int) -> None:
    choice = random.Random(f"{kind} {at}")
    for arrays in [layouts(getattr(flambeau, kind), at)[at % 3]]:
        chain = random_chain(choice, arrays, 9, of_layout)
        last = len(chain.steps) - 1
        chain.check(sorted({last, *choice.sample(range(last), 2)}), tight=bool(at % 2))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_gelu_chain_equals_separate_kernels(kind: str) -> None:
    arrays = layouts(getattr(flambeau, kind), 3)[0]
    chain = Chain(arrays)
    one = {"alone": emulated.emulated}
    cube = chain.run(table["pow"], 0, 3.0, **one)
    inner = chain.run(table["add"], 0, chain.run(table["mul"], cube, 0.044715, **one), **one)
    tanh = chain.run(table["tanh"], inner, **one)
    chain.run(table["mul"], tanh, 1, **one)
    chain.check([len(chain.steps) - 1])
    chain.check(list(range(len(chain.steps))), tight=True)


@pytest.mark.parametrize("at", range(3))
def test_output_may_overwrite_an_input(at: int) -> None:
    arrays = layouts(flambeau.float32, at)[at]
    chain = random_chain(random.Random(f"into {at}"), arrays, 7, of_layout)
    chain.run(table["add"], 0, -1, alone=of_layout)
    last = chain.steps.pop()
    into = last.launch.with_(outputs=(chain.metas[0],))
    steps = [*chain.steps, FusedStep(into, last.sources)]
    launch = fuse(steps, chain.inputs, [len(steps) - 1], into.outputs).with_(capability=(9, 0))
    place = [x for x in chain.inputs if isinstance(x, Meta)].index(chain.metas[0])
    (got,) = emulated.emulated(launch, chain.values, into={0: place}, tight=bool(at % 2))
    same_bits(got, chain.results[-1], launch.kernel.name)
