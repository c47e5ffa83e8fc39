"""torch.nn.utils._named_member_accessor: replacement of the tensors of a module, which libraries use."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module
from flambeau.tensor.tensor import Tensor

_MISSING: Any = object()


def swap_tensor(module: Module, name: str, tensor: Any, allow_missing: bool = False) -> Any:
    """Replace a module's parameter, buffer or attribute by a tensor, and return the previous value.

    Args:
        module: The module.
        name: The name of the tensor in the module itself, not in a submodule.
        tensor: The tensor, or None.
        allow_missing: True if the module may have nothing of this name.

    Raises:
        AttributeError: If the module has nothing of this name, and `allow_missing` is False.
        KeyError: If the name is empty or contains a period.
        TypeError: If `module` is not a Module, or `tensor` or what was there is not a tensor.
    """
    if not isinstance(module, Module):
        raise TypeError(f"{module} is not an instance of torch.nn.Module")
    if tensor is not _MISSING and tensor is not None and not isinstance(tensor, Tensor):
        raise TypeError(f"{tensor} is not an instance of torch.Tensor")
    if not name or "." in name:
        raise KeyError('tensor name can\'t contain "."' if name else 'tensor name can\'t be empty string ""')
    place: Any = next((p for p in (module._parameters, module._buffers) if name in p), module.__dict__)
    before = place.get(name, _MISSING)
    if before is _MISSING and not allow_missing:
        raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
    if place is module.__dict__ and before is not _MISSING and not isinstance(before, Tensor):
        raise TypeError(f"attribute `{name}`: {before} is not an instance of torch.Tensor")
    if tensor is _MISSING:
        place.pop(name, None)
    elif before is _MISSING:
        setattr(module, name, tensor)
    else:
        place[name] = tensor
    return before


explain_absent_names(globals(), "torch.nn.utils._named_member_accessor")
