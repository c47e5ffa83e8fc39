"""`Structures`: plan trees by structure, for calls that differ only in shapes.

A structure is an operator, its params without their integers, and its inputs without their sizes and strides
(`Meta.kind`). See Note [Plans of a structure] in core/tracing/symbols.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flambeau.core.meta import Meta
from flambeau.core.tracing.plan_tree import PlanTree

_WARMUP = 3  # number of shapes that are planned individually, because most structures have few
_MOST_INPUTS = 64  # a call with more inputs is planned individually
_LIMIT = 4096  # structures
_MOST_SEEN = 16_384  # keys
_SMALL = 16  # larger integers of params may be sizes
_ENDLESS = 1 << 62  # larger integers are ends of slices

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


def structure_of(key: tuple[Any, ...]) -> Structure:
    """Return the structure of a call.

    Args:
        key: The key of its plan: operator, params, then metas, types of scalars and further marks.
    """
    head, params, *operands = key
    metas: list[Meta] = []
    numbers: list[int] = []
    kinds = _take_metas(operands, metas)
    kept = _take_inputs(params, metas, numbers) if params else ()
    return Structure((head, kept, *kinds), [*metas, *numbers], len(metas))


def _take_metas(operands: Sequence[Any], metas: list[Meta]) -> list[Any]:
    """Return the entries of operands in a structure's key. The entry of a meta is its kind, or the position of an equal
    meta.

    Args:
        operands: The operands.
        metas: Receives the metas, without duplicates.
    """
    kinds: list[Any] = []
    for x in operands:
        if x.__class__ is not Meta:
            kinds.append(x)
        elif x in metas:
            kinds.append(metas.index(x))
        else:
            metas.append(x)
            kinds.append(x.kind)
    return kinds


class Structures:
    """Plan trees by structure. A structure gets a tree after it was called with a few shapes."""

    def __init__(self) -> None:
        self._trees: dict[Any, PlanTree | int] = {}  # or how often a structure was planned
        self._known: dict[
            Any, tuple[PlanTree, list[Any]]
        ] = {}  # key without layouts -> its tree, its integers

    def clear(self) -> None:
        self._trees.clear()
        self._known.clear()

    def find(self, key: tuple[Any, ...]) -> Any:
        """Return the plan with this key from its structure's tree; None if there is none."""
        metas: list[Meta] = []
        short: tuple[Any, ...]
        first, last = key[2] if len(key) > 2 else None, key[-1]
        if len(key) == 3 and first.__class__ is Meta:  # one and two operands are written out for speed
            metas.append(first)
            short = key[0], key[1], first.kind
        elif len(key) == 4 and first.__class__ is last.__class__ is Meta:
            metas += (first,) if first is last else (first, last)
            short = key[0], key[1], first.kind, 0 if first is last else last.kind
        else:
            short = (key[0], key[1], *_take_metas(key[2:], metas))
        known = self._known.get(short)
        if known is None:
            return self._find_by_numbers(key, short, metas)
        return known[0].find(*metas, *known[1])

    def _find_by_numbers(self, key: tuple[Any, ...], short: tuple[Any, ...], metas: list[Meta]) -> Any:
        """Return the result of `find` for a key whose params have new numbers.

        Args:
            key: The key.
            short: The key without the layouts of its operands.
            metas: These layouts.
        """
        numbers: list[int] = []
        kept = _take_inputs(key[1], metas, numbers) if key[1] else ()
        tree = self._trees.get((key[0], kept, *short[2:]))
        if tree.__class__ is not PlanTree:
            return None
        if _are_few(numbers) and not _has_metas(key[1]):
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[short] = tree, numbers
        return tree.find(*metas, *numbers)

    def note(self, key: tuple[Any, ...], planner: Planner) -> None:
        """Record a call that was planned individually. After a few such calls the structure's tree learns the case."""
        structure = structure_of(key)
        tree = self._trees.get(structure.key)
        if isinstance(tree, PlanTree):
            if not tree.is_full:
                self._learn(tree, structure, key, planner)
        elif tree is not None:
            self._trees[structure.key] = tree + 1 if tree < _WARMUP else PlanTree()
        elif len(structure.inputs) <= _MOST_INPUTS:
            if len(self._trees) >= _LIMIT:
                self.clear()
            self._trees[structure.key] = 1

    def _learn(self, tree: PlanTree, structure: Structure, key: tuple[Any, ...], planner: Planner) -> None:
        given = structure.inputs[: structure.metas]
        _, params, *operands = key

        def plan(metas: Sequence[Meta], numbers: Sequence[Any]) -> Any:
            symbolic = [metas[given.index(x)] if x.__class__ is Meta else x for x in operands]
            return planner(symbolic, _give_inputs(params, given, metas, iter(numbers)))

        tree.learn(plan, given, structure.inputs[structure.metas :])


def _are_few(numbers: list[int]) -> bool:
    """Return True if a program uses few such integers as params: none may be a size."""
    for n in numbers:  # noqa: SIM110
        if _SMALL < n < _ENDLESS:
            return False
    return True


def _has_metas(params: tuple[Any, ...]) -> bool:
    return any(p.__class__ is Meta or (isinstance(p, tuple) and _has_metas(p)) for p in params)


def _take_inputs(params: tuple[Any, ...], metas: list[Meta], numbers: list[int]) -> tuple[Any, ...]:
    """Return params without their integers, which `numbers` takes, and metas, which `metas` takes."""
    kept: list[Any] = []
    for p in params:
        kind = p.__class__
        if kind is int:
            numbers.append(p)
            kept.append(int)
        elif kind is tuple or isinstance(p, tuple):
            for n in p:
                if n.__class__ is not int:
                    kept.append((kind, *_take_inputs(p, metas, numbers)))
                    break
            else:  # a shape
                numbers += p
                kept.append((kind, len(p)))
        elif kind is Meta:
            kept.append((Meta, *_take_metas((p,), metas)))
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
        elif isinstance(p, tuple):
            inner = _give_inputs(p, given, metas, numbers)
            symbolic.append(p._make(inner) if hasattr(p, "_make") else inner)
        else:
            symbolic.append(metas[given.index(p)] if kind is Meta else p)
    return tuple(symbolic)


class SeenKeys:
    """The hashes of keys that were seen lately. Plans of keys that never occur again are not cached."""

    def __init__(self) -> None:
        self._hashes = array("q", [0]) * _MOST_SEEN  # a hash replaces another one with the same last bits

    def has_seen(self, key: Any) -> bool:
        """Return True if the key was seen before, and store it."""
        number = hash(key)
        hashes, at = self._hashes, number % _MOST_SEEN
        if hashes[at] == number:
            return True
        hashes[at] = number
        return False
