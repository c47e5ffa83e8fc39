"""`torch.autograd.functional`: Jacobians, Hessians and their products with vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.tape.mode import mode, recording
from flambeau.tensor import forward_mode
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.functions.joining import stack
from flambeau.tensor.tensor import Tensor

Tensors = tuple[Any, ...]

_NO_VECTOR = "The vector v can only be None if {} a single Tensor with a single element."


def _to_tuple(x: Any, what: str, function: str) -> tuple[bool, Tensors]:
    """Return whether there were several tensors, and the tensors. Raises TypeError for anything else."""
    several = isinstance(x, tuple)
    listed = x if several else (x,)
    for i, t in enumerate(listed):
        if not isinstance(t, Tensor):
            which = f"value at index {i}" if several else f"given {what}"
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors but the {which} "
                f"has type {type(t)}."
            )
    return several, listed


def _leaves(inputs: Tensors, create: bool) -> Tensors:
    """Return copies of the inputs with respect to which gradients are computed. With `create` they keep the inputs'
    history.
    """
    with recording(True):
        return tuple(
            [t.view_as(t) if create and t.requires_grad else t.detach().requires_grad_(True) for t in inputs]
        )


def _call_on_leaves(func: Callable[..., Any], inputs: Any, create: bool, function: str) -> tuple[Any, ...]:
    several, listed = _to_tuple(inputs, "inputs", function)
    leaves = _leaves(listed, create)
    with recording(True):
        result = func(*leaves)
    several_outputs, outputs = _to_tuple(result, "outputs of the user-provided function", function)
    return several, leaves, several_outputs, outputs


def _check_strict(outputs: Tensors, strict: bool) -> None:
    if not strict:
        return
    for i, t in enumerate(outputs):
        if not t.requires_grad:
            raise RuntimeError(
                f"Output {i} of the user-provided function does not require gradients. The outputs must be computed in "
                "a differentiable manner from the input when running in strict mode."
            )


def _gradients(
    outputs: Tensors, inputs: Tensors, seeds: Sequence[Any] | None, create: bool, strict: bool = False
) -> Tensors:
    """Return gradients of those outputs that depend on inputs; zeros where none does (an error in strict mode)."""
    used = [i for i, t in enumerate(outputs) if t.requires_grad]
    if not used:
        return tuple([t.new_zeros(t.shape) for t in inputs])
    given = None if seeds is None else [seeds[i] for i in used]
    with recording(True):
        found = run_grad(
            [outputs[i] for i in used],
            inputs,
            given,
            retain_graph=True,
            create_graph=create,
            allow_unused=True,
        )
    if strict and any(g is None for g in found):
        i = next(i for i, g in enumerate(found) if g is None)
        raise RuntimeError(
            f"The output of the user-provided function is independent of input {i}. This is not allowed in strict mode."
        )
    return tuple([t.new_zeros(t.shape) if g is None else g for t, g in zip(inputs, found, strict=True)])


def _to_result(tensors: Tensors, create: bool, several: bool) -> Any:
    results = tensors if create and mode.recording else tuple([t.detach() for t in tensors])
    return results if several else results[0]


def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the outputs of `func`, and the product of a vector `v` (of the outputs' shapes) with its Jacobian."""
    several, leaves, several_outputs, outputs = _call_on_leaves(func, inputs, create_graph, "vjp")
    _check_strict(outputs, strict)
    seeds = _check_vector(v, outputs, "vjp", _NO_VECTOR.format("the user-provided function returns"))
    found = _gradients(outputs, leaves, seeds, create_graph, strict)
    return _to_result(outputs, create_graph, several_outputs), _to_result(found, create_graph, several)


def _check_vector(v: Any, like: Tensors, function: str, message: str) -> Sequence[Any] | None:
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(message)
        return [t.new_ones(t.shape) for t in like]
    _, listed = _to_tuple(v, "v", function)
    if len(listed) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(listed)}.")
    for i, (t, want) in enumerate(zip(listed, like, strict=True)):
        if t.shape != want.shape:
            entry = f"Entry {i} in " if len(like) > 1 else ""
            raise RuntimeError(f"{entry}v has invalid size: should be {want.shape} but got {t.shape}.")
    return listed


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the outputs of `func`, and the product of its Jacobian with a vector `v` (of the inputs' shapes).

    By differentiating twice backward: the product with a vector is linear in that vector.
    """
    _, leaves, several_outputs, outputs = _call_on_leaves(func, inputs, create_graph, "jvp")
    _check_strict(outputs, strict)
    vector = _check_vector(v, leaves, "jvp", _NO_VECTOR.format("the input to the user-provided function is"))
    with recording(True):
        dummies = tuple([t.new_zeros(t.shape).requires_grad_() for t in outputs])
        rows = _gradients(outputs, leaves, dummies, True, strict)
    found = _gradients(rows, dummies, vector, create_graph, strict)
    return _to_result(outputs, create_graph, several_outputs), _to_result(
        found, create_graph, several_outputs
    )


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of `func`: for each output and input, the output's shape followed by the input's.

    A tensor for one output and one input, else tuples over those that were several. `vectorize` gives equal
    results.

    Raises:
        AssertionError: If `strategy` is neither "reverse-mode" nor "forward-mode".
        NotImplementedError: If `strategy` is "forward-mode" without `vectorize`, or in strict mode.
    """
    assert strategy in ("forward-mode", "reverse-mode"), (
        'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than '
        'inputs, "forward-mode" tends to be more performant. Otherwise, prefer to use "reverse-mode".'
    )
    if strategy == "forward-mode":
        return _columns(func, inputs, create_graph, strict, vectorize)
    several, leaves, several_outputs, outputs = _call_on_leaves(func, inputs, create_graph, "jacobian")
    _check_strict(outputs, strict)
    whole = tuple([_rows(output, leaves, create_graph, strict, several) for output in outputs])
    return whole if several_outputs else whole[0]


def _columns(func: Callable[..., Any], inputs: Any, create: bool, strict: bool, vectorize: bool) -> Any:
    """Return the Jacobian, computed in forward mode, column by column."""
    if create:
        raise NotImplementedError(
            'torch.autograd.functional.jacobian: `create_graph=True` and `strategy="forward-mode"` are not supported '
            'together (yet). Please either set `create_graph=False` or `strategy="reverse-mode"`.'
        )
    if strict:
        raise RuntimeError(
            'torch.autograd.functional.jacobian: `strict=True` and `strategy="forward-mode"` are not supported '
            'together (yet). Please either set `strict=False` or `strategy="reverse-mode"`.'
        )
    if not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for "
            "`vectorize=True`."
        )
    several, listed = _to_tuple(inputs, "inputs", "jacobian")
    blocks: list[list[Any]] = []  # for each input, the columns of each output
    several_outputs = False
    for place, x in enumerate(listed):
        columns: list[Tensors] = []
        for k in range(x.numel()):
            direction = x.new_zeros(x.shape)
            direction.view(-1)[k] = 1
            with forward_mode.levels() as level:
                dual = forward_mode.make_dual(x.detach(), direction, level)
                result = func(*[dual if i == place else t for i, t in enumerate(listed)])
                several_outputs, outputs = _to_tuple(
                    result, "outputs of the user-provided function", "jacobian"
                )
                tangents = [(forward_mode.tangent_of(t, level), t) for t in outputs]
            columns.append(tuple([t.new_zeros(t.shape) if g is None else g.detach() for g, t in tangents]))
        blocks.append([stack(c, -1).reshape((*c[0].shape, *x.shape)) for c in zip(*columns, strict=True)])
    by_output = [tuple(row) if several else row[0] for row in zip(*blocks, strict=True)]
    return tuple(by_output) if several_outputs else by_output[0]


def _rows(output: Any, leaves: Tensors, create: bool, strict: bool, several: bool) -> Any:
    with recording(True):
        flat = output.reshape(-1)
        found = [_gradients((flat[i],), leaves, None, create, strict) for i in range(flat.numel())]
        blocks = [
            stack([row[k] for row in found]).reshape((*output.shape, *t.shape))
            if found
            else t.new_zeros((*output.shape, *t.shape))
            for k, t in enumerate(leaves)
        ]
    return _to_result(tuple(blocks), create, several)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the second derivatives of a scalar function. For each pair of inputs, the shape joins both inputs'
    shapes.
    """
    several, _ = _to_tuple(inputs, "inputs", "hessian")

    def first(*leaves: Any) -> Any:
        forward = outer_jacobian_strategy == "forward-mode"
        if forward:
            return _gradient_of_scalar(_scalar(func, "hessian"), leaves, several)
        gradient = jacobian(_scalar(func, "hessian"), leaves, create_graph=True, strict=strict)
        return gradient if several else gradient[0]

    return jacobian(first, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)


def _gradient_of_scalar(func: Callable[..., Any], inputs: Tensors, several: bool) -> Any:
    """Return the gradient of a scalar function, recorded, of inputs that may have tangents."""
    with recording(True):
        leaves = [forward_mode.carry_tangents(t, t.detach().requires_grad_()) for t in inputs]
        gradient = _gradients((func(*leaves),), tuple(leaves), None, True)
    return gradient if several else gradient[0]


def _scalar(func: Callable[..., Any], function: str) -> Callable[..., Any]:
    def scalar_function(*args: Any) -> Any:
        result = func(*args)
        if not isinstance(result, Tensor):
            raise RuntimeError(f"The function given to {function} should return a single Tensor")
        if result.numel() != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {function} should contain a single element"
            )
        return result.squeeze()  # type: ignore[attr-defined]

    return scalar_function


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a scalar function, and the product of a vector `v` with its Hessian."""
    several, leaves, _, outputs = _call_on_leaves(_scalar(func, "vhp"), inputs, create_graph, "vhp")
    vector = _check_vector(v, leaves, "vhp", _NO_VECTOR.format("the input to the user-provided function is"))
    gradient = _gradients(outputs, leaves, None, True, strict)
    found = _gradients(gradient, leaves, vector, create_graph, strict)
    return _to_result(outputs, create_graph, False), _to_result(found, create_graph, several)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a scalar function, and the product of its Hessian with a vector `v`: see `vhp`."""
    return vhp(func, inputs, v, create_graph, strict)


# -- PyTorch's helpers, which libraries import --------------------------------------------------------------------


def _as_tuple(inp: Any, arg_name: str | None = None, fn_name: str | None = None) -> Any:
    """Return what `_to_tuple` returns; without names for errors, only the tuple."""
    if arg_name is None and fn_name is None:
        return inp if isinstance(inp, tuple) else (inp,)
    return _to_tuple(inp, str(arg_name), str(fn_name))


def _tuple_postprocess(res: Any, to_unpack: bool | tuple[bool, bool]) -> Any:
    """Return a tuple, or its only element if the first of `to_unpack` says that there was one value."""
    if isinstance(to_unpack, tuple):
        rows = (
            res
            if not to_unpack[1]
            else tuple([row if isinstance(row, Tensor) else tuple(row) for row in res])
        )
        if not to_unpack[1]:
            rows = tuple([row[0] for row in res])
        return rows if to_unpack[0] else rows[0]
    return res if to_unpack else res[0]


def _grad_postprocess(inputs: Any, create_graph: bool) -> Any:
    """Return results of which autograd keeps the history only if it is asked for."""
    if isinstance(inputs, Tensor):
        return inputs if create_graph else inputs.detach()
    return tuple([_grad_postprocess(each, create_graph) for each in inputs])


def _construct_standard_basis_for(tensors: Sequence[Tensor], tensor_numels: Sequence[int]) -> Tensors:
    """Return, for each tensor, the rows of the identity that belong to its elements among those of all tensors."""
    total, start, chunks = sum(tensor_numels), 0, []
    for t, count in zip(tensors, tensor_numels, strict=True):
        chunk = t.new_zeros(total, count)
        chunk.diagonal(-start).fill_(1)
        chunks.append(chunk)
        start += count
    return tuple(chunks)
