"""SPEC M: the generators of CUDA devices."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
from gpus import either, gpus, needs, simulated

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        torch.manual_seed(0)
        yield


def draw(where: object = "cuda") -> list[float]:
    return torch.rand(4, device=where).tolist()


@pytest.mark.parametrize("where", [0, 1, "cuda:1", torch.device("cuda:1")], ids=str)
def test_m01_the_state_of_one_gpu(where: object) -> None:
    state = torch.cuda.get_rng_state(where)
    assert state.dtype is torch.uint8 and state.shape == (16,) and state.device.type == "cpu"
    index = where if isinstance(where, int) else 1
    first = draw(index)
    assert torch.cuda.get_rng_state(where).tolist() != state.tolist()
    assert torch.cuda.get_rng_state(1 - index).tolist() == [0] * 16
    torch.cuda.set_rng_state(state, where)
    assert draw(index) == first
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.get_rng_state("cpu")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.get_rng_state(99)


def test_m01_the_default_is_the_current_device() -> None:
    torch.cuda.manual_seed_all(1)
    with torch.cuda.device(1):
        draw(1)
        assert torch.cuda.get_rng_state().tolist() == torch.cuda.get_rng_state(1).tolist()
    assert torch.cuda.get_rng_state().tolist() != torch.cuda.get_rng_state(1).tolist()


@simulated
def test_m02_it_initializes_cuda() -> None:
    with torch.virtual(devices=1):
        assert not torch.cuda.is_initialized()
        torch.cuda.get_rng_state()
        assert torch.cuda.is_initialized()


def test_m03_m05_the_states_of_all() -> None:
    states = torch.cuda.get_rng_state_all()
    assert isinstance(states, list) and len(states) == torch.cuda.device_count()
    first = [draw(i) for i in range(2)]
    torch.cuda.set_rng_state_all(iter(states))
    assert [draw(i) for i in range(2)] == first


def test_m04_what_a_state_may_be() -> None:
    before = torch.cuda.get_rng_state().tolist()
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.cuda.set_rng_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state(torch.zeros(15, dtype=torch.uint8))
    assert torch.cuda.get_rng_state().tolist() == before


def test_m06_manual_seed_is_the_current_gpu_s() -> None:
    with torch.cuda.device(1):
        torch.cuda.manual_seed(9)
    assert [g.initial_seed() for g in torch.cuda.default_generators[:2]] == [0, 9]
    assert draw(0) != draw(1)


def test_m07_manual_seed_all() -> None:
    torch.cuda.manual_seed_all(9)
    assert draw(0) == draw(1)
    torch.cuda.manual_seed_all(-1)
    assert torch.cuda.initial_seed() == 2**64 - 1


@simulated
def test_m06_to_m09_without_a_gpu_they_are_ignored() -> None:
    with torch.virtual(devices=0):
        for call in (torch.cuda.seed, torch.cuda.seed_all):
            call()
        for call in (torch.cuda.manual_seed, torch.cuda.manual_seed_all):
            call(3)
        assert not torch.cuda.is_initialized()
        assert torch.cuda.default_generators == ()
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.Generator("cuda")


@simulated
def test_m06_m07_before_the_devices_are_opened() -> None:
    with torch.virtual(devices=2):
        torch.cuda.manual_seed_all(5)
        torch.cuda.manual_seed(6)
        assert not torch.cuda.is_initialized()
        assert [torch.cuda.get_rng_state(i).tolist()[0] for i in range(2)] == [6, 5]


def test_m08_m09_seed_and_seed_all() -> None:
    needs(2)
    torch.cuda.seed()
    assert torch.cuda.initial_seed() != 0 and torch.cuda.default_generators[1].initial_seed() == 0
    torch.cuda.seed_all()
    seeds = {g.initial_seed() for g in torch.cuda.default_generators}
    assert len(seeds) == 1 and 0 not in seeds


def test_m10_numbers_come_from_the_device_s_own_generator() -> None:
    cpu = torch.random.get_rng_state().tolist()
    first = torch.randn(3, device="cuda:1").tolist()
    assert torch.random.get_rng_state().tolist() == cpu
    assert torch.randn(3, device="cuda:1").tolist() != first
    own = torch.Generator(device="cuda:1").manual_seed(0)
    assert torch.randn(3, device="cuda:1", generator=own).tolist() == first
    with pytest.raises(RuntimeError, match="Expected a 'cuda:0' generator device but found 'cuda:1'"):
        torch.randn(3, device="cuda:0", generator=own)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randn(3, generator=own)


def test_m05_all_states_are_set_or_none() -> None:
    needs(2)
    before = [state.tolist() for state in torch.cuda.get_rng_state_all()]
    wrong = [torch.zeros(16, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)]
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.cuda.set_rng_state_all(wrong)
    assert [state.tolist() for state in torch.cuda.get_rng_state_all()] == before


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_m10_generators_are_copied_and_pickled_with_their_state(where: str) -> None:
    if where != "cpu":
        needs(2)
    own = torch.Generator(device=where).manual_seed(7)
    torch.rand(5, device=where, generator=own)
    twins = [copy.copy(own), copy.deepcopy([own])[0], pickle.loads(pickle.dumps(own)), own.clone_state()]
    wanted = torch.rand(5, device=where, generator=own).tolist()
    for twin in twins:
        assert twin.device == own.device and twin.initial_seed() == 7
        assert torch.rand(5, device=where, generator=twin).tolist() == wanted
    assert torch.Generator(device=None).device == torch.Generator("cpu:0").device == torch.device("cpu")


PROGRAM = """
import flambeau as torch
with torch.virtual(devices=1):
    torch.manual_seed(11)
    print(torch.cuda.initial_seed(), torch.rand(3, device="cuda").tolist(), torch.randperm(5, device="cuda").tolist())
"""


@simulated
def test_m11_initial_seed_and_the_same_numbers_in_another_process() -> None:
    runs = {
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    torch.manual_seed(11)
    here = f"{torch.cuda.initial_seed()} {torch.rand(3, device='cuda').tolist()} {torch.randperm(5, device='cuda').tolist()}\n"
    assert runs == {here}


def test_fork_rng_puts_states_back() -> None:
    before = torch.get_rng_state().tolist(), torch.cuda.get_rng_state(1).tolist()
    with torch.random.fork_rng(range(2)):
        torch.rand(3), draw(1)
        assert torch.cuda.get_rng_state(1).tolist() != before[1]
    assert (torch.get_rng_state().tolist(), torch.cuda.get_rng_state(1).tolist()) == before
    with torch.random.fork_rng(devices=[0]):
        draw(0), draw(1)
    assert torch.cuda.get_rng_state(0).tolist() == before[1]
    assert torch.cuda.get_rng_state(1).tolist() != before[1]
    with torch.random.fork_rng(enabled=False):
        torch.rand(1)
    assert torch.get_rng_state().tolist() != before[0]


def test_fork_rng_of_several_devices_warns_where_it_is_called() -> None:
    needs(2)
    before = torch.cuda.get_rng_state(1).tolist()
    told = pytest.warns(UserWarning, match="used fork_rng without explicitly specifying which")
    with told as caught, torch.random.fork_rng():
        draw(1)
    assert caught[0].filename == __file__
    assert torch.cuda.get_rng_state(1).tolist() == before


def test_outside_of_worker_threads_the_default_generator_draws() -> None:
    torch.manual_seed(3)
    first = torch.rand(3).tolist()
    torch.manual_seed(3)
    assert torch.rand(3, generator=torch.random.thread_safe_generator()).tolist() == first


def test_fork_rng_by_type() -> None:
    before = torch.get_rng_state().tolist(), torch.cuda.get_rng_state(0).tolist()
    with torch.random.fork_rng(device_type="cpu"):
        torch.rand(3), draw(0)
    assert torch.get_rng_state().tolist() == before[0] and torch.cuda.get_rng_state(0).tolist() != before[1]
    with torch.random.fork_rng(device_type="meta"):
        torch.rand(3)
    assert torch.get_rng_state().tolist() != before[0]
    with pytest.raises(RuntimeError, match="device type at start of device string: foo"):
        torch.random.fork_rng(device_type="foo").__enter__()


def test_generators_are_of_devices_that_are_there() -> None:
    with torch.cuda.device(1):
        assert torch.Generator("cuda").device == torch.device("cuda:1")
    for bad, text in (
        ("cuda:99", "The device_index is invalid"),
        ("meta", "META device type not an accelerator"),
    ):
        with pytest.raises(RuntimeError, match=text):
            torch.Generator(bad)
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        torch.Generator("cuda").no_such_method()


@pytest.mark.parametrize("seed", [1.5, "7", None, True], ids=repr)
def test_a_generator_takes_no_other_seed_than_an_int(seed: object) -> None:
    for generator in (torch.Generator().manual_seed(4), torch.Generator("cuda").manual_seed(4)):
        with pytest.raises(RuntimeError, match="manual_seed expected a long, but got"):
            generator.manual_seed(seed)
        assert generator.initial_seed() == 4
    torch.manual_seed(5.9), torch.cuda.manual_seed(5.9)
    assert torch.initial_seed() == torch.cuda.initial_seed() == 5, "these make an int of it, as PyTorch's do"


def test_m04_a_seed_without_an_offset() -> None:
    draw(0)
    torch.cuda.set_rng_state(torch.tensor([9, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8))
    assert torch.cuda.get_rng_state().tolist() == [9] + 15 * [0]


def test_default_generators_are_those_that_draw() -> None:
    needs(2)
    torch.cuda.init()
    default = torch.cuda.default_generators[1]
    assert isinstance(default, torch.Generator) and default.device == torch.device("cuda:1")
    state = default.get_state()
    first = draw(1)
    default.set_state(state)
    assert torch.rand(4, device="cuda:1", generator=default).tolist() == first


def test_offsets_and_clones() -> None:
    needs(2)
    generator = torch.Generator("cuda:1").manual_seed(3)
    assert generator.get_offset() == 0
    torch.rand(5, device="cuda:1", generator=generator)
    assert generator.get_offset() == 4
    twin = generator.clone_state()
    assert twin is not generator and twin.device == generator.device and twin.initial_seed() == 3
    after = torch.rand(5, device="cuda:1", generator=generator).tolist()
    assert torch.rand(5, device="cuda:1", generator=twin).tolist() == after
    assert torch.rand(5, device="cuda:1", generator=twin.set_offset(4)).tolist() == after
    for bad in (3, -4):
        with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
            twin.set_offset(bad)
    for call in (torch.Generator().get_offset, lambda: torch.Generator().set_offset(4)):
        with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
            call()


@simulated
def test_portable_numbers_are_the_same_on_every_gpu() -> None:
    def numbers(profile: str) -> list[object]:
        with torch.virtual(devices=1, profile=profile):
            torch.manual_seed(2)
            big = torch.rand(1 << 20, device="cuda")
            return [
                big[::99991].tolist(),
                torch.randn(5, device="cuda").tolist(),
                torch.cuda.get_rng_state().tolist(),
            ]

    assert numbers("rtx4090") != numbers("a100-40g")
    try:
        torch.cuda.random.set_portable(True)
        assert torch.cuda.random.is_portable()
        portable = [numbers(profile) for profile in ("rtx4090", "v100-16g", "h100", "a100-40g")]
    finally:
        torch.cuda.random.set_portable(False)
    assert all(n == portable[0] for n in portable) and portable[0] == numbers("a100-40g")
    with pytest.raises(TypeError, match="expects a bool"):
        torch.cuda.random.set_portable(1)
