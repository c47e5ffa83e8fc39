"""`torch.func.vmap`: a function of samples as a function of batches.

# Note [vmap as a loop]
Problem: `vmap(f)` must give what `f` gives for each sample, for any `f`, with gradients.
Rule: `f` is called once for each sample; the results are stacked.
Why: a loop is exact for every operator, and samples, stacks and gradients need no their own rules, also nested.
Consequences: Python side effects of `f` happen once for each sample. Programs that branch on values or call `item()`
run, where PyTorch raises. The cost grows with the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.runtime import generator
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor
from flambeau.utils import _pytree as pytree

_RANDOM = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' "
    "randomness flags on vmap or perform the randomness operation out of vmap"
)


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that applies `func` to each sample of a batch and stacks the results.

    Args:
        func: A function of tensors that returns tensors.
        in_dims: The dimension of each input that counts samples: one for all, or nested as the inputs are. None leaves
            an input whole. Keyword arguments are always left whole.
        out_dims: The dimension of each output that counts samples; None for an output that is equal for all samples.
        randomness: "error" refuses random numbers, "same" draws the same for each sample, "different" draws again.
        chunk_size: The number of samples to compute at a time. All values give equal results.

    Returns:
        The function of batches.

    Raises:
        RuntimeError: If `randomness` is none of these.
        ValueError: If `chunk_size` is not positive.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
        )
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @wraps(func)
    def call_on_batches(*args: Any, **kwargs: Any) -> Any:
        size, leaves, dims, spec = _take_inputs(func, in_dims, args)

        def call_on_sample(index: int) -> Any:
            values = [
                leaf if dim is None else _select(leaf, dim, index)
                for leaf, dim in zip(leaves, dims, strict=True)
            ]
            return func(*pytree.tree_unflatten(values, spec), **kwargs)

        with _Draws(randomness) as draws:
            results = [draws.run(call_on_sample, index) for index in range(max(size, 1))]
        return _stack_outputs(func, results, out_dims, size)

    return call_on_batches


def _select(leaf: Tensor, dim: int, index: int) -> Tensor:
    """Return a sample; of an empty batch, zeros in the shape of one."""
    if leaf.shape[dim] == 0:
        return leaf.sum(dim)
    return leaf.select(dim, index)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", None) or repr(func)


# -- inputs -----------------------------------------------------------------------------------------------------


def _take_inputs(func: Any, in_dims: Any, args: tuple[Any, ...]) -> tuple[int, list[Any], list[Any], Any]:
    """Return the number of samples, the leaves of the inputs, their dimensions and their nesting.

    Raises:
        ValueError: If inputs and `in_dims` do not fit each other.
    """
    name = _name(func)
    head = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): "
    if not isinstance(in_dims, int | tuple):
        raise ValueError(
            f"{head}expected `in_dims` to be int or a (potentially nested) tuple matching the structure of inputs, "
            f"got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a "
            "function with no inputs. The latter is unsupported."
        )
    leaves, spec = pytree.tree_flatten(args)
    dims = pytree._broadcast_to_and_flatten(in_dims, spec)
    if dims is None:
        raise ValueError(
            f"{head}in_dims is not compatible with the structure of `inputs`. in_dims has structure "
            f"{pytree.tree_structure(in_dims)} but inputs has structure {spec}."
        )
    dims = [_check_dim(head, leaf, dim) for leaf, dim in zip(leaves, dims, strict=True)]
    sizes = [leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    if not sizes:
        raise ValueError("vmap: Expected at least one Tensor to vmap over")
    if any(size != sizes[0] for size in sizes):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return sizes[0], leaves, dims, spec


def _check_dim(head: str, leaf: Any, dim: Any) -> int | None:
    if dim is None:
        return None
    if not isinstance(dim, int):
        raise ValueError(
            f"{head}Got in_dim={dim} for an input but in_dim must be either an integer dimension or None."
        )
    if not isinstance(leaf, Tensor):
        raise ValueError(
            f"{head}Got in_dim={dim} for an input but the input is of type {type(leaf)}. We cannot vmap over "
            "non-Tensor arguments, please use None as the respective in_dim"
        )
    count = leaf.dim()
    if not -count <= dim < count:
        raise ValueError(
            f"{head}Got in_dim={dim} for some input, but that input is a Tensor of dimensionality {count} so expected "
            f"in_dim to satisfy -{count} <= in_dim < {count}."
        )
    return dim % count


# -- outputs ----------------------------------------------------------------------------------------------------


def _stack_outputs(func: Any, results: Sequence[Any], out_dims: Any, size: int) -> Any:
    """Return the results of all samples as one.

    Raises:
        ValueError: If an output is not a tensor, or `out_dims` does not fit the outputs.
    """
    name = _name(func)
    flat = [pytree.tree_leaves(result) for result in results]
    spec = pytree.tree_structure(results[0])
    dims = _spread_out_dims(name, out_dims, spec)
    stacked = [
        _stack(name, samples, dim, size) for samples, dim in zip(zip(*flat, strict=True), dims, strict=True)
    ]
    return pytree.tree_unflatten(stacked, spec)


def _spread_out_dims(name: str, out_dims: Any, spec: Any) -> list[Any]:
    if not all(each is None or isinstance(each, int) for each in pytree.tree_leaves(out_dims)):
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims}): `out_dims` must be an int, None or a python collection of ints "
            "representing where in the outputs the vmapped dimension should appear."
        )
    if spec.is_leaf() and isinstance(out_dims, tuple) and len(out_dims) == 1:
        return [out_dims[0]]
    dims = pytree._broadcast_to_and_flatten(out_dims, spec)
    if dims is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the structure of "
            f"`outputs`. out_dims has structure {pytree.tree_structure(out_dims)} but outputs has structure {spec}."
        )
    return dims


def _stack(name: str, samples: Sequence[Any], dim: int | None, size: int) -> Any:
    first = samples[0]
    if dim is None:
        if not all(_is_equal(first, other) for other in samples[1:]):
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None"
            )
        return first
    for sample in samples:
        if not isinstance(sample, Tensor):
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(sample)}. Did you mean to set "
                "out_dims= to None for output?"
            )
    stacked = functions["stack"](list(samples), dim)
    return stacked if size else stacked.narrow(dim, 0, 0)


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two samples give one output."""
    if one is other:
        return True
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return bool(one == other)
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    with no_grad():
        if one.is_floating_point() or one.is_complex():
            return bool(functions["isclose"](one, other, rtol=0, atol=0, equal_nan=True).all())
        return bool(functions["equal"](one, other))


# -- random numbers ---------------------------------------------------------------------------------------------


class _Draws:
    """The default generators around the calls of one vmap."""

    def __init__(self, randomness: str) -> None:
        self.randomness = randomness
        self.before: dict[Any, bytes] = {}

    def __enter__(self) -> _Draws:
        if self.randomness != "different":
            self.before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _read(self) -> dict[Any, bytes]:
        return {
            each: each.state_bytes() for each in (generator.default_cpu, *generator.defaults().cuda.values())
        }

    def _restore(self) -> None:
        for each in self._read():
            if each in self.before:
                each.load_state_bytes(self.before[each])
            else:
                each.set_offset(0)

    def run(self, call: Callable[[int], Any], index: int) -> Any:
        """Call the function of one sample.

        Raises:
            RuntimeError: If it drew random numbers and must not.
        """
        if self.randomness == "same" and index:
            self._restore()
        result = call(index)
        if self.randomness == "error":
            now = self._read()
            if any(state != self.before.get(each, state) for each, state in now.items()) or any(
                each not in self.before and each.get_offset() for each in now
            ):
                self._restore()
                raise RuntimeError(_RANDOM)
        return result
