"""`Structures`: plan trees by structure, for calls that differ only in shapes.

A structure is an operator, its params without their integers, and its inputs without their sizes and strides
(`Meta.kind`). See Note [Plans of a structure] in core/tracing/symbols.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flambeau.core.meta import Meta
from flambeau.core.size import Size
from flambeau.core.tracing.plan_tree import PlanTree

_WARMUP = 3  # number of shapes that are planned individually, because most structures have few
_MOST_INPUTS = 64  # a call with more inputs is planned individually
_LIMIT = 4096  # structures
_MOST_SEEN = 16_384  # keys

Planner = Callable[[Sequence[Any], tuple[Any, ...]], Any]
"""Planning code: from the operands of a call (metas, types of scalars) and its params to the result of a tree."""


class Structure(NamedTuple):
    """A call without its numbers.

    Attributes:
        key: The part that calls of one structure share.
        inputs: The inputs of their tree: layouts, without duplicates, then the integers among the params.
        metas: Number of layouts.
    """

    key: tuple[Any, ...]
    inputs: list[Any]
    metas: int


def structure_of(head: Any, operands: Sequence[Any], params: tuple[Any, ...]) -> Structure:
    """Return the structure of a call, where operands are metas or types of scalars."""
    metas: list[Meta] = []
    key = [head, *[_take_meta(x, metas) if isinstance(x, Meta) else x for x in operands]]
    if not params:
        return Structure(tuple(key), metas, len(metas))
    numbers: list[int] = []
    key.append(_take_inputs(params, metas, numbers))
    return Structure(tuple(key), [*metas, *numbers], len(metas))


def _take_meta(meta: Meta, metas: list[Meta]) -> Any:
    """Return the entry of a meta in a structure's key: its kind, or the position of an equal meta."""
    if meta in metas:
        return metas.index(meta)
    metas.append(meta)
    return meta.kind


class Structures:
    """Plan trees by structure. A structure gets a tree after it was called with a few shapes."""

    def __init__(self) -> None:
        self._trees: dict[Any, PlanTree | int] = {}  # or how often a structure was planned

    def clear(self) -> None:
        self._trees.clear()

    def find(self, structure: Structure) -> Any:
        """Return the plan of a call from its structure's tree; None if there is none."""
        tree = self._trees.get(structure.key)
        return tree.find(*structure.inputs) if tree.__class__ is PlanTree else None

    def note(
        self, structure: Structure, operands: Sequence[Any], params: tuple[Any, ...], planner: Planner
    ) -> None:
        """Record a call that was planned individually. After a few such calls the structure's tree learns the case."""
        trees, key = self._trees, structure.key
        tree = trees.get(key)
        if isinstance(tree, PlanTree):
            if not tree.is_full:
                self._learn(tree, structure, operands, params, planner)
        elif tree is not None:
            trees[key] = tree + 1 if tree < _WARMUP else PlanTree()
        elif len(structure.inputs) <= _MOST_INPUTS:
            if len(trees) >= _LIMIT:
                trees.clear()
            trees[key] = 1

    def _learn(
        self, tree: PlanTree, structure: Structure, operands: Sequence[Any], params: tuple[Any, ...], planner: Planner
    ) -> None:  # fmt: skip
        given = structure.inputs[: structure.metas]

        def plan(metas: Sequence[Meta], numbers: Sequence[Any]) -> Any:
            symbolic = [metas[given.index(x)] if isinstance(x, Meta) else x for x in operands]
            return planner(symbolic, _give_inputs(params, given, metas, iter(numbers)))

        tree.learn(plan, given, structure.inputs[structure.metas :])


class SeenKeys:
    """The hashes of keys that were seen once. Plans of keys that never occur again are not cached."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def has_seen(self, key: Any) -> bool:
        """Return True if the key was seen before, and store it."""
        number = hash(key)
        if number in self._hashes:
            return True
        if len(self._hashes) >= _MOST_SEEN:
            self._hashes.clear()
        self._hashes.add(number)
        return False


def _take_inputs(params: tuple[Any, ...], metas: list[Meta], numbers: list[int]) -> tuple[Any, ...]:
    """Return params without their integers, which `numbers` takes, and metas, which `metas` takes."""
    kept: list[Any] = []
    for p in params:
        kind = p.__class__
        if kind is int:
            numbers.append(p)
            kept.append(int)
        elif kind is tuple or kind is Size:
            kept.append(_take_inputs(p, metas, numbers))
        elif kind is Meta:
            kept.append((Meta, _take_meta(p, metas)))
        else:
            kept.append((bool, p) if kind is bool else p)
    return tuple(kept)


def _give_inputs(
    params: tuple[Any, ...], given: Sequence[Any], metas: Sequence[Meta], numbers: Iterator[Any]
) -> tuple[Any, ...]:
    """Return params with symbols in the place of their integers and metas."""
    symbolic: list[Any] = []
    for p in params:
        kind = p.__class__
        if kind is int:
            symbolic.append(next(numbers))
        elif kind is tuple or kind is Size:
            symbolic.append(_give_inputs(p, given, metas, numbers))
        else:
            symbolic.append(metas[given.index(p)] if kind is Meta else p)
    return tuple(symbolic)
