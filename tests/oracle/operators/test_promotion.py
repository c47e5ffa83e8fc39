"""Promotion, exhaustively over all pairs of dtypes and kinds of operand; `finfo`, `iinfo`, dtypes themselves."""

from __future__ import annotations

import itertools
import pickle

import pytest
from support import from_torch, torch

import flambeau
from flambeau.core import dtype as dtypes
from flambeau.core.dtype import DTYPES
from flambeau.core.typeinfo import finfo, iinfo


def theirs(ours):
    return getattr(torch, ours.name)


def outcome(call, *args):
    """What a call gives, or the error it raises, as text."""
    try:
        return repr(call(*args))
    except (RuntimeError, TypeError) as error:
        return type(error).__name__, str(error)


PAIRS = list(itertools.product(DTYPES, DTYPES))


def test_promote_types_of_all_pairs():
    for a, b in PAIRS:
        assert outcome(dtypes.promote_types, a, b) == outcome(torch.promote_types, theirs(a), theirs(b)), (
            a,
            b,
        )


def test_can_cast_of_all_pairs():
    for a, b in PAIRS:
        assert dtypes.can_cast(a, b) == torch.can_cast(theirs(a), theirs(b)), (a, b)


SCALARS = [True, 2, 2.5, 1j]


@pytest.mark.parametrize("default", ["float32", "float64", "float16", "bfloat16"])
def test_result_type_of_all_categories(default):
    kind = getattr(flambeau, default)
    torch.set_default_dtype(theirs(kind))
    try:
        for a, b in PAIRS:
            ta, tb = theirs(a), theirs(b)
            for da, db in [(1, 0), (0, 0), (0, 1), (1, 1)]:
                x, y = torch.empty((2,) * da, dtype=ta), torch.empty((2,) * db, dtype=tb)
                where = ([], [])
                where[1 - da].append(a)
                where[1 - db].append(b)
                assert outcome(dtypes.combine, *where, []) == outcome(torch.result_type, x, y), (a, b, da, db)
        for a, dims, value in itertools.product(DTYPES, (0, 1), SCALARS):
            where = ([], [])
            where[1 - dims].append(a)
            scalar = dtypes.dtype_of_scalar(type(value), kind)
            want = outcome(torch.result_type, torch.empty((2,) * dims, dtype=theirs(a)), value)
            assert outcome(dtypes.combine, *where, [scalar]) == want, (a, dims, value)
    finally:
        torch.set_default_dtype(torch.float32)


def test_type_information_of_every_dtype():
    for d in DTYPES:
        for ours, oracle, names in [
            (
                finfo,
                torch.finfo,
                ["bits", "eps", "max", "min", "resolution", "smallest_normal", "tiny", "dtype"],
            ),
            (iinfo, torch.iinfo, ["bits", "max", "min", "dtype"]),
        ]:
            assert outcome(ours, d) == outcome(oracle, theirs(d))
            try:
                info = oracle(theirs(d))
            except TypeError:
                continue
            for name in names:
                assert getattr(ours(d), name) == getattr(info, name), (d, name)


def test_dtypes_have_pytorchs_attributes():
    for d in DTYPES:
        for name in ["is_complex", "is_floating_point", "is_signed", "itemsize"]:
            assert getattr(d, name) == getattr(theirs(d), name), (d, name)
        for name in ["to_complex", "to_real"]:
            assert outcome(getattr(d, name)) == outcome(getattr(theirs(d), name))


def test_dtypes_survive_pickling_as_themselves():
    for d in DTYPES:
        assert pickle.loads(pickle.dumps(d)) is d


def test_aliases_are_pytorchs():
    for name, d in dtypes.ALIASES.items():
        assert repr(getattr(torch, name)) == repr(d)
        assert getattr(flambeau, name) is d


def test_the_public_functions_are_pytorchs():
    x, y = torch.ones(2, dtype=torch.int32), torch.tensor(2.0, dtype=torch.float64)
    for a, b in [(x, y), (y, x), (x, 2.5), (1, 2), (x, 1j), (y, None)]:
        ours = [from_torch(v) if isinstance(v, torch.Tensor) else v for v in (a, b)]
        got, want = outcome(flambeau.result_type, *ours), outcome(torch.result_type, a, b)
        assert got == want if isinstance(want, str) else got[0] == want[0]
    assert flambeau.is_floating_point(from_torch(y)) and not from_torch(x).is_complex()
    assert flambeau.finfo().dtype == "float32"


def test_the_default_dtype_changes_what_scalars_and_quotients_become():
    assert flambeau.get_default_dtype() is flambeau.float32
    whole = from_torch(torch.ones(2, dtype=torch.int64))
    flambeau.set_default_dtype(flambeau.float64)
    try:
        assert (whole / 2).dtype is flambeau.float64
        assert (whole + 1j).dtype is flambeau.complex128
    finally:
        flambeau.set_default_dtype(flambeau.float32)
    assert (whole / 2).dtype is flambeau.float32
    for wrong in ("int32", "float8_e5m2"):
        got = outcome(flambeau.set_default_dtype, getattr(flambeau, wrong))
        assert got == outcome(torch.set_default_dtype, getattr(torch, wrong))
