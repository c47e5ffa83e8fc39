"""`torch.func.vjp`, `jvp`, `linearize`, `jacrev`, `jacfwd` and `hessian`: products with Jacobians, and whole Jacobians.

`vjp` and `jacrev` run backward, row by row; `jvp` and `jacfwd` run in forward mode, column by column. `linearize`
keeps the graph of one call: what it returns is linear in the rows' weights, so it is the gradient of a backward pass by
them. See Note [Gradients of functions].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from flambeau.autograd.grad_mode import enable_grad, is_grad_enabled
from flambeau.func.function_gradients import (
    detach,
    leaves,
    map_leaves,
    positions_of,
    reaches_others,
    replace_tensor,
)
from flambeau.tensor import forward_mode
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor


class _Call:
    """A call of a function with new tensors in place of those that it is differentiated by."""

    def __init__(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any, places: Any, aux: bool
    ) -> None:
        self.recording = is_grad_enabled()
        self.own: list[Tensor] = []
        with enable_grad():
            self.inputs = [
                map_leaves(lambda t: replace_tensor(t, self.own), a) if i in places else a
                for i, a in enumerate(args)
            ]
            returned = func(*self.inputs, **kwargs)
        self.form, self.aux = returned if aux else (returned, None)
        self.outputs = list(leaves(self.form))
        for output in self.outputs:
            if not isinstance(output, Tensor):
                raise RuntimeError(
                    "vjp(f, *primals): expected f(*primals) to return only tensors, got unsupported type "
                    f"{type(output)}"
                )
        self.wanted = [leaf for i in places for leaf in leaves(self.inputs[i])]

    def pull_back(self, outputs: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """Return the gradients of the weighted sum of outputs, in the autograd graph."""
        pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o.requires_grad]
        if not pairs:
            return [t.new_zeros(t.shape) for t in self.wanted]
        with enable_grad():
            return list(run_grad(*_columns(pairs, self.wanted), True, True, True, True))

    def detach_results(self, results: Sequence[Any]) -> list[Any]:
        """Return results for the program: detached, unless they depend on recorded tensors other than `own`."""
        keep = self.recording and reaches_others(results, self.own)
        return list(results) if keep else [detach(t, self.own) for t in results]

    def detach_outputs(self) -> Any:
        """Return what the function returned, as the program gets it."""
        following = iter(self.detach_results(self.outputs))
        return map_leaves(lambda t: next(following), self.form)

    def detach_aux(self) -> Any:
        return map_leaves(lambda t: detach(t, self.own), self.aux)


def _columns(pairs: Sequence[tuple[Any, Any]], wanted: Sequence[Any]) -> tuple[Any, Any, Any]:
    return tuple([o for o, _ in pairs]), tuple(wanted), tuple([w for _, w in pairs])


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return what `func(*primals)` returns, and a function that gives the products of rows with its Jacobian.

    That function takes a row in the form of the output, and returns a tuple with the form of each primal.
    has_aux: `func` returns (output, others); then (output, function, others) is returned.

    Raises:
        RuntimeError: If an output is not a tensor.
    """
    call = _Call(func, primals, {}, range(len(primals)), has_aux)

    def products(
        cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None
    ) -> tuple[Any, ...]:
        following = iter(call.detach_results(call.pull_back(call.outputs, list(leaves(cotangents)))))
        return tuple([map_leaves(lambda t: next(following), primal) for primal in primals])

    return (
        (call.detach_outputs(), products, call.detach_aux()) if has_aux else (call.detach_outputs(), products)
    )


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return what `func(*primals)` returns, and the product of its Jacobian with the tangents, in the output's form.

    Args:
        primals: The tuple of arguments of `func`.
        tangents: The tuple of their tangents, in the form of `primals`.
        strict: No effect.
        has_aux: True if `func` returns (output, others); `others` is then the third result.

    Raises:
        RuntimeError: If arguments are not tuples, or tangents have other structures or sizes.
    """
    for given, what in ((primals, "primals"), (tangents, "tangents")):
        if not isinstance(given, tuple):
            raise RuntimeError(
                f"jvp(f, primals, tangents): Expected {what} to be a tuple. E.g. it should be valid to call "
                f"f(*{what})."
            )
    inputs, along = list(leaves(primals)), list(leaves(tangents))
    _check_tangents(inputs, along, "jvp(f, primals, tangents)")
    with forward_mode.levels() as level:
        following = iter([forward_mode.make_dual(x, t, level) for x, t in zip(inputs, along, strict=True)])
        returned = func(*[map_leaves(lambda _: next(following), p) for p in primals])
        form, aux = returned if has_aux else (returned, None)
        for output in leaves(form):
            if not isinstance(output, Tensor):
                raise RuntimeError(
                    f"jvp(f, primals, tangents): Expected f(*args) to return only tensors, got unsupported type "
                    f"{type(output)}"
                )
        found = map_leaves(lambda t: _tangent_or_zeros(t, level), form)
        outputs, aux = (map_leaves(lambda t: _without_tangent(t, level), each) for each in (form, aux))
    return (outputs, found, aux) if has_aux else (outputs, found)


def _tangent_or_zeros(t: Tensor, level: Any) -> Any:
    tangent = forward_mode.tangent_of(t, level)
    return functions["zeros_like"](t) if tangent is None else tangent


def _without_tangent(t: Any, level: Any) -> Any:
    return forward_mode.without_tangent(t, level) if isinstance(t, Tensor) else t


def _check_tangents(inputs: Sequence[Any], tangents: Sequence[Any], where: str) -> None:
    """Raise RuntimeError unless there is a tangent of its size for each input."""
    if len(tangents) != len(inputs):
        raise RuntimeError(f"{where}: Expected primals and tangents to have the same python structure.")
    for t, tangent in zip(inputs, tangents, strict=True):
        if not isinstance(t, Tensor) or not isinstance(tangent, Tensor):
            raise RuntimeError(f"{where}: Expected only tensors, got {type(t)} and {type(tangent)}")


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return what `func(*primals)` returns, and the function of tangents that `jvp` computes there.

    Args:
        func: A function of tensors that returns tensors.
        primals: The inputs. The function is called once.
    """
    call = _Call(func, primals, {}, range(len(primals)), False)

    def jvp_fn(*tangents: Any) -> Any:
        along = list(leaves(tangents))
        _check_tangents(call.wanted, along, "linearized function")
        for t, tangent in zip(call.wanted, along, strict=True):
            if t.shape != tangent.shape:
                raise RuntimeError(
                    f"linearized function: Expected a tangent of shape {list(t.shape)}, but got "
                    f"{list(tangent.shape)}"
                )
        following = iter(call.detach_results(_push_forward(call, along)))
        return map_leaves(lambda t: next(following), call.form)

    return call.detach_outputs(), jvp_fn


def _push_forward(call: _Call, along: Sequence[Any]) -> list[Any]:
    """Return the derivatives of the outputs along tangents, from the backward pass and its initial gradients."""
    with enable_grad():
        weights = [o.detach().new_zeros(o.shape).requires_grad_() for o in call.outputs]
        pulled = call.pull_back(call.outputs, weights)
        pairs = [(g, t) for g, t in zip(pulled, along, strict=True) if g.requires_grad]
        if not pairs:
            return [w.detach() for w in weights]
        return list(run_grad(*_columns(pairs, weights), True, True, True, True))


def jacrev(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False,
    chunk_size: int | None = None, _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that computes the Jacobian of `func`. Its shape is the output's followed by the argument's.

    Args:
        argnums: The positional arguments to differentiate by. For a tuple, each Jacobian is a tuple.
        has_aux: True if `func` returns (output, others); the function then returns (Jacobian, others).
        chunk_size: No effect: rows are computed one by one.
    """

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = positions_of(argnums, len(args))
        call = _Call(func, args, kwargs, places, has_aux)

        def whole(output: Any) -> Any:
            following = iter(call.detach_results(_jacobians(call, output)))
            forms = tuple([map_leaves(lambda t: next(following), call.inputs[i]) for i in places])
            return forms[0] if isinstance(argnums, int) else forms

        found = map_leaves(whole, call.form)
        return (found, call.detach_aux()) if has_aux else found

    return wrapper


def _jacobians(call: _Call, output: Any) -> list[Any]:
    """Return the Jacobians of one output by each requested tensor."""
    rows = []
    for k in range(output.numel()):
        weights = output.detach().new_zeros(output.shape)
        weights.view(-1)[k] = 1
        rows.append(call.pull_back([output], [weights]))
    with enable_grad():
        return [
            functions["stack"]([row[n] for row in rows]).view(*output.shape, *t.shape)
            if rows
            else t.new_zeros((*output.shape, *t.shape))
            for n, t in enumerate(call.wanted)
        ]


def jacfwd(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *,
    chunk_size: int | None = None, randomness: str = "error",
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that gives the Jacobian of `func` like `jacrev`, computed in forward mode.

    Args:
        chunk_size: No effect: columns are computed one by one.
        randomness: No effect.
    """

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        places = positions_of(argnums, len(args))
        blocks: list[Any] = []  # for each wanted tensor: its columns, each in the form of the output
        outcome: Any = None
        for place in places:
            for at, x in enumerate(leaves(args[place])):
                columns = []
                for k in range(max(x.numel(), 1)):
                    direction = functions["zeros_like"](x)
                    if x.numel():
                        direction.view(-1)[k] = 1
                    outcome = jvp(_of_one(func, args, kwargs, place, at), (x,), (direction,), has_aux=has_aux)
                    columns.append(outcome[1])
                blocks.append((x, columns))
        forms = _join_columns(blocks, [args[i] for i in places], isinstance(argnums, int))
        return (forms, outcome[2]) if has_aux else forms

    return wrapper


def _of_one(func: Callable[..., Any], args: Any, kwargs: Any, place: int, at: int) -> Callable[[Any], Any]:
    """Return `func` as a function of one tensor, number `at` of argument `place`."""

    def function(x: Any) -> Any:
        count = iter(range(at + 1))
        changed = map_leaves(lambda t: x if next(count, None) == at else t, args[place])
        return func(*args[:place], changed, *args[place + 1 :], **kwargs)

    return function


def _join_columns(blocks: Sequence[Any], forms: Sequence[Any], single: bool) -> Any:
    """Return Jacobians in the output's form, within each the argument's form."""
    output_form = blocks[0][1][0]

    def of_output(index: int) -> Any:
        joined = []
        for x, columns in blocks:
            parts = [list(leaves(column))[index] for column in columns]
            stacked = functions["stack"](parts, -1)
            stacked = stacked if x.numel() else stacked[..., :0]
            joined.append(stacked.reshape((*parts[0].shape, *x.shape)))
        following = iter(joined)
        found = tuple([map_leaves(lambda t: next(following), form) for form in forms])
        return found[0] if single else found

    indices = iter(range(len(list(leaves(output_form)))))
    return map_leaves(lambda t: of_output(next(indices)), output_form)


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return a function that computes the second derivatives of `func`: the forward-mode Jacobian of its reverse-mode
    Jacobian.
    """
    return jacfwd(jacrev(func, argnums), argnums)
