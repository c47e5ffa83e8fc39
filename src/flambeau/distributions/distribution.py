"""`Distribution`, the base class of all distributions."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.distributions.constraints import is_dependent
from flambeau.distributions.utils import lazy_property
from flambeau.tensor.tensor import Tensor


class Distribution:
    """A batch of distributions: samples have the shape `sample_shape + batch_shape + event_shape`.

    A subclass says its parameters' constraints in `arg_constraints` and that of its values in `support`. With
    `validate_args` (the default unless Python runs with -O) both are checked, which on a GPU waits for the values.
    """

    has_rsample: Any = False
    has_enumerate_support = False
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions check their arguments by default.

        Raises:
            ValueError: If the value is not a bool.
        """
        if value not in (True, False):
            raise ValueError
        Distribution._validate_args = value

    def __init__(
        self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_arguments()
        super().__init__()  # a subclass may have other bases

    def _check_arguments(self) -> None:
        try:
            constraints = self.arg_constraints
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or initialize "
                "the distribution with `validate_args=False` to turn off validation.",
                stacklevel=4,
            )
            return
        for name, constraint in constraints.items():
            lazy = name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property)
            if is_dependent(constraint) or lazy:
                continue
            value = getattr(self, name)
            if not constraint.check(value).all():
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of distribution "
                    f"{self!r} to satisfy the constraint {constraint!r}, but found invalid values:\n{value}"
                )

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """Return the constraints of the parameters, by name."""
        raise NotImplementedError

    @property
    def support(self) -> Any:
        """Return the constraint of samples."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        raise NotImplementedError(f"{self.__class__} does not implement mode")

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    # -- what it does -----------------------------------------------------------------------------------

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw, without recording."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw so that gradients reach the parameters. Raises NotImplementedError unless `has_rsample`."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Tensor:
        """Draw n samples; PyTorch's older name of `sample((n,))`."""
        warnings.warn("sample_n will be deprecated. Use .sample((n,)) instead", FutureWarning, stacklevel=2)
        return self.sample(Size((n,)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability (or its density) of a value, of the batch's shape."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of values up to the given one."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """Return the reverse of `cdf`."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy in nats, in the batch's shape."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        return self.entropy().exp()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values, along a new first dimension; with `expand` for each member of the batch."""
        raise NotImplementedError

    def expand(self, batch_shape: Any, _instance: Any = None) -> Distribution:
        """Return the distribution with a larger batch, over the same memory."""
        raise NotImplementedError

    # -- for subclasses ---------------------------------------------------------------------------------

    def _expand_parts(self, batch_shape: Any, _instance: Any = None, **parts: Any) -> Any:
        """Return an instance of another batch with these attributes; nothing is checked again."""
        made = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in parts.items():
            setattr(made, name, value)
        Distribution.__init__(made, batch_shape, self._event_shape, validate_args=False)
        made._validate_args = self._validate_args
        return made

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """Return the instance that `expand` of a class fills: `_instance` or a new one.

        Raises:
            NotImplementedError: If a subclass has its own `__init__` and inherits `expand`.
        """
        if _instance is None and type(self).__init__ != cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(
                f"Subclass {self.__class__.__name__} of {cls.__name__} that defines a custom __init__ method must "
                "also define a custom .expand() method."
            )
        return self.__new__(type(self)) if _instance is None else _instance

    def _grown_parts(self, shape: Any, *names: str) -> dict[str, Any]:
        """Return those of the named attributes that exist, expanded to a shape."""
        return {name: self.__dict__[name].expand(shape) for name in names if name in self.__dict__}

    def _extended_shape(self, sample_shape: Any = ()) -> Size:
        return Size(sample_shape) + self._batch_shape + self._event_shape

    def _validate_sample(self, value: Any) -> None:
        """Raise ValueError for a value that is not a tensor, does not fit the shape, or is outside of the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        event = value.dim() - len(self._event_shape)
        if value.shape[event:] != self._event_shape:
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.shape} vs {self._event_shape}."
            )
        expected = self._batch_shape + self._event_shape
        for i, j in zip(reversed(value.shape), reversed(expected), strict=False):
            if i != 1 and j != 1 and i != j:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {value.shape} vs {expected}."
                )
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `support` to enable sample validation. Please initialize the "
                "distribution with `validate_args=False` to turn off validation.",
                stacklevel=3,
            )
            return
        if not support.check(value).all():
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be within the "
                f"support ({support!r}) of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        names = [name for name in self.arg_constraints if name in self.__dict__]
        parts = [(name, self.__dict__[name]) for name in names]
        listed = ", ".join(f"{name}: {v if v.numel() == 1 else v.size()}" for name, v in parts)
        return f"{type(self).__name__}({listed})"
