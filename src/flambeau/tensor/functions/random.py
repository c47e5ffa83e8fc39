"""Random creation, in-place random filling, seeds and generator state."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flambeau.core import errors
from flambeau.core.device import CPU, META, device
from flambeau.core.dtype import BOOL, FLOATING, INTEGRAL, dtype, float64, int64, uint8
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.core.random import PORTABLE, DrawGrid
from flambeau.core.typeinfo import finfo
from flambeau.ops.linalg.matmul import c_name
from flambeau.ops.op import Derivative, Op
from flambeau.ops.pointwise.dtype_promotion import REALS, WIDE_UNSIGNED
from flambeau.ops.random import random as ops
from flambeau.ops.random.dropout import EACH, native_dropout
from flambeau.runtime import current, generator, system
from flambeau.runtime.generator import Generator
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.extents import int_of
from flambeau.tensor.arguments.integers import as_int
from flambeau.tensor.arguments.options import creates, number
from flambeau.tensor.arguments.public import both, function, functions, method
from flambeau.tensor.autograd.composites import Composite, record_composite
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.call import call, call_into
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.functions import creation
from flambeau.tensor.out_argument import deliver
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor


def _fill(op: Op, target: Tensor, source: Generator | None, *parameters: Any, wide: bool = False) -> Tensor:
    """Fill `target` with random numbers, and return it.

    Args:
        op: The operator that draws them.
        target: The tensor.
        source: The generator; None means the default generator of the tensor's device.
        parameters: Parameters of the distribution, which `op` takes.
        wide: True if each number takes two of the four random words that a GPU's thread draws at a time.
    """
    if interception.count and dispatch.is_shown((target,)):
        name = "bernoulli_.float" if op is ops.bernoulli else op.name
        return dispatch.show(name, target, *parameters, **_generator_argument(source))
    where, count = target.meta.device, target.meta.numel
    source = _source(where, source)
    if where is META:
        return target
    if where is CPU:
        with source.lock:
            call_into(op, (target,), (source.engine, *parameters), (target.meta, None))
        return target
    policy = _policy(where)
    increment = policy.increment(count, 2 if wide else 4) if count else 0
    call_into(op, (target,), (*source.reserve(increment), *parameters), (target.meta, policy))
    return target


def _generator_argument(source: Generator | None) -> dict[str, Any]:
    return {} if source is None else {"generator": source}


def _source(where: device, given: Generator | None) -> Generator:
    if where is META:  # nothing is drawn, so any generator will do
        return generator.default_cpu if given is None else given
    if given is not None and not isinstance(given, Generator):
        raise TypeError(f"argument 'generator' must be torch.Generator, not {type(given).__name__}")
    source = generator.default_of(where) if given is None else given
    if source.device.type != where.type:
        raise RuntimeError(
            f"Expected a '{where.type}' device type for generator but found '{source.device.type}'"
        )
    if source.device is not where:
        raise RuntimeError(
            f"Expected a '{where}' generator device but found '{source.device}': a generator serves one device"
        )
    return source


def _new(
    fill: Callable[..., Tensor], op: Op, size: Any, options: Any, source: Generator | None, *parameters: float
) -> Tensor:
    """Return a new tensor of a real distribution: on CUDA drawn at creation, otherwise created and filled."""
    _, meta = creation.find_meta("empty", size, options)
    if meta is None or not _is_drawn_at_once(meta):
        made = creation.empty(*size, **options)
        meta = made.meta
        if not _is_drawn_at_once(meta):
            return fill(made, generator=source)
    policy = _policy(meta.device)
    increment = policy.increment(meta.numel, 2 if meta.dtype is float64 else 4)
    seed, offset = _source(meta.device, source).reserve(increment)
    drawn: Tensor = call(op, (seed, offset, *parameters), (meta, policy))
    return drawn


def _is_drawn_at_once(meta: Meta) -> bool:
    return meta.device.type == "cuda" and not meta.dtype.is_complex and meta.numel > 0


def dropout_on_cuda(x: Tensor, p: float) -> Tensor:
    """Return a CUDA tensor's elements over 1 - p, each zeroed with probability p (0 < p < 1), in one kernel."""
    where = x.meta.device
    policy = _policy(where)
    if interception.count and dispatch.is_shown((x,)):
        out, mask = dispatch.show("native_dropout", x, p, True)
        record_result(native_dropout, (policy,), (x, 0, 0, 1 - p), (out, mask))
        return out
    drawn = generator.default_of(where).reserve(policy.increment(x.meta.numel, EACH))
    out, _ = call(native_dropout, (x, *drawn, 1 - p), (policy,))
    return out


def _policy(where: device) -> DrawGrid:
    """Return the policy by which a device's random kernels assign draws: PyTorch's on this GPU model, or one for all
    GPUs.
    """
    if flags.portable_random:
        return PORTABLE
    context = system.context_of(where)
    if context.policy is None:
        properties = context.driver.device_properties(context.driver_index)
        context.policy = DrawGrid(
            properties.multi_processor_count, properties.max_threads_per_multi_processor
        )
    return context.policy


# -- filling in place -----------------------------------------------------------------------------------


@method
@signatures(
    "Tensor.uniform_(from: float=, to: float=, *, generator: Generator | None=)",
    shown="Tensor.uniform_(from_: float=0, to: float=1, *, generator: Generator | None=None)",
)
def uniform_(self: Tensor, *bounds: float, generator: Generator | None = None, **named: float) -> Tensor:
    """Fill with random numbers of the uniform distribution over [from, to): `uniform_()`, `uniform_(from, to)`.

    Raises:
        RuntimeError: If from > to.
    """
    low, high = _bounds("uniform_", bounds, named, (0.0, 1.0)) if bounds or named else (0.0, 1.0)
    low, high = float(low), float(high)
    if self.dtype.is_complex:
        return _each_part(self, lambda parts: uniform_(parts, low, high, generator=generator))
    if self.dtype.is_floating_point:
        _check_ends(self.dtype, low, high)
    return _fill(ops.uniform, self, generator, float(low), float(high), wide=self.dtype is float64)


def _check_ends(kind: dtype, low: float, high: float) -> None:
    """Raise RuntimeError for ends of `uniform_` that the dtype lacks, or that are not in order."""
    most = finfo(kind).max
    for name, end in (("from", low), ("to", high)):
        if not -most <= end <= most:
            raise RuntimeError(f"{name} is out of bounds for {c_name(kind)}")
    if not low <= high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}"
        )
    if high - low > most:
        raise RuntimeError(
            f"uniform_ expects to-from <= std::numeric_limits<{kind.torch_name}>::max(), but found to={high:g} and "
            f"from={low:g} which result in to-from to exceed the limit"
        )


def _each_part(x: Tensor, fill: Callable[[Tensor], Tensor]) -> Tensor:
    """Fill the real and the imaginary parts in the order of memory."""
    fill(functions["view_as_real"](x))
    return x


def _bounds(
    function: str, given: Sequence[Any], named: dict[str, Any], default: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return the arguments `from` and `to` of the call. `from` is a Python keyword, so keyword arguments are in
    `named`.
    """
    values = dict(zip(("from", "to"), default, strict=True))
    values.update(zip(("from", "to"), given, strict=False))
    if len(given) > 2 or not named.keys() <= values.keys():
        raise TypeError(
            f"{function}() takes from and to, got {len(given)} positional arguments and {sorted(named)}"
        )
    return tuple({**values, **named}.values())


@method
def normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with normal numbers.

    Raises:
        RuntimeError: For std < 0.
    """
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    if self.dtype.is_complex:  # each part has the mean, and half the variance
        return _each_part(self, lambda parts: normal_(parts, mean, std / math.sqrt(2), generator=generator))
    return _fill(ops.normal, self, generator, float(mean), float(std), wide=self.dtype is float64)


@method
@signatures(
    """
Tensor.random_(*, generator: Generator | None=)
Tensor.random_(from: int, to: int | None, *, generator: Generator | None=)
Tensor.random_(to: int, *, generator: Generator | None=)
""",
    shown="Tensor.random_(from_: int=0, to: int | None=None, *, generator: Generator | None=None)",
)
def random_(self: Tensor, *bounds: int, generator: Generator | None = None, **named: int) -> Tensor:
    """Fill with integers in [from, to): `random_()`, `random_(to)`, `random_(from, to)`.

    Without bounds: all non-negative integers that the dtype represents exactly.

    Raises:
        NotImplementedError: Without bounds, for uint16, uint32 and uint64.
        RuntimeError: For an empty range, or one that the dtype cannot represent.
    """
    if self.dtype in WIDE_UNSIGNED and not (bounds or named):
        raise ops.refusal("random_", self.meta)
    if interception.count and dispatch.is_shown((self,)):
        values = [*bounds, *[named[n] for n in ("from", "to") if n in named]]
        overload = ("random_", "random_.to", "random_.from")[len(values)]
        return dispatch.show(overload, self, *values, **_generator_argument(generator))
    low, high, wide = ops.random_range(self.dtype)
    if bounds or named:
        given = (0, *bounds) if len(bounds) == 1 and not named else bounds
        bounds = _bounds("random_", given, named, (low, high))
        low, high = as_int(int(bounds[0])), high if bounds[1] is None else as_int(int(bounds[1]))
        _check_range(low, high, self.dtype)
        wide = ops.is_wide_range(low, high)
    return _fill(ops.integers, self, generator, low, (high - low) % (1 << 64), wide, wide=wide)


def _check_range(low: int, high: int, dtype: dtype) -> None:
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    smallest, largest = _limits(dtype)
    for name, bound in (("from", low), ("to - 1", high - 1)):
        if not smallest <= bound <= largest:
            raise RuntimeError(f"{name} is out of bounds for {c_name(dtype)}: {bound}")


def _limits(dtype: dtype) -> tuple[float, float]:
    if dtype.category == BOOL:
        return 0, 1
    info = np.iinfo(dtype.numpy) if dtype.category == INTEGRAL else finfo(dtype)
    return info.min, info.max


@method
@signatures("""
Tensor.bernoulli_(p: Tensor, *, generator: Generator | None=)
Tensor.bernoulli_(p: float=, *, generator: Generator | None=)
""")
def bernoulli_(self: Tensor, p: float | Tensor = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability `p` (a number, or a tensor of probabilities), else 0."""
    if isinstance(p, Tensor):
        if self.dtype.is_complex:
            raise ops.refusal("bernoulli_ of a tensor", self.meta)
        if not p.dtype.is_floating_point and p.numel():
            raise ops.refusal("bernoulli of probabilities", p.meta)
        return self.copy_(_compare_with_uniform(p.to(self.device).expand(self.shape), generator))
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    return _fill(ops.bernoulli, self, generator, float(p), wide=self.dtype is float64)


def _compare_with_uniform(p: Any, source: Generator | None) -> Tensor:
    if p.device is CPU and not ((p >= 0) & (p <= 1)).all():
        raise RuntimeError(
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error message be improved?  If "
            "so, please report an enhancement request to PyTorch.)"
        )
    u = creation.empty(p.shape, dtype=p.dtype if p.dtype is float64 else flags.default_dtype, device=p.device)
    return uniform_(u, generator=source) < p


@method
def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponential numbers of rate `lambd` > 0."""
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    return _fill(ops.exponential, self, generator, float(lambd), wide=self.dtype is float64)


@method
def cauchy_(
    self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with numbers of the Cauchy distribution, sigma > 0."""
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
    return _fill(ops.cauchy, self, generator, float(median), float(sigma), wide=self.dtype is float64)


@method
def log_normal_(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Fill with exp(normal(mean, std)), std > 0."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std:g}")
    return _fill(ops.log_normal, self, generator, float(mean), float(std), wide=self.dtype is float64)


@method
def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill with the number of trials up to the first success of probability 0 < p < 1."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p:g}")
    return _fill(ops.geometric, self, generator, float(p), wide=self.dtype is float64)


# -- creation -------------------------------------------------------------------------------------------


@function
@creates
@signatures("rand(size: IntTuple, *, generator: Generator | None=, **made)")
def rand(*size: Any, generator: Generator | None = None, out: Tensor | None = None, **options: Any) -> Tensor:
    """Return random numbers of shape `size`, uniformly distributed over [0, 1)."""
    if out is None:
        return _new(uniform_, ops.uniform, size, options, generator, 0.0, 1.0)
    return uniform_(_make_empty(size, out, options), generator=generator)


@function
@creates
@signatures("randn(size: IntTuple, *, generator: Generator | None=, **made)")
def randn(
    *size: Any, generator: Generator | None = None, out: Tensor | None = None, **options: Any
) -> Tensor:
    """Return normal numbers (mean 0, variance 1) of shape `size`."""
    if out is None:
        return _new(normal_, ops.normal, size, options, generator, 0.0, 1.0)
    return normal_(_make_empty(size, out, options), generator=generator)


@function
@creates
@signatures(
    """
randint(high: int, size: IntTuple, *, generator: Generator | None=, **made)
randint(low: int, high: int, size: IntTuple, *, generator: Generator | None=, **made)
""",
    shown="""
randint(low: int=0, high: int | None=None, size: IntTuple | None=None, *, generator: Generator | None=None,
    out: Tensor | None=None, dtype: dtype | None=None, layout: layout | None=strided, device: Device=None,
    requires_grad: bool=False, pin_memory: bool=False)
""",
)
def randint(
    *args: Any, generator: Generator | None = None, out: Tensor | None = None, **options: Any
) -> Tensor:
    """Return integers in [low, high) of a shape: `randint(high, size)`, `randint(low, high, size)`; int64 by
    default.
    """
    low, high, size = _randint_arguments(args, options)
    made = _make_empty((size,), out, options if out is not None else {"dtype": int64, **options})
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    return random_(made, low, high, generator=generator)


def _randint_arguments(args: Sequence[Any], options: dict[str, Any]) -> tuple[int, int, Any]:
    named = [options.pop(name) for name in ("low", "high", "size") if name in options]
    values = [*args, *named]
    if len(values) == 2:
        return 0, as_int(int(values[0])), values[1]
    if len(values) == 3:
        return as_int(int(values[0])), as_int(int(values[1])), values[2]
    raise TypeError(
        f"randint() takes (high, size) or (low, high, size), got {len(values)} positional arguments"
    )


def _make_empty(size: Sequence[Any], out: Tensor | None, options: dict[str, Any]) -> Tensor:
    if out is None:
        return creation.empty(*size, **options)
    if options:
        raise TypeError(f"with out=, {', '.join(sorted(options))} cannot be given: out has its own")
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    return out if tuple(out.shape) == shape else out.resize_(shape)


@function
@creates
@signatures("""
rand_like(input: Tensor, *, generator: Generator | None=, memory_format: memory_format | None=, **made)
""")
def rand_like(input: Tensor, *, generator: Generator | None = None, **options: Any) -> Tensor:
    """Return uniform numbers in [0, 1) with the shape, dtype and device of `input`."""
    return uniform_(creation.empty_like(input, **options), generator=generator)


@function
@creates
@signatures("""
randn_like(input: Tensor, *, generator: Generator | None=, memory_format: memory_format | None=, **made)
""")
def randn_like(input: Tensor, *, generator: Generator | None = None, **options: Any) -> Tensor:
    """Return normal numbers (mean 0, variance 1) with the shape, dtype and device of `input`."""
    return normal_(creation.empty_like(input, **options), generator=generator)


@function
@creates
@signatures(
    """
randint_like(input: Tensor, high: Tensor | int, *, generator: Generator | None=,
    memory_format: memory_format | None=, **made)
randint_like(input: Tensor, low: int, high: int, *, generator: Generator | None=,
    memory_format: memory_format | None=, **made)
""",
    shown="""
randint_like(input: Tensor, low: int=0, high: int | None=None, *, generator: Generator | None=None,
    dtype: dtype | None=None, layout: layout | None=None, device: Device=None, requires_grad: bool=False,
    pin_memory: bool=False, memory_format: memory_format | None=preserve_format)
""",
)
def randint_like(input: Tensor, *bounds: int, generator: Generator | None = None, **options: Any) -> Tensor:
    """Return random integers with the shape, dtype and device of `input`: `(input, high)` or `(input, low, high)`."""
    values = [*bounds, *[options.pop(name) for name in ("low", "high") if name in options]]
    return random_(creation.empty_like(input, **options), *values, generator=generator)


@function
@creates
@signatures("randperm(n: int, *, generator: Generator | None=, **made)")
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: dtype = int64,
    **options: Any,
) -> Tensor:
    """Return a random permutation of 0 .. n - 1, equal to PyTorch's for the seed, on CUDA too."""
    n = int_of(n, "randperm", "n", 1)
    if n < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
    made = _make_empty((n,), out, options if out is not None else {**options, "dtype": dtype})
    if made.device.type != "cuda" or not n:
        return _fill(ops.randperm, made, generator)
    policy = _policy(made.device)
    drawn = _source(made.device, generator).reserve(ops.permutation_increment(policy, n))
    call_into(ops.randperm, (made,), drawn, (made.meta, policy))
    return made


@function
@signatures(
    """
normal(mean: Tensor | float, std: Tensor, *, generator: Generator | None=)
normal(mean: Tensor, std: float=, *, generator: Generator | None=)
normal(mean: float, std: float, size: IntTuple, *, generator: Generator | None=, **made)
""",
    shown="""
normal(mean: Tensor | float, std: Tensor | float=1.0, size: IntTuple | None=None, *,
    generator: Generator | None=None, out: Tensor | None=None, dtype: dtype | None=None,
    layout: layout | None=strided, device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
""",
)
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Return normal numbers with means and standard deviations that are numbers (with `size`) or tensors, which
    broadcast.
    """
    if size is not None:
        mean, std = number(mean, "normal", "mean", 1), number(std, "normal", "std", 2)
        if out is None:  # as in PyTorch, set_default_device() has no effect on this function
            options = {"device": current.default.fallback, **options}
        return normal_(_make_empty((size,), out, options), float(mean), float(std), generator=generator)
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        raise TypeError("normal() of two numbers needs a size")
    like = mean if isinstance(mean, Tensor) else std
    shape = (mean + std).shape if isinstance(mean, Tensor) and isinstance(std, Tensor) else like.shape
    if isinstance(std, Tensor) and std.dtype.is_complex:
        raise RuntimeError("normal expects standard deviation to be non-complex")
    if isinstance(std, Tensor) and std.numel() and std.device is not META and bool((std < 0).any()):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    if out is not None:
        return normal_(out.resize_(shape), generator=generator).mul_(std).add_(mean)

    def draw() -> Tensor:
        made = creation.empty(shape, dtype=like.dtype, device=like.device)
        return normal_(made, generator=generator).mul_(std).add_(mean)

    return record_composite(_NORMAL, (mean, std), draw)


def _no_gradients(metas: Any, grad: Any) -> list[Any]:
    """Return zero gradients, because the drawn numbers are not a function of the parameters."""
    return [None if meta is None else grad.new_zeros(meta.shape) for meta in metas]


_NORMAL = Composite("normal", Derivative(whole=_no_gradients, name="NormalBackward3"))
_BERNOULLI = Composite("bernoulli", Derivative(whole=_no_gradients))
_POISSON = Composite("poisson", Derivative(whole=_no_gradients))


@both
@signatures("""
bernoulli(input: Tensor, *, generator: Generator | None=)
bernoulli(input: Tensor, p: float, *, generator: Generator | None=)
""")
def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None, out: Tensor | None = None
) -> Tensor:
    """Return 1 with the probability in `input` (or `p`), else 0, with the shape and dtype of `input`."""
    if p is not None:
        made = creation.empty_like(input) if out is None else out
        return bernoulli_(made, float(p), generator=generator)
    if not input.dtype.is_floating_point:
        kind = "bernoulli of probabilities" if input.dtype in REALS else "bernoulli_ of a tensor"
        raise ops.refusal(kind, input.meta)
    if out is not None:
        drawn = _compare_with_uniform(input, generator)
        return (out if out.shape == drawn.shape else out.resize_(drawn.shape)).copy_(drawn)
    if interception.count and dispatch.is_shown((input,)):
        return record_composite(
            _BERNOULLI, (input,), lambda: dispatch.show("bernoulli", input, **_generator_argument(generator))
        )
    return record_composite(
        _BERNOULLI, (input,), lambda: _compare_with_uniform(input, generator).to(input.dtype)
    )


@both
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Return numbers of Poisson distributions with the rates in `input`, in its dtype.

    The distribution is PyTorch's, the numbers are not.

    Raises:
        RuntimeError: If a rate is negative.
    """
    rates = input.detach().contiguous()
    if rates.dtype.category != FLOATING:
        raise NotImplementedError(f"\"poisson_cpu\" not implemented for '{rates.dtype.torch_name}'")
    if rates.device is CPU and rates.numel() and not bool((rates >= 0).all()):
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    return record_composite(_POISSON, (input,), lambda: draw_by_rejection(ops.poisson, rates, generator))


def draw_by_rejection(op: Op, like: Tensor, source: Generator | None = None) -> Tensor:
    """Return a new tensor like `like`, the contiguous input of an operator that draws by rejection, from a
    generator.
    """
    where = like.device
    source = _source(where, source)
    made = creation.empty_like(like)
    if not made.numel() or where is META:
        return made
    if where is CPU:
        with source.lock:
            call_into(op, (made,), (like, source.engine), (made.meta, None))
        return made
    call_into(op, (made,), (like, *source.reserve(ops.REJECTION_DRAWS)), (made.meta, _policy(where)))
    return made


@both
def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
    out: Any = None,
) -> Any:
    """Return `num_samples` indices drawn by the weights of each row of `input`, int64.

    With replacement on a CUDA device, the numbers are not PyTorch's; else they are.

    Raises:
        RuntimeError: For weights that are negative, not finite or all zero (read on the host), too few
            to draw from.
    """
    if interception.count and dispatch.is_shown((input,)):
        return dispatch.show("multinomial", input, num_samples, replacement, **_generator_argument(generator))
    weights = input.detach()
    _check_weights(weights, num_samples, replacement)
    if weights.device is CPU:
        _check_probabilities(weights)
    if not replacement or num_samples == 1:
        chosen = _draw_without_replacement(weights, num_samples, generator)
    else:
        chosen = _looked_up(weights, num_samples, generator)
    if out is not None and out.dtype is not int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {out.dtype.torch_name}")
    return deliver(chosen, out)


def _check_weights(weights: Any, count: int, replacement: bool) -> None:
    if weights.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if weights.dtype.category != FLOATING:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {weights.dtype.torch_name}"
        )
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > weights.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if weights.shape[-1] > 1 << 24:
        raise RuntimeError("number of categories cannot exceed 2^24")


def _check_probabilities(weights: Any) -> None:
    if not weights.numel():
        return
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if bool((weights.sum(-1) == 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


def _draw_without_replacement(weights: Any, count: int, source: Generator | None) -> Any:
    """Return draws without replacement: the largest weights over exponential numbers (Efraimidis and Spirakis)."""
    race = weights / exponential_(creation.empty_like(weights), generator=source)
    return race.argmax(-1, keepdim=True) if count == 1 else race.topk(count).indices


def _looked_up(weights: Any, count: int, source: Generator | None) -> Any:
    """Return draws with replacement: uniform numbers looked up in the running sums."""
    wide = weights if weights.dtype is float64 else weights.float()
    sums = wide.cumsum(-1)
    sums = (sums / sums.select(-1, -1).unsqueeze(-1)).double()
    u = uniform_(
        creation.empty((*weights.shape[:-1], count), dtype=float64, device=weights.device), generator=source
    )
    return functions["searchsorted"](sums, u).clamp(max=weights.shape[-1] - 1)


# -- seeds and states -----------------------------------------------------------------------------------


@function
def manual_seed(seed: Any) -> Generator:  # PyTorch converts the seed to an int
    """Seed the default generators of the CPU and of all CUDA devices. Returns the CPU's generator."""
    seed = int(seed)
    generator.seed_all_cuda(seed)
    return generator.default_cpu.manual_seed(seed)


@function
def seed() -> int:
    """Seed all default generators from the operating system's entropy. Returns the seed."""
    drawn = generator.default_cpu.seed()
    generator.seed_all_cuda(drawn)
    return drawn


@function
def initial_seed() -> int:
    """Return the seed that the CPU's default generator was last started from."""
    return generator.default_cpu.initial_seed()


@function
def get_rng_state() -> Tensor:
    """Return the state of the CPU's default generator, a ByteTensor."""
    return get_state(generator.default_cpu)


@function
def set_rng_state(new_state: Tensor) -> None:
    """Set the state of the CPU's default generator."""
    set_state(generator.default_cpu, new_state)


def get_state(self: Generator) -> Tensor:
    """Return the generator's state as a ByteTensor on the CPU: 5,056 bytes for the CPU's, 16 for a CUDA device's."""
    return tensor(list(self.state_bytes()), dtype=uint8, device=CPU)


def set_state(self: Generator, new_state: Tensor) -> Generator:
    """Set the state.

    Raises:
        TypeError: If the state is not a ByteTensor on the CPU.
        RuntimeError: For a wrong size.
    """
    if not isinstance(new_state, Tensor):
        raise TypeError(errors.argument_type("set_state", "new_state", 1, "Tensor", new_state))
    if new_state.dtype is not uint8 or new_state.device is not CPU:
        raise TypeError(f"expected a torch.ByteTensor on the CPU, but got {new_state.type()}")
    self.load_state_bytes(bytes(new_state.contiguous().numpy()))
    return self


Generator.get_state = get_state  # type: ignore[attr-defined]
Generator.set_state = set_state  # type: ignore[attr-defined]


@function
@contextlib.contextmanager
def fork_rng(
    devices: Iterable[Any] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str | None = None,
) -> Iterator[None]:
    """Return a context manager that restores the states of the CPU's and CUDA devices' generators when the block ends.

    Args:
        devices: The CUDA devices, as torch.device, str or index; None for all, with a warning if there are several.
        enabled: False disables the context manager.
        device_type: "cuda", "cpu" (only its generator) or None, like "cuda"; "meta" has no generators.

    Raises:
        RuntimeError: If the type is unknown, or a device does not exist.
    """
    if device_type == "meta" or not enabled:
        yield
        return
    wanted = _devices_to_fork(devices, device_type, f"you have used {_caller} without", _devices_kw)
    sources = [generator.default_cpu, *[generator.default_of(d) for d in wanted]]
    states = [source.state_bytes() for source in sources]
    try:
        yield
    finally:
        for source, state in zip(sources, states, strict=True):
            source.load_state_bytes(state)


def _devices_to_fork(
    devices: Iterable[Any] | None, device_type: str | None, used: str, keyword: str
) -> list[device]:
    """Return the CUDA devices whose generators `fork_rng` restores."""
    kind = "cuda" if device_type is None else device(device_type).type
    if kind not in ("cpu", "cuda"):
        raise RuntimeError(f"torch has no module of `{kind}`: Flambeau has the CPU and CUDA devices")
    if devices is not None:
        given = [device("cuda", d) if isinstance(d, int) else device(d) for d in devices]
        return [d for d in given if d is not CPU]
    count = system.device_count() if kind == "cuda" else 0
    if count > 1:
        warnings.warn(
            f"CUDA reports that you have {count} available devices, and {used} explicitly specifying which devices "
            "are being used. For safety, we initialize *every* CUDA device by default, which can be quite slow if you "
            f"have a lot of CUDAs. Say which with the keyword '{keyword}': `{keyword}=[]` if only the CPU draws, "
            f"`{keyword}=[0]` for device 0 only, `{keyword}=range(torch.cuda.device_count())` for all without this "
            "warning.",
            UserWarning,
            stacklevel=4,
        )
    return [device("cuda", index) for index in range(count)]
