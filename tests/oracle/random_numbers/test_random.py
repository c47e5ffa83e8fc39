"""The CPU generator against PyTorch's: the same seed gives the same numbers, and the states are interchangeable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import same, to_torch, torch

import flambeau

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
# float32 and narrower are drawn through float32's log, sin and cos, whose last bits differ between libraries.
ULPS = {"float32": 32, "float64": 32, "float16": 1, "bfloat16": 1}


def both(seed: int, run: Any) -> tuple[Any, Any]:
    """The same program on both libraries after the same seed."""
    results = []
    for library in (flambeau, torch):
        library.manual_seed(seed)
        results.append(run(library))
    return results[0], results[1]


@pytest.mark.parametrize("dtype", FLOATS)
@given(seed=st.integers(0, 2**63 - 1), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_rand_is_bit_for_bit(dtype: str, seed: int, sizes: list[int]) -> None:
    ours, theirs = both(seed, lambda lib: [lib.rand(n, dtype=getattr(lib, dtype)) for n in sizes])
    same(ours, theirs)


@pytest.mark.parametrize("dtype", FLOATS)
@given(seed=st.integers(0, 2**63 - 1), sizes=st.lists(st.integers(0, 70), min_size=1, max_size=5))
def test_randn_takes_the_same_words(dtype: str, seed: int, sizes: list[int]) -> None:
    """Values to the rounding of log and cos; that the same words were used shows in what is drawn afterwards."""

    def run(lib: Any) -> list[Any]:
        drawn = [lib.randn(n, dtype=getattr(lib, dtype)) for n in sizes]
        return [*drawn, lib.rand(3)]

    ours, theirs = both(seed, run)
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        close(one, other, dtype)
    same(ours[-1], theirs[-1])


def close(ours: Any, theirs: Any, dtype: str) -> None:
    """To some ulps of the largest value, since a normal number is a product with a cosine that may be near 0."""
    one, other = to_torch(ours).double().numpy(), theirs.double().numpy()
    assert one.shape == other.shape
    scale = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(one, other, rtol=scale, atol=ULPS[dtype] * scale)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (0.1, 0.3), (1000, 1001)])
def test_uniform_numbers_do_not_round_up_to_the_bound(dtype: str, low: float, high: float) -> None:
    same(*both(0, lambda lib: lib.empty(40_000, dtype=getattr(lib, dtype)).uniform_(low, high)))


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64", "bool"])
@given(seed=st.integers(0, 2**32), n=st.integers(0, 30))
def test_random_without_bounds(dtype: str, seed: int, n: int) -> None:
    same(*both(seed, lambda lib: lib.empty(n, dtype=getattr(lib, dtype)).random_()))


@given(
    seed=st.integers(0, 2**32),
    low=st.integers(-(2**40), 2**40),
    span=st.integers(1, 2**45) | st.sampled_from([2**28 - 1, 2**28, 2**32, 2**32 + 1]),
    n=st.integers(0, 20),
)
def test_randint(seed: int, low: int, span: int, n: int) -> None:
    same(*both(seed, lambda lib: lib.randint(low, low + span, (n,))))


@given(seed=st.integers(0, 2**32), n=st.integers(0, 300))
def test_randperm(seed: int, n: int) -> None:
    same(*both(seed, lambda lib: lib.randperm(n)))


@pytest.mark.parametrize(
    "run",
    [
        lambda lib: lib.empty(50).uniform_(-2, 3),
        lambda lib: lib.empty(500, dtype=lib.float64).uniform_(-2, 3.3),
        lambda lib: lib.empty(500, dtype=lib.float64).uniform_(1e6, 1e6 + 1),
        lambda lib: lib.empty(500, dtype=lib.float64).uniform_(-1e-9, 1e300),
        lambda lib: lib.empty(50).bernoulli_(0.3),
        lambda lib: lib.empty(50, dtype=lib.int64).bernoulli_(0.7),
        lambda lib: lib.bernoulli(lib.full((50,), 0.3)),
        lambda lib: lib.empty(3, 5).t().uniform_(),
        lambda lib: lib.rand_like(lib.ones(3, 4, dtype=lib.float64)),
        lambda lib: lib.randint_like(lib.ones(3, 4, dtype=lib.int32), 2, 9),
        lambda lib: lib.rand(2, 3, out=lib.empty(2, 3)),
    ],
)
def test_exact_forms(run: Any) -> None:
    same(*both(7, run))


@pytest.mark.parametrize(
    "run",
    [
        lambda lib: lib.empty(50).exponential_(2.0),
        lambda lib: lib.empty(50).cauchy_(1.0, 2.0),
        lambda lib: lib.empty(50).log_normal_(0.1, 0.3),
        lambda lib: lib.empty(50).geometric_(0.3),
        lambda lib: lib.normal(2.0, 3.0, (40,)),
        lambda lib: lib.normal(lib.arange(20.0), lib.full((20,), 0.5)),
    ],
)
def test_close_forms(run: Any) -> None:
    ours, theirs = both(11, run)
    np.testing.assert_allclose(to_torch(ours).numpy(), theirs.numpy(), rtol=2e-5, atol=1e-5)


@given(seed=st.integers(0, 2**63 - 1), drawn=st.integers(0, 1300), normals=st.integers(0, 3))
def test_states_travel_both_ways(seed: int, drawn: int, normals: int) -> None:
    theirs = torch.Generator().manual_seed(seed)
    torch.rand(drawn, generator=theirs)
    torch.randn(normals, generator=theirs)
    ours = flambeau.Generator()
    ours.set_state(flambeau.tensor(theirs.get_state().tolist(), dtype=flambeau.uint8))
    back = torch.Generator()
    back.set_state(torch.tensor(ours.get_state().tolist(), dtype=torch.uint8))
    expected = torch.rand(30, generator=theirs)
    same(flambeau.rand(30, generator=ours), expected)
    assert torch.equal(torch.rand(30, generator=back), expected)


def test_fresh_state_is_byte_for_byte() -> None:
    ours = flambeau.Generator().manual_seed(42).get_state()
    assert ours.tolist() == torch.Generator().manual_seed(42).get_state().tolist()
    assert flambeau.Generator().initial_seed() == torch.Generator().initial_seed()


@pytest.mark.parametrize(
    "run",
    [
        lambda lib: lib.empty(3).uniform_(2, 1),
        lambda lib: lib.empty(3).normal_(0, -1),
        lambda lib: lib.empty(3).bernoulli_(1.5),
        lambda lib: lib.empty(3).exponential_(-1),
        lambda lib: lib.randint(5, 5, (3,)),
        lambda lib: lib.empty(3, dtype=lib.int8).random_(0, 300),
        lambda lib: lib.rand(3, dtype=lib.int64),
        lambda lib: lib.randperm(-1),
        lambda lib: lib.bernoulli(lib.ones(3, dtype=lib.int64)),
        lambda lib: lib.manual_seed(2**64),
        lambda lib: lib.set_rng_state(lib.zeros(10, dtype=lib.uint8)),
        lambda lib: lib.set_rng_state(lib.zeros(5056)),
    ],
)
def test_refusals_have_pytorchs_type(run: Any) -> None:
    with pytest.raises(Exception) as theirs:
        run(torch)
    with pytest.raises(theirs.type):
        run(flambeau)


FILLS = {
    "normal_": (), "uniform_": (), "exponential_": (), "cauchy_": (), "log_normal_": (), "geometric_": (0.5,),
    "random_": (), "bernoulli_": (),
}  # fmt: skip
KINDS = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "float16", "bfloat16", "float64", "complex64",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FILLS, "rrelu", "randn", "rand", "randperm", "bernoulli"])
def test_a_dtype_is_filled_or_refused_as_by_pytorch(name: str, kind: str) -> None:
    """float16 `rrelu` is the exception: PyTorch's CPU build has no kernel for it, a GPU does."""

    def run(lib: Any) -> Any:
        dtype = getattr(lib, kind)
        if name in FILLS:
            return getattr(lib.zeros(3, dtype=dtype), name)(*FILLS[name])
        if name == "rrelu":
            return lib.nn.functional.rrelu(lib.zeros(3, dtype=dtype), training=True)
        return (
            lib.bernoulli(lib.zeros(3, dtype=dtype))
            if name == "bernoulli"
            else getattr(lib, name)(3, dtype=dtype)
        )

    if (name, kind) == ("rrelu", "float16"):
        pytest.skip("PyTorch's CPU build lacks it")
    outcomes = []
    for lib in (torch, flambeau):
        try:
            outcomes.append(("filled", str(run(lib).dtype)))
        except Exception as error:
            outcomes.append((type(error).__name__, str(error)))
    assert outcomes[0] == outcomes[1]
