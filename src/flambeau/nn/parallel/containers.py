"""Tensors in the nested arguments and results of modules: conversion, extraction and replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.nn.utils.rnn import PackedSequence
from flambeau.tensor.tensor import Tensor


def map_members(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers with `change(member)` in place of each member that is not a container."""
    if isinstance(value, PackedSequence):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_members(member, change) for member in value])
    if isinstance(value, (list, tuple)):
        return type(value)([map_members(member, change) for member in value])
    if isinstance(value, dict):
        return type(value)([(key, map_members(member, change)) for key, member in value.items()])
    return change(value)


def flatten_members(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the members of nested containers in order, and a function that builds such containers from other
    members.
    """
    members: list[Any] = []
    map_members(value, members.append)

    def rebuild(new: list[Any]) -> Any:
        left = iter(new)
        return map_members(value, lambda _: next(left))

    return members, rebuild


def move_members(value: Any, where: device) -> Any:
    """Return tensors and packed sequences on a device; all else as it is."""
    kinds = (Tensor, PackedSequence)
    return map_members(value, lambda member: member.to(where) if isinstance(member, kinds) else member)


def cast(value: Any, kind: dtype | None) -> Any:
    """Return a container with its floating-point tensors converted to the dtype `kind`; None converts nothing."""
    if kind is None:
        return value
    return map_members(
        value,
        lambda member: (
            member.to(kind) if isinstance(member, Tensor) and member.is_floating_point() else member
        ),
    )
