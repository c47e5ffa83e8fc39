"""The public names under which `tensor/functions` binds a pointwise operator."""

from __future__ import annotations

from flambeau.core.frozen import Record


class PublicForms(Record):
    """The public names of a pointwise operator that are bound from its definition.

    Attributes:
        bound: True if `torch.<name>` and `Tensor.<name>` are bound; False if they are written by hand or do not exist.
        in_place: True if `Tensor.<name>_` is bound.
        torch_in_place: True if `torch.<name>_` is bound.
        foreach: True if `torch._foreach_<name>` and `torch._foreach_<name>_` are bound.
        operator: Python's operator that is bound from it: "add" for `__add__`, `__radd__` and `__iadd__`. A comparison
            has only the first of these.
        aliases: Other names of all forms except those of lists.
        second: PyTorch's name of the second argument, if it is not `other`.
    """

    bound: bool = True
    in_place: bool = True
    torch_in_place: bool = False
    foreach: bool = False
    operator: str = ""
    aliases: tuple[str, ...] = ()
    second: str = ""


USUAL = PublicForms()
NO_IN_PLACE = PublicForms(in_place=False)
TORCH_IN_PLACE = PublicForms(torch_in_place=True)
MATH = PublicForms(torch_in_place=True, foreach=True)
BY_HAND = PublicForms(bound=False)
BY_HAND_AND_FOREACH = PublicForms(bound=False, foreach=True)
