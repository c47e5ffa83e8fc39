"""`gradcheck` and `gradgradcheck`: derivatives against differences of function values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import complex128, float64
from flambeau.tape.mode import recording
from flambeau.tensor.functions.gradients import run_grad
from flambeau.tensor.tensor import Tensor


class GradcheckError(RuntimeError):
    """The error raised if a derivative differs from the central differences."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compare the gradients of `func(*inputs)` with central differences.

    Each element of each input that requires a gradient is moved by `eps`, so use float64 and few elements. Complex
    functions are compared by their conjugate Wirtinger derivatives.

    Args:
        nondet_tol: The largest difference between the gradients of two backward passes.
        check_undefined_grad, check_grad_dtypes, masked: No effect.
        fast_mode: Compare one random combination of all derivatives of each output by each input.

    Returns:
        True if they are equal within `atol` and `rtol`; else False, if `raise_exception` is False.

    Raises:
        GradcheckError: If they differ.
        ValueError: If no input requires a gradient.
        NotImplementedError: If forward mode or batched gradients are to be compared.
    """
    if check_forward_ad or check_batched_grad or check_batched_forward_grad:
        raise NotImplementedError(
            "gradcheck compares gradients of backward passes, one by one. Set check_forward_ad, check_batched_grad and "
            "check_batched_forward_grad to False"
        )
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad]  # type: ignore[attr-defined]
    if not places:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    for i in places:
        if args[i].dtype not in (float64, complex128):
            warn_program(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check "
                "will likely fail if all the inputs are not of double precision floating point or complex. ",
                UserWarning,
            )
    try:
        (_compare_combined if fast_mode else _compare)(func, args, places, eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _outputs(func: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    given = func(*args)
    listed = (given,) if isinstance(given, Tensor) else tuple(given)
    return [t for t in listed if isinstance(t, Tensor) and t.meta.dtype.category >= 2]


def _compare(
    func: Callable[..., Any], args: Sequence[Any], places: Sequence[int],
    eps: float, atol: float, rtol: float, nondet_tol: float,
) -> None:  # fmt: skip
    inputs = [args[i] for i in places]
    outputs = [(o, t) for o, t in enumerate(_outputs(func, args)) if t.requires_grad]
    analytic = [(o, _analytic_twice(output, inputs, nondet_tol)) for o, output in outputs]
    for n, place in enumerate(places if outputs else ()):
        numeric = _numeric(func, args, place, eps)
        for o, jacobians in analytic:
            if not np.allclose(jacobians[n], numeric[o], rtol, atol, equal_nan=True):
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {place},\nnumerical:{numeric[o]}\n"
                    f"analytical:{jacobians[n]}"
                )


def _compare_combined(
    func: Callable[..., Any], args: Sequence[Any], places: Sequence[int],
    eps: float, atol: float, rtol: float, nondet_tol: float,
) -> None:  # fmt: skip
    """Compare `weights @ jacobian @ steps` for random unit vectors, one pair for each output and input."""
    inputs, random = [args[i] for i in places], np.random.default_rng(0)
    outputs = [(o, t) for o, t in enumerate(_outputs(func, args)) if t.requires_grad]
    steps = [_unit(random, t.meta.numel) for t in inputs]
    weights = [_unit(random, t.meta.numel * len(_directions(t))) for _, t in outputs]
    analytic = [_slopes_of(t, inputs, w, nondet_tol) for (_, t), w in zip(outputs, weights, strict=True)]
    for n, (place, step) in enumerate(zip(places, steps, strict=True) if outputs else ()):
        numeric = _numeric_along(func, args, place, step, eps)
        for (o, _), weight, slopes in zip(outputs, weights, analytic, strict=True):
            differences, derivative = np.dot(weight, numeric[o]), np.dot(slopes[n], step)
            tolerance = atol * np.abs(weight).sum() * np.abs(step).sum()
            if not np.allclose(derivative, differences, rtol, tolerance, equal_nan=True):
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {place}, of a random combination of all "
                    f"derivatives (fast_mode=True),\nnumerical:{differences}\nanalytical:{derivative}"
                )


def _unit(random: np.random.Generator, count: int) -> Any:
    vector = random.uniform(0.5, 1.5, count) * random.choice([-1.0, 1.0], count)  # no element is nearly 0
    return vector / max(float(np.linalg.norm(vector)), 1.0)


def _slopes_of(output: Any, inputs: Sequence[Any], weights: Any, nondet_tol: float) -> list[Any]:
    """Return the gradient of each input, of the weighted sum of an output's real and imaginary parts."""
    values = weights.view(np.complex128) if output.meta.dtype.is_complex else weights
    seed = output.new_tensor(values).view(output.meta.shape)
    walks = []
    for _ in range(2):
        grads = run_grad(output, inputs, seed, retain_graph=True, allow_unused=True)
        walks.append(
            [_flat(t.new_zeros(t.meta.shape) if g is None else g) for t, g in zip(inputs, grads, strict=True)]
        )
    _require_equal(*walks, nondet_tol)
    return walks[0]


def _numeric_along(
    func: Callable[..., Any], args: Sequence[Any], place: int, step: Any, eps: float
) -> list[Any]:
    """Return the change of each output as an input is moved along `step`."""
    moved = _elements(args, place)
    return _column(func, args, moved, moved.new_tensor(step).view(moved.shape), eps)


def _elements(args: Sequence[Any], place: int) -> Any:
    """Return an input without history. Writes to it reach the function's other references, but count as no change.

    Raises RuntimeError if elements of the input share memory.
    """
    t = args[place]
    if any(size > 1 and stride == 0 for size, stride in zip(t.meta.shape, t.meta.strides, strict=True)):
        raise RuntimeError(
            f"The {place}th input has a dimension with stride 0. gradcheck only supports inputs that are "
            "non-overlapping to be able to compute the numerical gradients correctly. You should call .contiguous on "
            "the input before passing it to gradcheck."
        )
    return t.data


def _directions(t: Any) -> list[complex]:
    return [1.0, 1j] if t.meta.dtype.is_complex else [1.0]


def _analytic(output: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return, for each input, one row for each element and direction of the output, by backward."""
    rows: list[list[Any]] = [[] for _ in inputs]
    for k in range(output.meta.numel):
        for direction in _directions(output):
            seed = output.new_zeros(output.meta.shape)
            seed.view(-1)[k] = direction
            given = run_grad(output, inputs, seed, retain_graph=True, allow_unused=True)
            for row, t, grad in zip(rows, inputs, given, strict=True):
                row.append(_flat(t.new_zeros(t.meta.shape) if grad is None else grad))
    return [np.array(row).reshape(len(row), t.meta.numel) for row, t in zip(rows, inputs, strict=True)]


def _analytic_twice(output: Any, inputs: Sequence[Any], nondet_tol: float) -> list[Any]:
    analytic = _analytic(output, inputs)
    _require_equal(analytic, _analytic(output, inputs), nondet_tol)
    return analytic


def _require_equal(walk: Sequence[Any], again: Sequence[Any], nondet_tol: float) -> None:
    for first, second in zip(walk, again, strict=True):
        if np.max(np.abs(first - second), initial=0) > nondet_tol:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                "gives different values"
            )


def _flat(t: Any) -> Any:
    return t.detach().cpu().contiguous().view(-1).numpy().copy()


def _numeric(func: Callable[..., Any], args: Sequence[Any], place: int, eps: float) -> list[Any]:
    """Return, for each output, the Jacobian from central differences, column by column."""
    t = args[place]
    if not t.meta.numel:
        return [np.zeros((len(_to_real(output)), 0)) for output in _outputs(func, args)]
    data = _elements(args, place)
    columns = [_column(func, args, data[index], 1.0, eps) for index in np.ndindex(t.meta.shape)]
    return [np.stack(given, axis=1) for given in zip(*columns, strict=True)]


def _column(func: Callable[..., Any], args: Sequence[Any], moved: Any, step: Any, eps: float) -> list[Any]:
    """Return the change of each output as `moved`, a view of one of `args`, moves along `step`."""
    original = moved.clone()
    changes = []
    for direction in _directions(moved):
        moved.copy_(original + eps * direction * step)
        above = [_to_real(output) for output in _outputs(func, args)]
        moved.copy_(original - eps * direction * step)
        below = [_to_real(output) for output in _outputs(func, args)]
        changes.append([direction * (a - b) / (2 * eps) for a, b in zip(above, below, strict=True)])
    moved.copy_(original)
    return [sum(along) for along in zip(*changes, strict=True)]


def _to_real(t: Any) -> Any:
    """Return a result as real numbers, real and imaginary parts alternating, in the order that `_analytic` uses."""
    flat = _flat(t)
    return np.stack((flat.real, flat.imag), axis=-1).reshape(-1) if t.meta.dtype.is_complex else flat


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Return `gradcheck` of the gradients of `func(*inputs)`, with respect to the inputs and to `grad_outputs`
    (random).
    """
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = [t for t in _outputs(func, args) if t.requires_grad]
    if grad_outputs is None:
        seeds = [_seed(t, i) for i, t in enumerate(outputs)]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    count = len(args)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad]  # type: ignore[attr-defined]

    def gradients(*given: Any) -> tuple[Any, ...]:
        with recording(True):
            inside = given[:count]
            results = [t for t in _outputs(func, inside) if t.requires_grad]
            grads = run_grad(
                results, [inside[i] for i in places], given[count:], create_graph=True, allow_unused=True
            )
        return tuple([g for g in grads if g is not None])

    return gradcheck(
        gradients,
        (*args, *seeds),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        fast_mode=fast_mode,
    )


def _seed(t: Any, number: int) -> Any:
    random = np.random.default_rng(number)
    values = random.standard_normal(t.meta.shape)
    if t.meta.dtype.is_complex:
        values = values + 1j * random.standard_normal(t.meta.shape)
    return t.new_tensor(values).requires_grad_()
