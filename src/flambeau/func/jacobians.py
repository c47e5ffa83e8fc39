"""`torch.func.vjp`, `jvp`, `jacrev`, `jacfwd` and `hessian`: products with Jacobians, and these whole.

All walk backward, row by row: there is no forward mode. What a product with the columns (`jvp`) asks for
is linear in the rows' weights, so it is the gradient of that walk by them. See Note [Gradients of functions].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from flambeau.autograd.grad_mode import enable_grad, is_grad_enabled
from flambeau.func.gradients import leaves, map_leaves, positions_of, reaches_others, replace_tensor
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor


class _Call:
    """A function's call on new tensors: `given` in the places of its arguments, and `outputs`, what it returned."""

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
        """The gradients of the weighted sum of outputs, on the tape."""
        pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o.requires_grad]
        if not pairs:
            return [t.new_zeros(t.shape) for t in self.wanted]
        with enable_grad():
            return list(run_grad(*_columns(pairs, self.wanted), True, True, True, True))

    def detach_results(self, results: Sequence[Any]) -> list[Any]:
        """Results as the program gets them: off the tape, unless more than this call comes into them."""
        keep = self.recording and reaches_others(results, self.own)
        return list(results) if keep else [t.detach() for t in results]

    def detach_outputs(self) -> Any:
        """What the function returned, as the program gets it."""
        following = iter(self.detach_results(self.outputs))
        return map_leaves(lambda t: next(following), self.form)

    def detach_aux(self) -> Any:
        return map_leaves(Tensor.detach, self.aux)


def _columns(pairs: Sequence[tuple[Any, Any]], wanted: Sequence[Any]) -> tuple[Any, Any, Any]:
    return tuple([o for o, _ in pairs]), tuple(wanted), tuple([w for _, w in pairs])


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """What `func(*primals)` returns, and a function that gives the products of rows with its Jacobian.

    That function takes a row in the form of the output, and returns a tuple with the form of each primal.
    has_aux: `func` returns (output, others); then (output, function, others) is returned.
    Raises RuntimeError: an output is no tensor.
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
    """What `func(*primals)` returns, and the product of its Jacobian with the tangents, in the output's form.

    primals, tangents: tuples of one form. strict: accepted, and without effect. has_aux: as for `vjp`.
    Raises RuntimeError: no tuples, tangents of another form or size.
    """
    for given, what in ((primals, "primals"), (tangents, "tangents")):
        if not isinstance(given, tuple):
            raise RuntimeError(
                f"jvp(f, primals, tangents): Expected {what} to be a tuple. E.g. it should be valid to call "
                f"f(*{what})."
            )
    call = _Call(func, primals, {}, range(len(primals)), has_aux)
    along = list(leaves(tangents))
    if len(along) != len(call.wanted):
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals and tangents to have the same python structure."
        )
    for t, tangent in zip(call.wanted, along, strict=True):
        if t.shape != tangent.shape:
            raise RuntimeError(
                "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
                f"not supported. Tensor is of size {list(t.shape)} while the given forward gradient is of size "
                f"{list(tangent.shape)}."
            )
    following = iter(call.detach_results(_push_forward(call, along)))
    found = map_leaves(lambda t: next(following), call.form)
    return (call.detach_outputs(), found, call.detach_aux()) if has_aux else (call.detach_outputs(), found)


def _push_forward(call: _Call, along: Sequence[Any]) -> list[Any]:
    """How the outputs change along tangents: the gradient, by the rows' weights, of what the walk gives."""
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
    """A function that gives the Jacobian of `func`: in its output's form, of shape output's + argument's.

    argnums: by which positional arguments; of a tuple, a tuple of Jacobians in each place. has_aux: `func` returns
    (output, others); the function then returns (Jacobian, others). chunk_size: accepted, rows are taken one by one.
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
    """Of one output by each wanted tensor."""
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
    """The same as `jacrev`, computed as there. chunk_size, randomness: accepted, and without effect."""
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of `func`: the Jacobian of its Jacobian."""
    return jacrev(jacrev(func, argnums), argnums)
