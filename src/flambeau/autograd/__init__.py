"""`torch.autograd`: gradients of recorded operations.

The graph and the backward engine are in `tape/`, saved tensors in `tensor/autograd/`, and derivatives in the operator
definitions (see Note [Derivatives]).
"""

from __future__ import annotations

import warnings
from importlib import import_module as _import_module
from typing import Any

from flambeau.autograd import forward_ad, functional, graph
from flambeau.autograd.anomaly_mode import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from flambeau.autograd.function import Function, once_differentiable
from flambeau.autograd.grad_mode import (
    enable_grad,
    enforce_grad_layout_policy,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from flambeau.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from flambeau.core.public_names import lacking as _missing
from flambeau.tensor.functions.gradients import run_backward, run_grad
from flambeau.tensor.functions.joining import stack


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Compute the gradients of `tensors` with respect to the leaves and add them to their `.grad`.

    Args:
        grad_tensors: The gradients of `tensors`, each of its shape; None for those of one element.
        retain_graph: Keep the graph for another backward (default: `create_graph`).
        create_graph: Record backward itself, for higher derivatives.
        inputs: Accumulate into these leaves only.
    """
    if grad_variables is not None:
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to `backward()`. Please only "
                "use `grad_tensors`."
            )
        grad_tensors = grad_variables
    run_backward(tensors, grad_tensors, retain_graph, create_graph, inputs)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of `outputs` with respect to `inputs`. No `.grad` is changed.

    Raises:
        RuntimeError: If an input was not used, unless `allow_unused` (its gradient is None) or `materialize_grads`
            (zeros).
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate gradient for "
            "other parts of the graph, please use torch.autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    if is_grads_batched:
        return _grad_of_batches(outputs, inputs, grad_outputs, create_graph, allow_unused, materialize_grads)
    return run_grad(
        outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused, materialize_grads
    )


def _grad_of_batches(outputs: Any, inputs: Any, batches: Any, *options: Any) -> tuple[Any, ...]:
    """Return the gradients for each of several initial gradients, stacked."""
    listed = list(batches) if isinstance(batches, list | tuple) else [batches]
    sizes = [each.shape[0] for each in listed if each is not None]
    rows = [
        run_grad(outputs, inputs, [None if g is None else g[at] for g in listed], True, *options)
        for at in range(sizes[0])
    ]
    return tuple([None if column[0] is None else stack(list(column)) for column in zip(*rows, strict=True)])


for _function in (backward, grad):
    _function.__module__ = __name__


def __getattr__(name: str) -> Any:
    if name in ("profiler", "profiler_util"):
        return _import_module(f"flambeau.autograd.{name}")
    if name == "_is_checkpoint_valid":
        return _import_module("flambeau.autograd.variable").Variable._execution_engine.is_checkpoint_valid
    return _import_module("flambeau.autograd.variable").Variable if name == "Variable" else _lacking(name)


def __dir__() -> list[str]:
    return sorted({*globals(), "Variable", "profiler"})


_lacking = _missing("torch.autograd")
