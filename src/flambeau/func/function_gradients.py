"""`torch.func.grad`: the gradient of a function, as a function, which may itself be differentiated.

# Note [Gradients of functions]
The function receives new tensors instead of its arguments: views of those that have a graph already, so that
gradients of gradients reach them, else new leaves. The backward pass is recorded. If the result's graph has no inputs
other than these leaves, no further gradient can be requested, so the result is detached, which frees the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from flambeau.autograd.grad_mode import enable_grad, is_grad_enabled
from flambeau.tape.autograd_node import Leaf
from flambeau.tensor import interception
from flambeau.tensor.forward_mode import carry_tangents
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor


def grad(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the gradient of `func`, which returns a tensor of no dimensions.

    Arguments may be dicts, lists and tuples of tensors. Gradients have the form of the arguments, with zeros for
    tensors that `func` did not use.

    Args:
        argnums: The positional arguments to differentiate by. For a tuple, the gradient is a tuple.
        has_aux: True if `func` returns (value, others); the function then returns (gradient, others).

    Raises:
        RuntimeError: If the value is not a tensor of no dimensions, or `argnums` names no argument.
        ValueError: If an argument contains something other than tensors.
    """
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        gradients, value = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return wrapper


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Work like `grad`; the function returns (gradient, what `func` returned)."""

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = positions_of(argnums, len(args))
        recording = is_grad_enabled()
        with enable_grad():
            own: list[Tensor] = []
            given = [
                map_leaves(lambda t: replace_tensor(t, own), a) if i in places else a
                for i, a in enumerate(args)
            ]
            value, aux = _value(func(*given, **kwargs), has_aux)
            wanted = [leaf for i in places for leaf in leaves(given[i])]
            found = _gradients(value, wanted)
        keep = recording and reaches_others([value, *found], own)
        found = found if keep else [detach(t, own) for t in found]
        result: Any = value if keep else detach(value, own)
        if has_aux:
            result = (result, aux if keep else map_leaves(lambda t: detach(t, own), aux))
        following = iter(found)
        forms = tuple([map_leaves(lambda t: next(following), given[i]) for i in places])
        return (forms[0] if isinstance(argnums, int) else forms), result

    return wrapper


def positions_of(argnums: Any, count: int) -> list[int]:
    if not isinstance(argnums, (int, tuple)) or not all(isinstance(n, int) for n in _as_tuple(argnums)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    for n in _as_tuple(argnums):
        if not -count <= n < count:
            raise RuntimeError(f"Got argnum={n}, but only {count} positional inputs")
    return [n % count for n in _as_tuple(argnums)]


def _as_tuple(argnums: Any) -> tuple[Any, ...]:
    return argnums if isinstance(argnums, tuple) else (argnums,)


def replace_tensor(t: Any, own: list[Tensor]) -> Tensor:
    """Return the tensor that the function receives in place of a tensor of an argument. New leaves are appended to the
    list.
    """
    if not isinstance(t, Tensor):
        raise ValueError(f"Thing passed to transform API must be Tensor, got {type(t)}")
    if t.requires_grad:
        return t.view_as(t)
    leaf = detach(t).requires_grad_()
    own.append(leaf)
    return leaf


def detach(t: Tensor, own: Sequence[Tensor] | None = None) -> Any:
    """Return a tensor outside of its graph, with the tangents that an enclosing `jvp` gave it.

    Args:
        t: The tensor.
        own: Leaves whose gradients are not requested; tangents that depend only on these are detached, too.
    """
    detached: Any = t.detach()  # type: ignore[attr-defined]
    if not interception.count:
        return detached

    def change(tangent: Any) -> Any:
        return tangent if own is None or reaches_others([tangent], own) else detach(tangent, own)

    return carry_tangents(t, detached, change)


def _value(returned: Any, has_aux: bool) -> tuple[Tensor, Any]:
    aux = None
    if has_aux:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise RuntimeError(
                "grad_and_value(f)(*args): output of function f should be a tuple: (output, aux) if has_aux is True"
            )
        returned, aux = returned
        for leaf in leaves(aux):
            if not isinstance(leaf, Tensor):
                raise RuntimeError(f"Expected tensors, got unsupported type {type(leaf)}")
    if not isinstance(returned, Tensor):
        raise RuntimeError(
            f"grad_and_value(f)(*args): Expected f(*args) to return a Tensor, got {type(returned)}"
        )
    if returned.dim():
        raise RuntimeError(
            f"grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, got tensor with {returned.dim()} "
            "dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
        )
    return returned, aux


def _gradients(value: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [t.new_zeros(t.shape) for t in wanted]
    return list(run_grad((value,), tuple(wanted), None, True, True, True, True))


def reaches_others(results: Sequence[Tensor], own: Sequence[Tensor]) -> bool:
    """Return True if the graph of results has leaves that are not our own."""
    ours = {id(leaf) for leaf in own}
    seen: set[Any] = set()
    waiting = [t.grad_fn for t in results if t.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Leaf) and id(node.variable) not in ours:
            return True
        waiting += [following for following, _ in node.next_functions if following is not None]
    return any(t.requires_grad and t.grad_fn is None and id(t) not in ours for t in results)


# -- forms: tensors in dicts, lists and tuples -----------------------------------------------------------------


def map_leaves(change: Callable[[Any], Any], form: Any) -> Any:
    """Return a container of equal form with each leaf changed, in the order of `leaves`."""
    if isinstance(form, dict):
        return type(form)((key, map_leaves(change, value)) for key, value in form.items())
    if isinstance(form, (list, tuple)):
        values = [map_leaves(change, value) for value in form]
        return type(form)(*values) if hasattr(form, "_fields") else type(form)(values)
    return change(form)


def leaves(form: Any) -> Iterator[Any]:
    if isinstance(form, (dict, list, tuple)):
        for value in form.values() if isinstance(form, dict) else form:
            yield from leaves(value)
    else:
        yield form
