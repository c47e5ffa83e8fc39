"""The older form of weight normalization: a hook computes the weight before each call of its module."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.nn.parameter import Parameter, is_lazy
from flambeau.tensor.tensor import Tensor


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """Return the norm over all dimensions but one, with dims of size 1; over all of them where `dim` is None or -1."""
    if dim is None or dim == -1:
        return v.norm()
    others = tuple([d for d in range(v.dim()) if d != dim % v.dim()])
    return v.norm(2, others, True) if others else v.abs()


def scale_to_norms(v: Tensor, g: Tensor, dim: int | None) -> Tensor:
    """Return v scaled so that its norms are g."""
    result: Tensor = v * (g / norm_except(v, dim))
    return result


class WeightNorm:
    """The hook of one weight, which computes `name` from the parameters `name`_g and `name`_v before each call."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute_weight(self, module: Any) -> Tensor:
        """Return the weight that the module's magnitude and direction parameters define."""
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return scale_to_norms(v, g, self.dim)

    @staticmethod
    def apply(module: Any, name: str, dim: int | None) -> WeightNorm:
        """Register the hook.

        Raises:
            RuntimeError: If the weight has one already.
            ValueError: If its shape is not known yet.
        """
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        made = WeightNorm(name, dim)
        weight = getattr(module, name)
        if is_lazy(weight):
            raise ValueError(
                "The module passed to `WeightNorm` can't have uninitialized parameters. Make sure to run the dummy "
                "forward before applying weight normalization"
            )
        del module._parameters[name]
        module.register_parameter(f"{name}_g", Parameter(norm_except(weight, made.dim).data))
        module.register_parameter(f"{name}_v", Parameter(weight.data))
        setattr(module, name, made.compute_weight(module))
        module.register_forward_pre_hook(made)
        return made

    def remove(self, module: Any) -> None:
        """Make the weight a parameter again."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[f"{self.name}_g"], module._parameters[f"{self.name}_v"]
        setattr(module, self.name, Parameter(weight.data))

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Split a weight into its norms `name`_g (over all dimensions but `dim`) and its direction `name`_v.

    Deprecated for `torch.nn.utils.parametrizations.weight_norm`. Returns the module.
    """
    warnings.warn(
        "`torch.nn.utils.weight_norm` is deprecated in favor of `torch.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
        stacklevel=2,
    )
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Make the weight a parameter again. Returns the module.

    Raises:
        ValueError: If it has no such hook.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")
