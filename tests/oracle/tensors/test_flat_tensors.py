"""torch._utils: many tensors as one row and back, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import _utils as theirs

import flambeau
from flambeau import _utils as mine

SHAPES = [(2, 3), (), (0, 4), (5,), (1, 2, 2)]


def tensors(library, kind="float32"):
    return [
        library.arange(float(library.Size(shape).numel())).reshape(shape).to(getattr(library, kind))
        for shape in SHAPES
    ]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64"])
def test_a_row_and_back(kind):
    def there_and_back(library, utils):
        flat = utils._flatten_dense_tensors(tensors(library, kind))
        parts = utils._unflatten_dense_tensors(flat, tensors(library, kind))
        flat.add_(1)  # the parts are views
        return type(parts).__name__, flat.tolist(), [(tuple(part.shape), part.tolist()) for part in parts]

    assert there_and_back(flambeau, mine) == there_and_back(torch, theirs)


def test_what_is_contiguous_alone_is_its_own_row():
    def shares(library, utils):
        one = library.ones(2, 3)
        return [utils._flatten_dense_tensors([t]).data_ptr() == one.data_ptr() for t in (one, one.t())]

    assert shares(flambeau, mine) == shares(torch, theirs) == [True, False]


def test_a_row_may_be_longer_but_not_shorter():
    flat, shape = flambeau.arange(5.0), [flambeau.ones(2, 2)]
    assert mine._unflatten_dense_tensors(flat, shape)[0].tolist() == [[0, 1], [2, 3]]
    for library, utils in ((flambeau, mine), (torch, theirs)):
        with pytest.raises(RuntimeError):
            utils._unflatten_dense_tensors(library.arange(3.0), [library.ones(2, 2)])
        with pytest.raises(ValueError, match="expected a non-empty list of Tensors"):
            utils._flatten_dense_tensors([])


def test_gradients_go_through():
    def gradients(library, utils):
        leaves = [t.requires_grad_() for t in tensors(library)]
        parts = utils._unflatten_dense_tensors(utils._flatten_dense_tensors(leaves), leaves)
        sum((part * part).sum() for part in parts).backward()
        return [leaf.grad.tolist() for leaf in leaves]

    assert gradients(flambeau, mine) == gradients(torch, theirs)


@pytest.mark.parametrize("limit", [1, 16, 24, 1000])
def test_tensors_are_taken_by_kind_and_size(limit):
    def taken(library, utils):
        several = [
            library.ones(n, dtype=getattr(library, kind))
            for n in (2, 3, 4, 9, 1)
            for kind in ("float32", "int64")
        ]
        return [[(str(t.dtype)[-7:], len(t)) for t in some] for some in utils._take_tensors(several, limit)]

    assert taken(flambeau, mine) == taken(torch, theirs)


def test_the_module_is_there_without_an_import():
    assert flambeau._utils is mine
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        mine._not_there  # noqa: B018
