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
    """A derivative that differs from the differences of function values."""


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

    Every element of every input that requires a gradient is moved by `eps`: use double precision and few
    elements. Complex functions are compared by their conjugate Wirtinger derivatives. `nondet_tol`: how far two
    walks may differ. `fast_mode`, and what concerns undefined gradients and masks, change nothing here.

    Raises GradcheckError (or, without `raise_exception`, returns False) where they differ; ValueError where no
    input requires a gradient; NotImplementedError for forward mode and batched gradients, which Flambeau lacks.
    """
    if check_forward_ad or check_batched_grad or check_batched_forward_grad:
        raise NotImplementedError(
            "Flambeau has no forward mode: gradcheck compares gradients one by one, with check_forward_ad=False, "
            "check_batched_grad=False and check_batched_forward_grad=False"
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
        _compare(func, args, places, eps, atol, rtol, nondet_tol)
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


def _directions(t: Any) -> list[complex]:
    return [1.0, 1j] if t.meta.dtype.is_complex else [1.0]


def _analytic(output: Any, inputs: Sequence[Any]) -> list[Any]:
    """Of each input: one row for every element and direction of the output."""
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
    analytic, again = _analytic(output, inputs), _analytic(output, inputs)
    for first, second in zip(analytic, again, strict=True):
        if np.max(np.abs(first - second), initial=0) > nondet_tol:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                "gives different values"
            )
    return analytic


def _flat(t: Any) -> Any:
    return t.detach().cpu().contiguous().view(-1).numpy().copy()


def _numeric(func: Callable[..., Any], args: Sequence[Any], place: int, eps: float) -> list[Any]:
    """Of each output the same from central differences, column by column: all outputs of one call."""
    t = args[place]
    if not t.meta.numel:
        return [np.zeros((len(_to_real(output)), 0)) for output in _outputs(func, args)]
    own = t.detach().clone().contiguous().requires_grad_()  # the function may take gradients
    flat = own.detach().view(-1)
    perturbed = [own if i == place else x for i, x in enumerate(args)]
    columns = [_column(func, perturbed, flat, k, eps) for k in range(t.meta.numel)]
    return [np.stack(given, axis=1) for given in zip(*columns, strict=True)]


def _column(func: Callable[..., Any], perturbed: Sequence[Any], flat: Any, k: int, eps: float) -> list[Any]:
    """How each output changes as `flat[k]`, a view of one of `perturbed`, does."""
    original = flat[k].clone()
    changes = []
    for direction in _directions(flat):
        flat[k] = original + eps * direction
        above = [_to_real(output) for output in _outputs(func, perturbed)]
        flat[k] = original - eps * direction
        below = [_to_real(output) for output in _outputs(func, perturbed)]
        changes.append([direction * (a - b) / (2 * eps) for a, b in zip(above, below, strict=True)])
    flat[k] = original
    return [sum(along) for along in zip(*changes, strict=True)]


def _to_real(t: Any) -> Any:
    """A result as real numbers: real and imaginary part by turns, as `_analytic` asks for them."""
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
    """`gradcheck` of the gradients of `func(*inputs)`, with respect to the inputs and to `grad_outputs` (random)."""
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
    )


def _seed(t: Any, number: int) -> Any:
    random = np.random.default_rng(number)
    values = random.standard_normal(t.meta.shape)
    if t.meta.dtype.is_complex:
        values = values + 1j * random.standard_normal(t.meta.shape)
    return t.new_tensor(values).requires_grad_()
