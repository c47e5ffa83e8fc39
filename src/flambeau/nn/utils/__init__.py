"""torch.nn.utils: gradients clipped, parameters as vectors and reparametrized, sequences packed, layers fused.

Most files are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flambeau.core.public_names import lacking as _lacking

# Files that have the name of their function: imported later they would take its place here.
from flambeau.nn.utils.spectral_norm import remove_spectral_norm as remove_spectral_norm
from flambeau.nn.utils.spectral_norm import spectral_norm as spectral_norm
from flambeau.nn.utils.weight_norm import remove_weight_norm as remove_weight_norm
from flambeau.nn.utils.weight_norm import weight_norm as weight_norm

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
    "stateless": "",
}
NAMES = {name: file for file, names in _FILES.items() for name in names.split()}
__all__ = [
    *NAMES, "parametrizations", "parametrize", "remove_spectral_norm", "remove_weight_norm", "rnn", "spectral_norm",
    "stateless", "weight_norm",
]  # fmt: skip
_raise_absence = _lacking("torch.nn.utils")


def __getattr__(name: str) -> Any:
    if name in NAMES:
        found = getattr(import_module(f"{__name__}.{NAMES[name]}"), name)
    elif name in _FILES:
        found = import_module(f"{__name__}.{name}")
    else:
        _raise_absence(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
