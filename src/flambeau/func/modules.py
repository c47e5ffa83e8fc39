"""`torch.func.functional_call`, `stack_module_state` and `functionalize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from flambeau.nn.modules.batchnorm import _BatchNorm
from flambeau.nn.modules.module import Module
from flambeau.nn.utils.stateless import call_with
from flambeau.tensor.functions.joining import stack
from flambeau.tensor.tensor import Tensor


def functional_call(
    module: Module, parameter_and_buffer_dicts: dict[str, Tensor] | Sequence[dict[str, Tensor]], args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with these tensors instead of its parameters and buffers of the same (dotted) names.

    Args:
        parameter_and_buffer_dicts: One dict, or several without a common name.
        args: A tuple of arguments, or one argument.
        tie_weights: Replace a tensor that the module has under several names under all of them.
        strict: Require tensors for exactly the names of the module.

    Raises:
        RuntimeError: If `strict` and the names differ from the module's.
        ValueError: If an element is not a dict, a name is in two dicts, or a tied tensor has several values.
    """
    tensors = _merge_dicts(parameter_and_buffer_dicts)
    return call_with(module, tensors, args, kwargs, tie_weights, strict)


def _merge_dicts(given: Any) -> dict[str, Tensor]:
    if isinstance(given, dict):
        return given
    if not isinstance(given, Sequence):
        raise ValueError(
            f"Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got {type(given)}"
        )
    if not all(isinstance(part, dict) for part in given):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    names = [name for part in given for name in part]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous"
        )
    return {name: tensor for part in given for name, tensor in part.items()}


def stack_module_state(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of several models of one class, each stacked, by name.

    Args:
        models: The modules, all in training or all in evaluation mode.

    Returns:
        The parameters, which are new leaves, and the buffers.

    Raises:
        RuntimeError: If there are no models, or they differ in class, mode or `requires_grad`.
    """
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(model.training != models[0].training for model in models):
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if any(type(model) is not type(models[0]) for model in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    params = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]
    return tuple(  # type: ignore[return-value]
        {name: _stack_leaf([state[name] for state in states], name) for name in states[0]}
        for states in (params, buffers)
    )


def _stack_leaf(tensors: list[Any], name: str) -> Any:
    wants = tensors[0].requires_grad
    if any(t.requires_grad != wants for t in tensors):
        raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
    return stack(tensors).detach().requires_grad_(wants)


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return a function of the same results as `func`.

    PyTorch's function replaces operators that change tensors, and copies the changes of its inputs back at the end.
    Results and inputs are then as after `func`, so here `func` runs as it is.

    Args:
        func: A function of tensors.
        remove: "mutations" or "mutations_and_views", which give equal results.

    Raises:
        RuntimeError: If `remove` is neither.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            "functionalize(f, remove='mutations'): received invalid argument for remove= . Valid options are:\n"
            '     remove="mutations": all inplace and out= operators will be removed from the program.\n'
            '     remove="mutations_and_views": In addition to the above, all aliasing operators {view} will be '
            "replaced with their non-aliasing counterparts, {view}_copy."
        )

    @wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Remove the running statistics of all batch normalizations, which `vmap` cannot update.

    Args:
        root: The module; it is changed in place.

    Returns:
        `root`.
    """
    for module in root.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
