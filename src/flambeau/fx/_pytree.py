"""Flattening of arguments by a known structure, as generated code calls it."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import publish
from flambeau.utils._pytree import PyTree, TreeSpec, tree_flatten, tree_unflatten

__all__ = ["tree_flatten", "tree_flatten_spec", "tree_unflatten"]


def tree_flatten_spec(pytree: PyTree, spec: TreeSpec, exact_structural_match: bool = False) -> list[Any]:
    """Return the leaves of `pytree`, taken apart as `spec` says.

    Raises:
        ValueError: If the structure of `pytree` differs.
    """
    return spec.flatten_up_to(tuple(pytree) if spec.type is tuple else pytree)


publish(globals())
