"""Pruning: parameters with a mask of zeros, applied before each call of their module.

The parameter `name` becomes `name`_orig, the mask is the buffer `name`_mask, and `name` is their product. A method
computes the mask; a `PruningContainer` holds several methods of one parameter.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from flambeau.nn.utils.convert_parameters import parameters_to_vector
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class BasePruningMethod(ABC):
    """A method that computes a pruning mask, and the hook that applies it. Subclasses define `compute_mask`.

    Attributes:
        PRUNING_TYPE: The part that `compute_mask` receives after earlier pruning: the remaining elements
            ("unstructured"), the remaining channels ("structured"), or everything ("global").
    """

    PRUNING_TYPE: ClassVar[str]
    _tensor_name: str

    def __call__(self, module: Any, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask of t, zero where `default_mask` is zero too."""

    def apply_mask(self, module: Any) -> Tensor:
        """Return the parameter of a module with zeros where its mask has them."""
        mask, orig = (getattr(module, self._tensor_name + end) for end in ("_mask", "_orig"))
        pruned: Tensor = mask.to(dtype=orig.dtype) * orig
        return pruned

    @classmethod
    def apply(
        cls, module: Any, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prune a parameter by its values, or by scores of its shape. Returns the hook.

        Further arguments are those of the method's constructor. If the call raises, the module is unchanged.
        """
        made = cls(*args, **kwargs)
        made._tensor_name = name
        orig = getattr(module, name)
        scores = orig if importance_scores is None else importance_scores
        if scores.shape != orig.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as parameter {name} of {module}, got {scores.shape} vs "
                f"{orig.shape}"
            )
        key, before = _hook_of(module, name)
        method: BasePruningMethod = made
        if before is None:
            mask = made.compute_mask(scores, default_mask=creation.ones_like(orig))
            module.register_parameter(f"{name}_orig", orig)
            del module._parameters[name]
        else:
            method = PruningContainer(*(before if isinstance(before, PruningContainer) else (before,)), made)
            mask = method.compute_mask(scores, getattr(module, f"{name}_mask").detach().clone())
            del module._forward_pre_hooks[key]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """Return a copy of t with zeros at the elements that this method prunes, by t or by `importance_scores`."""
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise AssertionError(
                f"importance_scores should have the same shape as tensor t, got {scores.shape} vs {t.shape}"
            )
        mask = creation.ones_like(t) if default_mask is None else default_mask
        pruned: Tensor = t * self.compute_mask(scores, default_mask=mask)
        return pruned

    def remove(self, module: Any) -> None:
        """Make the pruned parameter an ordinary one. Zeros remain."""
        name = self._tensor_name
        weight = self.apply_mask(module)
        delattr(module, name)
        orig = module._parameters.pop(f"{name}_orig")
        orig.data = weight.data
        del module._buffers[f"{name}_mask"]
        setattr(module, name, orig)


def _hook_of(module: Any, name: str) -> tuple[Any, BasePruningMethod | None]:
    """Return the hook that prunes a parameter, with its key; None."""
    found = [
        (key, hook)
        for key, hook in module._forward_pre_hooks.items()
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
    ]
    if len(found) > 1:
        raise AssertionError(
            f"Avoid adding multiple pruning hooks to the same tensor {name} of module {module}. Use a PruningContainer."
        )
    return found[0] if found else (None, None)


class PruningContainer(BasePruningMethod):
    """A sequence of pruning methods of one parameter. Each prunes among the elements that the previous methods kept."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: Any) -> None:
        """Add a pruning method.

        Raises:
            TypeError: If there is no method.
            ValueError: For one of another parameter.
        """
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if self._tensor_name != method._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to PruningContainer "
                f"{self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask after the last method."""
        method = self._pruning_methods[-1]
        left = _index_of_unpruned(method, t, default_mask)
        mask = default_mask.to(dtype=t.dtype, copy=True)
        chosen = method.compute_mask(t[left], default_mask=default_mask[left])
        mask[left] = chosen.to(dtype=mask.dtype)
        return mask


def _index_of_unpruned(method: Any, t: Tensor, mask: Tensor) -> Any:
    """Return the index of the elements that a method may prune."""
    if method.PRUNING_TYPE == "unstructured":
        return mask == 1
    everything = [slice(None)] * t.dim()
    if method.PRUNING_TYPE == "global":
        return tuple(everything)
    if method.PRUNING_TYPE != "structured":
        raise ValueError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
    if not hasattr(method, "dim"):
        raise AttributeError(
            'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` defined.'
        )
    dim = method.dim + t.dim() if method.dim < 0 else method.dim
    if dim < 0:
        raise IndexError(f"Index is out of bounds for tensor with dimensions {t.dim()}")
    kept: Any = mask.sum(dim=[d for d in range(t.dim()) if d != dim]) != 0
    return (*everything[:dim], kept, *everything[dim + 1 :])


# -- methods --------------------------------------------------------------------------------------------------


class Identity(BasePruningMethod):
    """A pruning method that prunes nothing."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _ByAmount(BasePruningMethod):
    """A pruning method that prunes a number (int) or a fraction (float) of elements."""

    def __init__(self, amount: float) -> None:
        _check_amount(amount)
        self.amount = amount

    def _count(self, size: int) -> int:
        whole = isinstance(self.amount, numbers.Integral)
        count = int(self.amount) if whole else round(self.amount * size)
        if count > size:
            raise ValueError(
                f"amount={count} should be smaller than the number of parameters to prune={size}"
            )
        return count


class RandomUnstructured(_ByAmount):
    """A pruning method that removes random elements."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = self._count(t.numel())
        return _without(default_mask, count, lambda: functions["rand_like"](t), largest=True)


class L1Unstructured(_ByAmount):
    """A pruning method that removes the elements of least absolute value."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return _without(default_mask, self._count(t.numel()), t.abs, largest=False)


def _without(mask: Tensor, count: int, scores: Any, largest: bool) -> Tensor:
    """Return a copy of a mask with zeros at the largest or smallest of the scores."""
    mask = mask.clone()
    if count:
        places = scores().reshape(-1).topk(count, largest=largest).indices
        mask.view(-1)[places] = 0
    return mask


class _Structured(_ByAmount):
    """A pruning method that prunes whole channels along `dim`."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.dim() <= 1:
            raise ValueError(
                f"Structured pruning can only be applied to multidimensional tensors. Found tensor of shape {t.shape} "
                f"with {t.dim()} dims"
            )
        if self.dim >= t.dim():
            raise IndexError(f"Invalid index {self.dim} for tensor of size {t.shape}")
        size = t.shape[self.dim]
        count = self._count(size)
        if not count:
            return default_mask
        kept = self._unpruned_channels(t, size, count)
        shape = [1] * t.dim()
        shape[self.dim] = size
        return kept.to(t.dtype).reshape(shape).expand(t.shape) * default_mask.to(dtype=t.dtype)

    @abstractmethod
    def _unpruned_channels(self, t: Tensor, size: int, count: int) -> Tensor:
        """Return, for each channel, True if it stays when `count` channels are pruned."""


class RandomStructured(_Structured):
    """A pruning method that removes random channels along `dim`. The CPU draws the random numbers."""

    def _unpruned_channels(self, t: Tensor, size: int, count: int) -> Tensor:
        drawn = functions["rand"](size)
        kept: Tensor = (drawn > drawn.kthvalue(count).values).to(t.device)
        return kept


class LnStructured(_Structured):
    """A pruning method that removes the channels along `dim` with the smallest norm of order `n`."""

    def __init__(self, amount: float, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _unpruned_channels(self, t: Tensor, size: int, count: int) -> Tensor:
        others = [d for d in range(t.dim()) if d != self.dim % t.dim()]
        places = functions["norm"](t, p=self.n, dim=others).topk(size - count, largest=True).indices
        kept: Tensor = places.new_zeros(size).index_fill_(0, places, 1)
        return kept


class CustomFromMask(BasePruningMethod):
    """A pruning method that removes the elements where a mask is zero."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise AssertionError(
                f"default_mask shape {default_mask.shape} must match self.mask shape {self.mask.shape}"
            )
        return default_mask * self.mask.to(dtype=default_mask.dtype)


def _check_amount(amount: Any) -> None:
    if not isinstance(amount, numbers.Real):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    whole = isinstance(amount, numbers.Integral)
    if amount < 0 or (not whole and amount > 1.0):
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
        )


# -- functions: each returns the module -----------------------------------------------------------------------


def identity(module: Any, name: str) -> Any:
    """Add the pruning mask and hook to a parameter without pruning any element."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Any, name: str, amount: float) -> Any:
    """Prune elements at random: so many (int), or a fraction (float)."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Any, name: str, amount: float, importance_scores: Tensor | None = None) -> Any:
    """Prune the elements of least absolute value: so many (int), or a fraction (float)."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Any, name: str, amount: float, dim: int) -> Any:
    """Prune channels along `dim` at random: so many (int), or a fraction (float)."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Any, name: str, amount: float, n: Any, dim: int, importance_scores: Tensor | None = None
) -> Any:
    """Prune the channels along `dim` of least norm of order `n`: so many (int), or a fraction (float)."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Any, name: str, mask: Tensor) -> Any:
    """Prune the elements where `mask` is zero."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Any, pruning_method: Any, importance_scores: dict[Any, Tensor] | None = None, **kwargs: Any
) -> None:
    """Prune parameters, a list of (module, name), as if they were one tensor.

    Raises:
        TypeError: If the value is not a list, scores that are no dict, a method that is not
            unstructured.
    """
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    scores = {} if importance_scores is None else importance_scores
    if not isinstance(scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    listed = [(module, name, getattr(module, name)) for module, name in parameters]
    masks = [getattr(module, f"{name}_mask", creation.ones_like(t)) for module, name, t in listed]
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    all_scores = parameters_to_vector([scores.get((module, name), t) for module, name, t in listed])
    mask = PruningContainer(method).compute_mask(all_scores, parameters_to_vector(masks))
    for (module, name, t), part in zip(listed, mask.split([t.numel() for *_, t in listed]), strict=True):
        custom_from_mask(module, name, part.view_as(t))


def remove(module: Any, name: str) -> Any:
    """Make a pruned parameter an ordinary one. Zeros remain.

    Raises:
        ValueError: If it is not pruned.
    """
    key, hook = _hook_of(module, name)
    if hook is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
        )
    hook.remove(module)
    del module._forward_pre_hooks[key]
    return module


def is_pruned(module: Any) -> bool:
    """Return True if a parameter of the module, or of a submodule, is pruned."""
    hooks = [hook for part in module.modules() for hook in part._forward_pre_hooks.values()]
    return any(isinstance(hook, BasePruningMethod) for hook in hooks)
