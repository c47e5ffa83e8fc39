"""The CUDA generator: known answers of Philox, and what PyTorch drew on an H100 (tests/goldens)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core.random import philox

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "random_h100.json").read_text())
CALLS: dict[str, Any] = {
    "rand": lambda t: t.uniform_(),
    "uniform": lambda t: t.uniform_(-2, 3),
    "randn": lambda t: t.normal_(),
    "normal": lambda t: t.normal_(1, 2),
    "bernoulli": lambda t: t.bernoulli_(0.3),
    "exponential": lambda t: t.exponential_(),
    "random": lambda t: t.random_(),
    "randint10": lambda t: t.random_(-5, 10),
    "randint_wide": lambda t: t.random_(0, 1 << 40),
    "randint_28": lambda t: t.random_(0, 1 << 28),
    "randint_28_less": lambda t: t.random_(0, (1 << 28) - 1),
    "randperm": lambda t: torch.randperm(t.numel(), dtype=t.dtype, device="cuda"),
}
# What differs in its last bits: the GPU's log, sin and cos, and its fused multiply-add of doubles.
ROUNDED = {"randn", "normal", "exponential", "uniform"}
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def test_known_answers_of_the_reference_implementation() -> None:
    """Random123's kat_vectors for philox4x32 with 10 rounds: all-zero and pi counters."""
    assert [hex(w) for w in philox(0, 0, 1)[:, 0].tolist()] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


@pytest.fixture(scope="module")
def h100() -> Iterator[None]:
    with torch.virtual(devices=1, profile="h100"):
        yield


@pytest.mark.parametrize("row", GOLDENS["rows"], ids=lambda r: f"{r['call']}-{r['dtype']}-{r['size']}")
def test_the_virtual_h100_draws_what_an_h100_drew(h100: None, row: dict[str, Any]) -> None:
    if row["size"] > 300_000 and row["call"] not in ("rand", "random"):
        row = row | {"size": 0}  # several rounds of the grid are covered by these two calls
    dtype = getattr(torch, row["dtype"])
    torch.cuda.manual_seed(1234)
    CALLS[row["call"]](torch.empty(7, dtype=dtype, device="cuda"))
    if not row["size"]:
        return
    drawn = CALLS[row["call"]](torch.empty(row["size"], dtype=dtype, device="cuda")).cpu()
    assert int.from_bytes(bytes(torch.cuda.get_rng_state().tolist()[8:]), "little") == row["offset"]
    values = drawn.double().tolist()
    if row["call"] in ROUNDED:
        eps = EPS[row["dtype"]]
        np.testing.assert_allclose(values[:6], row["first"], rtol=8 * eps, atol=8 * eps)
        np.testing.assert_allclose(values[-2:], row["last"], rtol=8 * eps, atol=8 * eps)
    else:
        raw = drawn.contiguous().view(torch.uint8).numpy().tobytes()
        assert hashlib.sha256(raw).hexdigest() == row["digest"]


def test_offsets_follow_the_grid(h100: None) -> None:
    """A draw of four words per thread: 132 SMs of 8 blocks of 256 threads take 1,081,344 floats a round."""
    generator = torch.Generator("cuda").manual_seed(5)
    state = generator.get_state().tolist()
    assert state == [5, *[0] * 15]
    torch.empty(1_081_344, device="cuda").uniform_(generator=generator)
    assert generator.get_state().tolist()[8] == 4
    torch.empty(1_081_345, device="cuda").uniform_(generator=generator)
    assert generator.get_state().tolist()[8] == 12


def test_another_gpu_model_deals_the_draws_otherwise() -> None:
    drawn = {}
    for profile in ("h100", "rtx4090"):
        with torch.virtual(devices=1, profile=profile):
            torch.manual_seed(3)
            drawn[profile] = torch.rand(2_000_000, device="cuda").cpu().numpy().copy()
    assert (drawn["h100"][:1000] == drawn["rtx4090"][:1000]).all()
    assert not (drawn["h100"] == drawn["rtx4090"]).all()


def test_a_fresh_machine_repeats() -> None:
    drawn = []
    for _ in range(2):
        with torch.virtual(devices=2):
            drawn.append(
                (torch.randn(5, device="cuda:1").tolist(), torch.randperm(50, device="cuda").tolist())
            )
    assert drawn[0] == drawn[1]
    assert sorted(drawn[0][1]) == list(range(50))


def test_devices_have_their_own_generators() -> None:
    with torch.virtual(devices=2):
        torch.cuda.manual_seed_all(9)
        a, b = torch.rand(4, device="cuda:0"), torch.rand(4, device="cuda:1")
        assert a.tolist() == b.tolist()
        torch.cuda.manual_seed(10)
        c, d = torch.rand(4, device="cuda:0"), torch.rand(4, device="cuda:1")
        assert c.tolist() != d.tolist()


def test_seeding_is_safe_without_cuda() -> None:
    torch.cuda.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    with torch.virtual(devices=1):
        first = torch.rand(4, device="cuda").tolist()
        torch.cuda.manual_seed(1)
        assert torch.rand(4, device="cuda").tolist() == first


def test_fork_rng_puts_states_back() -> None:
    with torch.virtual(devices=1):
        torch.manual_seed(4)
        with torch.random.fork_rng():
            inside = torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()
        assert (torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()) == inside


def test_a_generator_serves_one_device() -> None:
    said = "Expected a 'cuda' device type for generator but found 'cpu'"
    with torch.virtual(devices=1), pytest.raises(RuntimeError, match=said):
        torch.rand(2, device="cuda", generator=torch.Generator())


def test_a_machine_that_rests_goes_on_where_it_was() -> None:
    with torch.virtual(devices=1):
        torch.manual_seed(4)
        expected = [torch.rand(3, device="cuda").tolist() for _ in range(2)]
        torch.manual_seed(4)
        first = torch.rand(3, device="cuda").tolist()
        with torch.virtual(devices=1):
            torch.rand(3, device="cuda")
        assert [first, torch.rand(3, device="cuda").tolist()] == expected
