"""The older form of spectral normalization: a weight divided by its largest singular value before each call."""

from __future__ import annotations

from typing import Any

from flambeau.nn.functional import normalize
from flambeau.nn.modules.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from flambeau.nn.parameter import Parameter, is_lazy
from flambeau.tape.mode import recording
from flambeau.tensor.tensor import Tensor

TRANSPOSED = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


def check_iterations(count: int) -> None:
    """Raise ValueError if the number of power iterations is not positive."""
    if count <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={count}")


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """Return a weight as a matrix with a row for each index of `dim`."""
    if dim:
        weight = weight.permute(dim, *[d for d in range(weight.dim()) if d != dim])
    return weight.reshape(weight.shape[0], -1)


class SpectralNorm:
    """The hook of one weight: `name` is the parameter `name`_orig over the largest singular value of its matrix.

    The buffers `name`_u and `name`_v approximate the singular vectors; calls in training make them better, in place.
    """

    _version = 1

    def __init__(
        self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        check_iterations(n_power_iterations)
        self.name = name
        self.dim = dim
        self.n_power_iterations = n_power_iterations
        self.eps = eps

    def reshape_weight_to_matrix(self, weight: Tensor) -> Tensor:
        """Return the weight as a matrix."""
        return as_matrix(weight, self.dim)

    def compute_weight(self, module: Any, do_power_iteration: bool) -> Tensor:
        """Return the weight over its largest singular value."""
        weight, u, v = (getattr(module, self.name + end) for end in ("_orig", "_u", "_v"))
        matrix = self.reshape_weight_to_matrix(weight)
        if do_power_iteration:
            with recording(False):
                for _ in range(self.n_power_iterations):
                    v.copy_(normalize(matrix.t().mv(u), dim=0, eps=self.eps))
                    u.copy_(normalize(matrix.mv(v), dim=0, eps=self.eps))
                # copies, so that two calls before one backward save different pairs
                u, v = u.clone(), v.clone()
        result: Tensor = weight / u.dot(matrix.mv(v))
        return result

    @staticmethod
    def apply(module: Any, name: str, n_power_iterations: int, dim: int, eps: float) -> SpectralNorm:
        """Register the hook.

        Raises:
            RuntimeError: If the weight has one already.
            ValueError: If the weight does not exist, or has no shape yet.
        """
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
        made = SpectralNorm(name, n_power_iterations, dim, eps)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
        if is_lazy(weight):
            raise ValueError(
                "The module passed to `SpectralNorm` can't have uninitialized parameters. Make sure to run the dummy "
                "forward before applying spectral normalization"
            )
        with recording(False):
            drawn = [weight.new_empty(n).normal_(0, 1) for n in made.reshape_weight_to_matrix(weight).shape]
            u, v = (normalize(x, dim=0, eps=eps) for x in drawn)
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        setattr(module, name, weight.data)
        module.register_buffer(f"{name}_u", u)
        module.register_buffer(f"{name}_v", v)
        module.register_forward_pre_hook(made)
        module._register_state_dict_hook(SpectralNormStateDictHook(made))
        module._register_load_state_dict_pre_hook(SpectralNormLoadStateDictPreHook(made))
        return made

    def remove(self, module: Any) -> None:
        """Make the weight a parameter again."""
        with recording(False):
            weight = self.compute_weight(module, do_power_iteration=False)
        for end in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + end)
        module.register_parameter(self.name, Parameter(weight.detach()))

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, do_power_iteration=module.training))


class SpectralNormStateDictHook:
    """A hook that stores the version of the implementation in a state dict's metadata."""

    def __init__(self, fn: SpectralNorm) -> None:
        self.fn = fn

    def __call__(self, module: Any, state_dict: Any, prefix: str, local_metadata: dict[str, Any]) -> None:
        versions, key = local_metadata.setdefault("spectral_norm", {}), f"{self.fn.name}.version"
        if key in versions:
            raise RuntimeError(f"Unexpected key in metadata['spectral_norm']: {key}")
        versions[key] = self.fn._version


class SpectralNormLoadStateDictPreHook:
    """A hook that refuses states from before version 1, which lack the right singular vector."""

    def __init__(self, fn: SpectralNorm) -> None:
        self.fn = fn

    def __call__(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        version = local_metadata.get("spectral_norm", {}).get(f"{self.fn.name}.version")
        key = prefix + self.fn.name
        if version is None and key in state_dict and f"{key}_v" not in state_dict:
            error_msgs.append(
                f"{key}: the state is of PyTorch before 1.0, whose spectral_norm kept no right singular vector: load "
                "and save it with PyTorch first"
            )


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Any:
    """Divide a weight by its largest singular value before each call. Returns the module.

    Args:
        dim: The dimension of the outputs (default: 1 for transposed convolutions, else 0).

    Raises:
        ValueError: If there is no iteration.
    """
    if dim is None:
        dim = 1 if isinstance(module, TRANSPOSED) else 0
    SpectralNorm.apply(module, name, n_power_iterations, dim, eps)
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Make the weight a parameter again. Returns the module.

    Raises:
        ValueError: If it has no such hook.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            break
    else:
        raise ValueError(f"spectral_norm of '{name}' not found in {module}")
    for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks):
        for key, hook in hooks.items():
            fn = getattr(hook, "fn", None)
            if isinstance(fn, SpectralNorm) and fn.name == name:
                del hooks[key]
                break
    return module
