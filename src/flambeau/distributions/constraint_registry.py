"""`biject_to` and `transform_to`: transforms from unconstrained tensors to tensors that satisfy a constraint."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

from flambeau.distributions import constraints, transforms
from flambeau.distributions.event_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
)
from flambeau.distributions.transforms import Transform

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """A table of transforms by class of constraint."""

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}
        super().__init__()

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Register a function that returns the transform of a class of constraints.

        Args:
            constraint: Subclass of Constraint, or an instance of one.
            factory: Function of a constraint. Without it a decorator is returned.

        Raises:
            TypeError: If `constraint` is not a constraint.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, constraints.Constraint)):
            raise TypeError(
                f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}"
            )
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Any) -> Transform:
        """Return a transform to tensors that satisfy a constraint.

        Raises:
            NotImplementedError: If none is registered.
        """
        if type(constraint) not in self._registry:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return self._registry[type(constraint)](constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _register_both(*kinds: Any) -> Callable[[Factory], Factory]:
    def register(factory: Factory) -> Factory:
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


@_register_both(constraints.real)
def _to_real(constraint: Any) -> Transform:
    return transforms.identity_transform


@_register_both(constraints.greater_than, constraints.greater_than_eq)
def _to_greater_than(constraint: Any) -> Transform:
    if constraint is constraints.positive or constraint is constraints.nonnegative:
        return transforms.ExpTransform()
    return transforms.ComposeTransform(
        [transforms.ExpTransform(), transforms.AffineTransform(constraint.lower_bound, 1)]
    )


@_register_both(constraints.less_than)
def _to_less_than(constraint: Any) -> Transform:
    return transforms.ComposeTransform(
        [transforms.ExpTransform(), transforms.AffineTransform(constraint.upper_bound, -1)]
    )


@_register_both(constraints.interval, constraints.half_open_interval)
def _to_interval(constraint: Any) -> Transform:
    lower, upper = constraint.lower_bound, constraint.upper_bound
    if isinstance(lower, Number) and lower == 0 and isinstance(upper, Number) and upper == 1:
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform(
        [transforms.SigmoidTransform(), transforms.AffineTransform(lower, upper - lower)]
    )


@_register_both(constraints.corr_cholesky)
def _to_corr_cholesky(constraint: Any) -> Transform:
    return CorrCholeskyTransform()


@biject_to.register(constraints.simplex)
def _bijection_to_simplex(constraint: Any) -> Transform:
    return StickBreakingTransform()


@transform_to.register(constraints.simplex)
def _to_simplex(constraint: Any) -> Transform:
    return SoftmaxTransform()


@transform_to.register(constraints.lower_cholesky)
def _to_lower_cholesky(constraint: Any) -> Transform:
    return LowerCholeskyTransform()


@transform_to.register(constraints.positive_definite)
@transform_to.register(constraints.positive_semidefinite)
def _to_positive_definite(constraint: Any) -> Transform:
    return PositiveDefiniteTransform()


def _register_compounds(registry: ConstraintRegistry) -> None:
    """Register transforms of constraints that are made of others."""

    @registry.register(constraints.independent)
    def to_independent(constraint: Any) -> Transform:
        base = registry(constraint.base_constraint)
        return IndependentTransform(base, constraint.reinterpreted_batch_ndims)

    @registry.register(constraints.cat)
    def to_cat(constraint: Any) -> Transform:
        parts = [registry(part) for part in constraint.cseq]
        return CatTransform(parts, constraint.dim, constraint.lengths)

    @registry.register(constraints.stack)
    def to_stack(constraint: Any) -> Transform:
        return StackTransform([registry(part) for part in constraint.cseq], constraint.dim)


_register_compounds(biject_to)
_register_compounds(transform_to)

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]
