"""Dropout of a CUDA tensor: random numbers, choice and product in one kernel.

Inputs: the tensor, a Philox seed and offset, and the probability of keeping an element. Params: PyTorch's grid rule.
Thread t decides elements 4 t .. 4 t + 3 in memory order by one draw, then the four elements one grid width later, as
PyTorch's fused kernel does when it vectorizes by four. Compiled functions call `dropout_mask` and `dropout_scale`
instead, which have the same bits and can be parts of larger kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.core import random as rng
from flambeau.core.dtype import bool_, dtype, float64, uint64
from flambeau.core.layout import dense_strides, memory_order
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Body, Expression, Kernel, Launch, Source
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    define,
    note,
)
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.pointwise import Pointwise, pointwise
from flambeau.ops.random.random import FLOATS, dims_in_memory_order
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
EACH = 4  # elements for which one draw of Philox suffices


def _scale(a: Any, b: Any, c: Any) -> Any:
    return a * b * c


masked_scale: Pointwise = pointwise(
    "masked_scale",
    _scale,
    3,
    "a b c: what dropout gives back of a gradient a, of the elements b that it kept, scaled by c.",
    dtypes=FLOATS,
    promoting=slice(0, 1),
    scalars=(2,),
    cuda="a * b * c",
    derivative=Derivative(lambda grad, b, c, call: call(masked_scale, (grad, b, c)), None, None),
    examples=((2.0,),),
)
note(masked_scale, "dropout")


dropout_scale: Pointwise = pointwise(
    "dropout_scale",
    lambda a, b, c: a * b * (1 / c),
    3,
    "a b / c: elements a that dropout keeps by the mask b, each with probability c.",
    dtypes=FLOATS,
    promoting=slice(0, 1),
    wide_scalars=True,
    cuda="a * b * (1 / c)",
    derivative=Derivative(lambda grad, b, c, call: call(masked_scale, (grad, b, 1 / c)), None, None),
    examples=((0.5,),),
    listed=False,
)
note(dropout_scale, "dropout")


def _mask_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, _ = params
    out = Meta.contiguous_of(x.shape, bool_, x.device)
    return Signature((out,), (uint64, uint64, float64), params)


def _mask_host(launch: Launch) -> Body:
    x, policy = launch.params
    kind = np.float64 if x.dtype is float64 else np.float32

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        seed, offset, keep = inputs
        kept = _numbers(policy, x.numel, seed, offset) < kind(keep)
        outputs[0][...] = kept.reshape(x.shape)

    return body


def _mask_text(launch: Launch) -> str:
    return f"unit_of(w) < ({'double' if launch.params[0].dtype is float64 else 'float'})c"


_MASK = Expression(
    _mask_text,
    constants=lambda launch: (launch.params[1].threads(launch.params[0].numel),),
    drawn=True,
    header="random",
)
dropout_mask = Op(
    "dropout_mask",
    _mask_rule,
    Kernel("dropout_mask", _mask_host, cuda=_MASK, draws=True, work=element_work.per_element(60, 0.5)),
    (bool_,),
    lambda make, dtype: [],
    derivative=NOT_DIFFERENTIABLE,
)
note(dropout_mask, "dropout")


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"fused_dropout\" not implemented for '{x.dtype.torch_name}'")
    out = x.with_(strides=dense_strides(x.shape, x.strides))
    return Signature((out, out.with_(dtype=bool_)), (x, uint64, uint64, float64), params)


def _host(launch: Launch) -> Body:
    (policy,) = launch.params
    out = launch.outputs[0]
    widen, order = to_computing(out.dtype, out.dtype), memory_order(out.shape, out.strides)

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, seed, offset, keep = inputs
        shape = tuple([x.shape[d] for d in order])
        values = widen(x).transpose(order)
        p = values.dtype.type(keep)
        kept = (_numbers(policy, out.numel, seed, offset) < p).reshape(shape)
        with np.errstate(all="ignore"):
            outputs[0].transpose(order)[...] = values * kept * (1 / p)
        outputs[1].transpose(order)[...] = kept

    return body


def _numbers(policy: DrawGrid, numel: int, seed: int, offset: int) -> Array:
    """Return uniform numbers in (0, 1], in the memory order of the input's elements."""
    draws = policy.draws(seed, offset, numel, EACH)
    return np.concatenate([rng.uniform_float(words).T.reshape(-1) for _, words in draws])[:numel]


def _gaps(launch: Launch) -> list[tuple[int, int]]:
    """Return sizes and strides of an input, innermost dimension first; empty if it has no gaps."""
    x = launch.inputs[0]
    assert isinstance(x, Meta)
    return dims_in_memory_order(x)


def _text(launch: Launch) -> str:
    dims = _gaps(launch)
    steps = "".join(f" at += i % k{j} * k{j + 1}; i /= k{j};" for j in range(1, 2 * len(dims), 2))
    place = f"i64 at = 0;{steps} return at;" if dims else "return i;"
    sizes = "".join(f", i64 k{j}" for j in range(1, 1 + 2 * len(dims)))
    aligned = f"((u64)x | (u64)out) % sizeof(Pack<I0>) == 0 && (u64)mask % {EACH} == 0"
    packed = "false" if dims else f"n % {EACH} == 0 && {aligned}"
    return f"""
template<class A> struct alignas({EACH} * sizeof(A)) Pack {{ A v[{EACH}]; }};
extern "C" __global__ void __launch_bounds__({DrawGrid.BLOCK}) run(
    O0* out, O1* mask, const I0* x, u64 seed, u64 offset, double keep, i64 n{sizes}) {{
  const i64 threads = (i64)gridDim.x * blockDim.x, t = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  typedef decltype(widen(x[0])) W;
  const W p = (W)keep, scale = 1 / p;
  const bool packed = {packed};
  auto place = [=](i64 i) -> i64 {{ {place} }};
  u64 turn = offset >> 2;
  for (i64 at = {EACH} * t; at < n; at += {EACH} * threads, ++turn) {{
    const Words w = philox(seed, turn, t);
    Pack<I0> a;
    Pack<O0> b;
    Pack<O1> kept;
    if (packed) a = *(const Pack<I0>*)(x + at);
#pragma unroll
    for (int j = 0; j < {EACH}; ++j) {{
      if (!packed && at + j < n) a.v[j] = x[place(at + j)];
      kept.v[j] = unit_of(w.w[j]) < p;
      b.v[j] = to<O0>(widen(a.v[j]) * (kept.v[j] ? 1 : 0) * scale);
      if (!packed && at + j < n) out[at + j] = b.v[j], mask[at + j] = kept.v[j];
    }}
    if (packed) *(Pack<O0>*)(out + at) = b, *(Pack<O1>*)(mask + at) = kept;
  }}
}}
"""


def _grid(launch: Launch) -> int:
    policy: DrawGrid = launch.params[0]
    return policy.threads(launch.outputs[0].numel) // DrawGrid.BLOCK


def _constants(launch: Launch) -> list[float]:
    return [launch.outputs[0].numel, *[number for dim in _gaps(launch) for number in dim]]


_FORM = Source(_text, _grid, DrawGrid.BLOCK, _constants, header="random")


def _samples(make: Make, kind: dtype) -> list[Sample]:
    return [
        ((make(3, 5), 5, 8, 0.7), (DrawGrid(132, 2048),)),
        ((make(260, 4), 5, 0, 0.5), (DrawGrid(1, 256),)),
    ]


native_dropout = define(
    Op(
        "native_dropout",
        _rule,
        Kernel("native_dropout", _host, cuda=_FORM, draws=True, work=element_work.per_element(60, 0.5)),
        FLOATS,
        _samples,
        derivative=Derivative(
            lambda grad, out1, d, call: call(masked_scale, (grad, out1, 1 / d)), None, None, None, outputs=1
        ),
    )
)
note(native_dropout, "dropout")
