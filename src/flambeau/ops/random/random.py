"""Random kernels: one operator for each distribution, which fills a tensor from a generator's draws.

Params are (meta of the output, policy). On the CPU the policy is None and the inputs are the engine and the
distribution's parameters; on a CUDA device it is PyTorch's grid rule and the inputs are seed, offset and the
parameters. The numbers equal PyTorch's bit for bit, except for the rounding of log, sin and cos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core import random as rng
from flambeau.core.dtype import (
    FLOATING,
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int64,
    uint64,
)  # fmt: skip
from flambeau.core.layout import is_dense, memory_order
from flambeau.core.meta import Meta
from flambeau.core.random import Array, DrawGrid, MersenneTwister
from flambeau.driver.protocol import Body, Kernel, Launch, Routine, Source
from flambeau.ops.cache_blocks import BLOCK
from flambeau.ops.linalg.matmul import c_name
from flambeau.ops.op import NOT_DIFFERENTIABLE, Op, Operand, Signature, define
from flambeau.ops.pointwise.dtype_promotion import NUMBERS, REALS, WIDE_UNSIGNED
from flambeau.ops.work import element_work

FLOATS = (float16, bfloat16, float32, float64)
# Digits of the significand: the low bits of a word that make a uniform number or a `random_()` integer.
DIGITS = {float16: 11, bfloat16: 8, float32: 24, float64: 53}

# The name of each distribution's routine in PyTorch's errors.
_ROUTINES = {
    "normal_": "normal_kernel_{}", "uniform_": "check_uniform_bounds", "log_normal_": "log_normal_{}",
    "geometric_": "geometric_{}", "random_": "random_kernel_{}", "bernoulli_": "bernoulli_scalar_{}_",
    "randperm": "randperm", "bernoulli_ of a tensor": "bernoulli_tensor_{}_self_",
    "bernoulli of probabilities": "bernoulli_tensor_{}_p_",
}  # fmt: skip

Twister = Callable[[MersenneTwister, int, dtype, Sequence[Any]], Array]
"""The CPU's sampler: (engine, count, dtype, parameters) -> values in order."""
Transform = Callable[[Array, dtype, Sequence[Any]], Array]
"""The GPU's: (Philox words (4, threads), dtype, parameters) -> values (per draw, threads)."""


def refusal(name: str, meta: Meta) -> Exception:
    """Return PyTorch's error for a tensor whose dtype the distribution `name` does not fill."""
    kind = meta.dtype
    if name in ("exponential_", "cauchy_"):
        got = kind.torch_name if name == "exponential_" else c_name(kind)
        return RuntimeError(
            f"{name[:-1].capitalize()} distribution is a continuous probability distribution. dtype must be a "
            f"floating point but you specified {got}"
        )
    routine = _ROUTINES[name].format("cuda" if meta.device.type == "cuda" else "cpu")
    return NotImplementedError(f"\"{routine}\" not implemented for '{kind.torch_name}'")


def _distribution(
    name: str,
    dtypes: tuple[dtype, ...],
    parameters: tuple[dtype, ...],
    twister: Twister,
    transform: Transform,
    wide: Callable[..., bool],
    deal: str,
) -> Op:
    """Return the operator that fills a tensor with numbers of a distribution.

    Args:
        wide: `wide(dtype, range)` returns True if a draw gives two elements of 64 bits instead of four of 32.
        deal: C++ statements that assign draws to elements, with the names of driver/cuda/include/random.cuh; PUT(x)
            stores one element.
    """

    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        meta, policy = params[:2]
        if meta.dtype not in dtypes:
            raise refusal(name, meta)
        return Signature((meta,), (*_source(policy), *parameters), params)

    def host(launch: Launch) -> Body:
        policy: DrawGrid | None = launch.params[1]
        fill = (
            partial(_from_twister, twister)
            if policy is None
            else partial(_from_philox, transform, wide, policy)
        )
        meta = launch.outputs[0]
        order = memory_order(meta.shape, meta.strides)

        def body(outputs: list[Array], inputs: list[Any]) -> None:
            with np.errstate(all="ignore"):
                # PyTorch draws in the order of memory, not of indices, where a dense layout is permuted.
                outputs[0].transpose(order)[...] = fill(meta, inputs).reshape([meta.shape[d] for d in order])

        return body

    form = _cuda_form(deal, parameters)
    kernel = Kernel(
        name, host, cuda=form, draws=True, work=element_work.per_element(85 if "norm" in name else 55, 0.6)
    )
    return define(Op(name, rule, kernel, dtypes, lambda make, dtype: [], derivative=NOT_DIFFERENTIABLE))


def _cuda_form(deal: str, parameters: tuple[dtype, ...]) -> Source:
    """Return the CUDA implementation; p0, p1, ... are the distribution's parameters, n the number of elements."""
    declared = "".join(f", {_WIRE[kind]} p{at}" for at, kind in enumerate(parameters))

    def text(launch: Launch) -> str:
        dims = dims_in_memory_order(launch.outputs[0])
        sizes = "".join(f", i64 k{at}" for at in range(1, 1 + 2 * len(dims)))
        step = "".join(f" at += i % k{at} * k{at + 1}; i /= k{at};" for at in range(1, 2 * len(dims), 2))
        place = f"i64 at = 0;{step} return at;" if dims else "return i;"
        return f"""
typedef drawn_<O0>::type F;
constexpr int N = drawn_<O0>::each;
#define PUT(x) [=](i64 i, auto v) {{ out[place(i)] = to<O0>(x); }}
extern "C" __global__ void __launch_bounds__({DrawGrid.BLOCK}) run(
    O0* out, u64 seed, u64 offset{declared}, i64 n{sizes}) {{
  auto place = [=](i64 i) -> i64 {{ {place} }};
  {deal}
}}
"""

    def constants(launch: Launch) -> list[float]:
        out = launch.outputs[0]
        return [out.numel, *[number for dim in dims_in_memory_order(out) for number in dim]]

    def grid(launch: Launch) -> int:
        policy: DrawGrid = launch.params[1]
        return policy.threads(launch.outputs[0].numel) // DrawGrid.BLOCK

    return Source(text, grid, DrawGrid.BLOCK, constants, header="random")


_WIRE = {float64: "double", int64: "i64", uint64: "u64", bool_: "i64"}


def dims_in_memory_order(out: Meta) -> list[tuple[int, int]]:
    """Return (size, stride) of each dimension, innermost first; an empty list if the memory has no gaps."""
    if is_dense(out.shape, out.strides):
        return []
    return [(out.shape[d], out.strides[d]) for d in reversed(memory_order(out.shape, out.strides))]


def _dealt(draw: str, value: str) -> str:
    """Return the C++ of a distribution that draws floats v by `draw` and stores `value` for each."""
    return f"deal<N, F>(seed, offset, n, [](const Words& w, F (&v)[N]) {{ {draw}(w, v); }}, PUT(({value})));"


def _source(policy: DrawGrid | None) -> tuple[dtype | type[object], ...]:
    """Return the first inputs of a launch: the CPU's random engine, or a CUDA generator's seed and offset."""
    return (object,) if policy is None else (uint64, uint64)


def _from_twister(twister: Twister, meta: Meta, inputs: Sequence[Any]) -> Array:
    engine, *parameters = inputs
    return twister(engine, meta.numel, meta.dtype, parameters).astype(meta.dtype.numpy, copy=False)


def _from_philox(
    transform: Transform, wide: Callable[..., bool], policy: DrawGrid, meta: Meta, inputs: Sequence[Any]
) -> Array:
    seed, offset, *parameters = inputs
    per_draw = 2 if wide(meta.dtype, parameters) else 4
    out = np.empty(meta.numel, meta.dtype.numpy)
    for start, words in policy.draws(seed, offset, meta.numel, per_draw):
        values = transform(words, meta.dtype, parameters).reshape(-1)
        part = out[start : start + values.size]
        part[...] = values[: part.size].astype(meta.dtype.numpy, copy=False)
    return out


def _is_double(dtype: dtype, parameters: Sequence[Any]) -> bool:
    return dtype is float64


# -- uniform --------------------------------------------------------------------------------------------


def _twist_uniform(engine: MersenneTwister, count: int, dtype: dtype, bounds: Sequence[Any]) -> Array:
    out = np.empty(count, dtype.numpy)
    for start in range(0, count, BLOCK):
        part = out[start : start + BLOCK]
        part[...] = _uniform_block(engine, part.size, dtype, bounds)
    return out


def _uniform_block(engine: MersenneTwister, count: int, dtype: dtype, bounds: Sequence[Any]) -> Array:
    low, high = bounds
    if dtype is float64:
        drawn = _fused_double(_unit_double(engine, count), float(high - low), float(low))
    else:
        low, high = np.float32(low), np.float32(high)
        drawn = _unit_float(engine, count)
        if low != 0 or high != 1:
            drawn = _fused_multiply_add(drawn, high - low, low)
    kind = dtype.numpy.type
    stored = drawn.astype(dtype.numpy, copy=False)
    at_bound = stored == kind(high)
    return (
        np.where(at_bound, kind(low), stored) if at_bound.any() else stored
    )  # [low, high) after rounding too


def _unit_float(engine: MersenneTwister, count: int) -> Array:
    """Convert the low 24 bits of each word to a float32 in [0, 1)."""
    words = engine.words(count).astype(np.uint32) & np.uint32((1 << 24) - 1)
    return words.view(np.int32).astype(np.float32) * np.float32(2.0**-24)


def _unit_double(engine: MersenneTwister, count: int) -> Array:
    """Convert the low 53 bits of each pair of words to a float64 in [0, 1)."""
    return (engine.long_words(count) & np.uint64((1 << 53) - 1)).astype(np.float64) * 2.0**-53


def _philox_uniform(words: Array, dtype: dtype, bounds: Sequence[Any]) -> Array:
    low, high = bounds
    if dtype is float64:
        values = _philox_unit(words, dtype) * (high - low) + low
        return np.where(values == high, low, values)
    low, high = np.array([low, high]).astype(dtype.numpy).astype(np.float32)
    # PyTorch computes the range in the tensor's dtype
    span = (high - low).astype(dtype.numpy).astype(np.float32)
    stored = _fused_multiply_add(_philox_unit(words, dtype), span, low).astype(dtype.numpy)
    # cuRAND's interval is (0, 1], PyTorch's [0, 1): a value that rounds to the bound becomes the other bound.
    return np.where(stored == dtype.numpy.type(high), dtype.numpy.type(low), stored)


def _philox_unit(words: Array, dtype: dtype) -> Array:
    return rng.uniform_double(words) if dtype is float64 else rng.uniform_float(words)


def _fused_multiply_add(a: Array, b: Any, c: Any) -> Array:
    """Return a * b + c in float32 with one rounding, like the GPU's fused multiply-add; the product is exact in
    float64.
    """
    return (a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(np.float32)


def _fused_double(a: Array, b: float, c: float) -> Array:
    """Return a * b + c in float64 with one rounding, like PyTorch on CPUs: rounding errors are added last."""
    if not abs(b) < 2.0**900:  # splitting it would overflow
        return a * b + c
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(np.float64(b))
    lost = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    back = total - product
    return total + (((product - (total - back)) + (c - back)) + lost)


def _halves(x: Any) -> tuple[Any, Any]:
    """Return x as the sum of two numbers with 26 bits each, whose products are exact (Veltkamp)."""
    wide = x * 134217729.0
    high = wide - (wide - x)
    return high, x - high


uniform = _distribution(
    "uniform_", FLOATS, (float64,) * 2, _twist_uniform, _philox_uniform, _is_double,
    _dealt("unit", "uniform<O0>(v, p0, p1)"),
)  # fmt: skip


# -- normal ---------------------------------------------------------------------------------------------


def _twist_normal(engine: MersenneTwister, count: int, dtype: dtype, parameters: Sequence[Any]) -> Array:
    mean, std = parameters
    if count < 16:
        return np.array(_normals_in_turn(engine, count)) * std + mean
    wide = dtype is float64
    unit, kind = (_unit_double, np.float64) if wide else (_unit_float, np.float32)
    whole = count // 16 * 16
    values = np.empty(count, kind)
    # float32 and float64 first draw for every element; narrower dtypes draw for complete vectors only
    drawn = count if dtype.itemsize >= 4 else whole
    values[:drawn] = unit(engine, drawn)
    values[:whole] = _box_muller(values[:whole].reshape(-1, 2, 8), kind(mean), kind(std))
    if whole < count:  # the last sixteen are drawn again, so that every vector is full
        values[-16:] = _box_muller(unit(engine, 16).reshape(1, 2, 8), kind(mean), kind(std))
    return values


def _box_muller(pairs: Array, mean: Any, std: Any) -> Array:
    """Convert (n, 2, 8) uniform numbers to 16 n normal ones: eight of the cosine, then eight of the sine."""
    kind = pairs.dtype.type
    radius = np.sqrt(kind(-2) * np.log(kind(1) - pairs[:, 0]))
    angle = kind(2 * np.pi) * pairs[:, 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return (both * std + mean).reshape(-1)


def _normals_in_turn(engine: MersenneTwister, count: int) -> list[float]:
    """Draw normal numbers like PyTorch for small tensors: pairs of float64 numbers, of which the engine caches the
    second.
    """
    out: list[float] = []
    if count and engine.normal is not None:
        out.append(engine.normal)
        engine.normal = None
    pairs = (count - len(out) + 1) // 2
    uniforms = _unit_double(engine, 2 * pairs)
    radius, angle = np.sqrt(-2.0 * np.log1p(-uniforms[1::2])), 2 * np.pi * uniforms[0::2]
    out += np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1).tolist()
    if len(out) > count:
        engine.normal = out.pop()
    return out


def _philox_normal(words: Array, dtype: dtype, parameters: Sequence[Any]) -> Array:
    mean, std = parameters
    if dtype is float64:
        return rng.normal_double(words) * std + mean
    return _fused_multiply_add(rng.normal_float(words), np.float32(std), np.float32(mean))


normal = _distribution(
    "normal_", FLOATS, (float64,) * 2, _twist_normal, _philox_normal, _is_double,
    _dealt("bell", "normal(v, p0, p1)"),
)  # fmt: skip


# -- integers -------------------------------------------------------------------------------------------


def _is_wide(dtype: dtype, parameters: Sequence[Any]) -> bool:
    return bool(parameters[2])


def _twist_integers(engine: MersenneTwister, count: int, dtype: dtype, parameters: Sequence[Any]) -> Array:
    words = engine.long_words(count) if _is_wide(dtype, parameters) else engine.words(count)
    return _into_range(words, dtype, parameters)


def _philox_integers(words: Array, dtype: dtype, parameters: Sequence[Any]) -> Array:
    if _is_wide(dtype, parameters):  # the first word of a pair is the high half
        words = (words[0::2] << rng.SHIFT) | words[1::2]
    return _into_range(words, dtype, parameters)


def _into_range(words: Array, dtype: dtype, parameters: Sequence[Any]) -> Array:
    """Return words % span + low. A span of 0 stands for the whole 64-bit range."""
    low, span, _ = parameters
    values = words % np.uint64(span) if span else words
    values = values + np.uint64(low % (1 << 64))
    return values if dtype is uint64 else values.view(np.int64)


_DEAL_INTEGERS = """
  if (p2) deal<2, u64>(seed, offset, n, [](const Words& x, u64 (&v)[2]) {
    v[0] = (u64)x.w[0] << 32 | x.w[1]; v[1] = (u64)x.w[2] << 32 | x.w[3];
  }, PUT(into_range(v, p0, p1)));
  else deal<4, u32>(seed, offset, n, [](const Words& x, u32 (&v)[4]) {
    for (int j = 0; j < 4; ++j) v[j] = x.w[j];
  }, PUT(into_range(v, p0, p1)));
"""
integers = _distribution(
    "random_", (*REALS, *WIDE_UNSIGNED), (int64, uint64, bool_), _twist_integers, _philox_integers, _is_wide,
    _DEAL_INTEGERS,
)  # fmt: skip


def random_range(dtype: dtype) -> tuple[int, int, bool]:
    """Return (low, high, wide) of `random_()` without bounds: all non-negative integers exact in the dtype."""
    wide = dtype.itemsize == 8
    if dtype.category == FLOATING:
        return 0, (1 << DIGITS[dtype]) + 1, wide
    if dtype is bool_:
        return 0, 2, wide
    return 0, 1 << (dtype.itemsize * 8 - dtype.is_signed), wide


def is_wide_range(low: int, high: int) -> bool:
    """Return True if `random_(low, high)` takes 64 bits for each element, by PyTorch's limit."""
    return high - low >= 1 << 28


# -- others: a uniform number through the inverse of the distribution ------------------------------------


def _by_inverse(
    name: str, dtypes: tuple[dtype, ...], arity: int, inverse: Callable[..., Array], value: str
) -> Op:
    """Return the operator of a distribution that applies its inverse cumulative function to uniform numbers.

    The uniform numbers are float64 on the CPU; on a GPU they have the dtype's precision.
    """

    def twister(engine: MersenneTwister, count: int, dtype: dtype, parameters: Sequence[Any]) -> Array:
        return inverse(_unit_double(engine, count), False, *parameters)

    def transform(words: Array, dtype: dtype, parameters: Sequence[Any]) -> Array:
        return inverse(_philox_unit(words, dtype), True, *parameters)

    deal = _dealt("unit", value)
    return _distribution(name, dtypes, (float64,) * arity, twister, transform, _is_double, deal)


def _bernoulli(u: Array, cuda: bool, p: float) -> Array:
    return u < u.dtype.type(p)


def _exponential(u: Array, cuda: bool, rate: float) -> Array:
    one = u.dtype.type(1)
    if not cuda:
        return -np.log1p(-u) / u.dtype.type(rate)
    eps = np.finfo(u.dtype).eps / 2  # excludes 0, which the logarithm of a number rounded to 1 would give
    return np.where(u >= one - eps, -eps, np.log(u)) * (-one / u.dtype.type(rate))


def _cauchy(u: Array, cuda: bool, median: float, sigma: float) -> Array:
    kind = u.dtype.type
    if kind is np.float32:  # only on a GPU, where PyTorch's fast tangent overflows at the ends
        eps = np.finfo(kind).eps
        u = np.clip(u, eps, 1 - eps)
    return kind(median) + kind(sigma) * np.tan(kind(np.pi) * (u - kind(0.5)))


def _geometric(u: Array, cuda: bool, p: float) -> Array:
    kind = u.dtype.type
    return np.ceil(np.log(u) / np.log1p(-kind(p)))


bernoulli = _by_inverse("bernoulli_", REALS, 1, _bernoulli, "v < (F)p0 ? F(1) : F(0)")
exponential = _by_inverse("exponential_", FLOATS, 1, _exponential, "exponential(v, p0)")
cauchy = _by_inverse("cauchy_", FLOATS, 2, _cauchy, "cauchy(v, p0, p1)")
geometric = _by_inverse("geometric_", NUMBERS, 1, _geometric, "geometric(v, p0)")


def _twist_log_normal(engine: MersenneTwister, count: int, dtype: dtype, parameters: Sequence[Any]) -> Array:
    mean, std = parameters
    return np.exp(np.array(_normals_in_turn(engine, count)) * std + mean)


def _philox_log_normal(words: Array, dtype: dtype, parameters: Sequence[Any]) -> Array:
    return np.exp(_philox_normal(words, dtype, parameters))


log_normal = _distribution(
    "log_normal_", FLOATS, (float64,) * 2, _twist_log_normal, _philox_log_normal, _is_double,
    _dealt("bell", "fast_exp(normal(v, p0, p1))"),
)  # fmt: skip


# -- permutations ---------------------------------------------------------------------------------------


def _randperm_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    meta, policy = params[:2]
    if meta.dtype not in NUMBERS:
        raise refusal("randperm", meta)
    return Signature((meta,), _source(policy), params)


def _randperm_host(launch: Launch) -> Body:
    policy: DrawGrid | None = launch.params[1]
    count = launch.outputs[0].numel

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        order = _shuffle(inputs[0], count) if policy is None else _by_keys(policy, count, *inputs)
        outputs[0][...] = order.astype(launch.outputs[0].dtype.numpy)

    return body


def _shuffle(engine: MersenneTwister, count: int) -> Array:
    """Return a random permutation by Fisher and Yates, as PyTorch's CPU computes it. Each swap depends on the one
    before.
    """
    out, left = list(range(count)), np.arange(count, 1, -1, dtype=np.uint64)
    if count > 1:
        others = count - left + engine.words(count - 1) % left
        for i, other in enumerate(others.tolist()):
            out[i], out[other] = out[other], out[i]
    return np.array(out, np.int64)


def permutation_increment(policy: DrawGrid, count: int) -> int:
    """Return by how much a permutation advances the generator: for its keys, and for each position."""
    return policy.increment(count, 2) + -(-count // 4) * 4


def _by_keys(policy: DrawGrid, count: int, seed: int, offset: int) -> Array:
    """Return a permutation as GPUs compute it. See Note [Permutations of GPUs]."""
    bits = rng.permutation_bits(count)
    width = 32 if bits <= 32 else 64
    keys = np.empty(count, np.uint64)
    for start, words in policy.draws(seed, offset, count, 2):
        drawn = (words[0::2] << rng.SHIFT) | words[1::2]
        values = _into_range(drawn, uint64, (1 << width - 1, (1 << width) - 1, True))
        part = keys[start : start + values.size]
        part[...] = values.reshape(-1)[: part.size]
    keys &= np.uint64((1 << bits) - 1)
    if bits == width:  # keys are signed
        keys ^= np.uint64(1 << width - 1)
    order = np.argsort(keys, kind="stable")
    return _islands_shuffled(order, keys[order], seed, offset + policy.increment(count, 2))


def _islands_shuffled(order: Array, keys: Array, seed: int, offset: int) -> Array:
    same = np.concatenate([[False], keys[1:] == keys[:-1], [False]])
    starts = np.flatnonzero(~same[:-1] & same[1:])
    for start in starts.tolist():
        size = int(np.argmin(same[start + 1 :])) + 1
        drawn = [rng.philox(seed, offset // 4 + turn, 1, start)[:, 0] for turn in range(-(-(size - 1) // 4))]
        for i, word in zip(range(size - 1, 0, -1), np.concatenate(drawn).tolist(), strict=False):
            at, other = start + i, start + word % (i + 1)
            order[at], order[other] = order[other], order[at]
    return order


randperm = define(
    Op(
        "randperm",
        _randperm_rule,
        Kernel("randperm", _randperm_host, cuda=Routine("index.permutation:randperm"), draws=True),
        NUMBERS,
        lambda make, dtype: [],
        derivative=NOT_DIFFERENTIABLE,
    )
)


# -- numbers of distributions whose parameters are an input: by rejection ------------------------------------

TURNS = 128  # the maximum number of draws for each number; more rejections are practically impossible
REJECTION_DRAWS = 4 * TURNS  # random numbers by which a kernel advances the generator
Draw = Callable[[int], tuple[Array, Array]]  # turn -> two uniform numbers in (0, 1] for each element


def by_rejection(name: str, numbers: Callable[[Array, Draw], Array], source: str) -> Op:
    """Return the operator `name`, which draws one number for each element of an input.

    Args:
        numbers: Draws the numbers on the host, from the input as float64.
        source: The text of the kernel, which uses `random.cuh` and draws equal numbers.
    """
    grid = Source(
        lambda launch: source,
        lambda launch: -(-launch.outputs[0].numel // DrawGrid.BLOCK),
        DrawGrid.BLOCK,
        lambda launch: (launch.outputs[0].numel,),
        header="random",
    )
    return define(
        Op(
            name,
            _rejection_rule,
            Kernel(name, partial(_rejection_host, numbers), cuda=grid, draws=True),
            FLOATS,
            lambda make, dtype: [],
            derivative=NOT_DIFFERENTIABLE,
        )
    )


def _rejection_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    meta, policy = params[:2]
    return Signature((meta,), (operands[0], *_source(policy)), params)


def _rejection_host(numbers: Callable[[Array, Draw], Array], launch: Launch) -> Body:
    policy: DrawGrid | None = launch.params[1]
    kind = launch.outputs[0].dtype.numpy

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        given = inputs[0].reshape(-1).astype(np.float64)
        with np.errstate(all="ignore"):
            values = numbers(given, _pairs(policy, given.size, *inputs[1:]))
        outputs[0][...] = values.astype(kind).reshape(outputs[0].shape)

    return body


def _pairs(policy: DrawGrid | None, count: int, *source: Any) -> Draw:
    """Return a function that draws pairs of uniform numbers: from the CPU's random engine, or by Philox from a
    counter.
    """
    if policy is None:
        engine = source[0]
        return lambda turn: (1 - _unit_double(engine, count), 1 - _unit_double(engine, count))
    seed, offset = source

    def draw(turn: int) -> tuple[Array, Array]:
        one, two = rng.uniform_double(rng.philox(seed, offset // 4 + turn, count))
        return one, two

    return draw


# -- Poisson: of an input of rates ------------------------------------------------------------------------

_STEP = 10.0  # rates from which numbers are drawn by rejection


def _poisson(rates: Array, draw: Draw) -> Array:
    """Draw Poisson numbers: small rates by inversion, large ones by transformed rejection (Hoermann, 1993)."""
    u, v = draw(0)
    small = rates < _STEP
    out = np.where(small, _poisson_inverse(np.where(small, rates, 0.0), u), 0.0)
    left, turn = ~small, 0
    while left.any() and turn < TURNS:
        value, good = _poisson_proposal(rates, u, v)
        out = np.where(left & good, value, out)
        left &= ~good
        turn += 1
        u, v = draw(turn) if left.any() else (u, v)
    return np.where(np.isnan(rates), np.nan, out)


def _poisson_inverse(rates: Array, u: Array) -> Array:
    term = np.exp(-rates)
    below, count = term.copy(), np.zeros(rates.shape)
    for k in range(1, 100):
        more = u > below
        if not more.any():
            break
        count += more
        term = term * rates / k
        below = below + term
    return count


def _poisson_proposal(rates: Array, u: Array, v: Array) -> tuple[Array, Array]:
    from scipy.special import gammaln  # imported here because it is slow to import

    log_rate = np.log(rates)
    b = 0.931 + 2.53 * np.sqrt(rates)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2)
    u = u - 0.5
    side = 0.5 - np.abs(u)
    value = np.floor((2 * a / side + b) * u + rates + 0.43)
    accept = (side >= 0.07) & (v <= quick)
    reject = (value < 0) | ((side < 0.013) & (v > side))
    left = np.log(v) + np.log(inverse_alpha) - np.log(a / (side * side) + b)
    return value, accept | (~reject & (left <= -rates + value * log_rate - gammaln(value + 1)))


_POISSON = """
__device__ double poisson(double rate, u64 seed, u64 counter, u64 element) {
  double p[2];
  unit(philox(seed, counter, element), p);
  if (rate != rate) return rate;
  if (rate < 10) {
    double term = exp(-rate), below = term;
    int k = 0;
    while (p[0] > below && k < 99) { ++k; term = term * rate / k; below += term; }
    return k;
  }
  const double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b, quick = 0.9277 - 3.6224 / (b - 2);
  for (int turn = 0; turn < 128; ++turn) {
    if (turn) unit(philox(seed, counter + turn, element), p);
    const double u = p[0] - 0.5, v = p[1], side = 0.5 - fabs(u);
    const double value = floor((2 * a / side + b) * u + rate + 0.43);
    if (side >= 0.07 && v <= quick) return value;
    if (value < 0 || (side < 0.013 && v > side)) continue;
    if (log(v) + log(1.1239 + 1.1328 / (b - 3.4)) - log(a / (side * side) + b)
        <= -rate + value * log(rate) - lgamma(value + 1)) return value;
  }
  return 0;
}
extern "C" __global__ void run(O0* out, const I0* rates, u64 seed, u64 offset, i64 n) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i < n) out[i] = to<O0>(poisson(to<double>(rates[i]), seed, offset >> 2, i));
}
"""

poisson = by_rejection("poisson", _poisson, _POISSON)
