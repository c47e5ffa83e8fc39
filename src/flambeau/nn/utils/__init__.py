"""torch.nn.utils: gradients clipped, parameters as vectors and reparametrized, sequences packed, layers fused.

A file is imported when one of its names is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FILES = {
    "clip_grad": "clip_grad_norm clip_grad_norm_ clip_grad_value_ clip_grads_with_norm_ get_total_norm",
    "convert_parameters": "parameters_to_vector vector_to_parameters",
    "fusion": "fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights",
    "init": "skip_init",
    "memory_format": "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format",
    "parametrizations": "",
    "parametrize": "",
    "prune": "",
    "rnn": "",
    "spectral_norm": "remove_spectral_norm spectral_norm",
    "weight_norm": "remove_weight_norm weight_norm",
}
NAMES = {name: file for file, names in _FILES.items() for name in names.split()}
__all__ = [*NAMES, "parametrizations", "parametrize", "rnn"]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        found = getattr(import_module(f"{__name__}.{NAMES[name]}"), name)
    elif name in _FILES:
        found = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(
            f"module 'torch.nn.utils' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)",
            name=name,
        )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
