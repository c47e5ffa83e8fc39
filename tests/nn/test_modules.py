"""Every module against PyTorch's, from the table in module_cases.py: text, state, initialization, results."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
from module_cases import CASES, Case, carried, flat
from support import same, same_values, to_torch, torch

import flambeau

# What is not here: the recurrent modules and transformers have tests of their own; these need what Flambeau lacks.
ELSEWHERE = {
    "RNNBase", "RNNCellBase", "Module", "Container", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict",
    "Sequential", "SyncBatchNorm", "DataParallel", "LinearCrossEntropyLoss",
}  # fmt: skip

every = pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
SEEING = [
    c for c in CASES if "Lazy" not in c.name
]  # a module that has seen no input has nothing that could travel


def made(case: Case, room: Any) -> Any:
    room.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if room is torch:
            warnings.filterwarnings("ignore", "enable_nested_tensor")
        return case.make(room.nn, carried(room))


def run(module: Any, case: Case, room: Any, seed: int = 5) -> Any:
    """The module's result; PyTorch's warnings are its own affair."""
    room.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = module(*[carried(room)(x) for x in case.inputs])
    return flat(out)


def close(ours: Any, theirs: Any, atol: float) -> None:
    """The same dtype and shape, and values within 4 ulps or `atol`."""
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    mine = to_torch(ours.detach())
    wanted = theirs.detach()
    if wanted.dtype.is_floating_point:
        mine = torch.where((mine - wanted).abs() <= atol, wanted, mine)
    same_values(mine, wanted, 4)


def state_of(module: Any) -> list[tuple[str, Any]]:
    return list(module.state_dict().items())


def same_state(ours: Any, theirs: Any, atol: float) -> None:
    mine, wanted = state_of(ours), state_of(theirs)
    assert [k for k, _ in mine] == [k for k, _ in wanted]
    for (_, a), (_, b) in zip(mine, wanted, strict=True):
        close(a, b, atol)


@every
def test_it_says_what_pytorch_says_of_itself(case: Case) -> None:
    assert repr(made(case, flambeau)) == repr(made(case, torch))


@every
def test_a_seed_gives_pytorchs_state_to_the_bit(case: Case) -> None:
    ours, theirs = made(case, flambeau), made(case, torch)
    if "Lazy" in case.name:
        run(ours, case, flambeau), run(theirs, case, torch)
        assert type(ours).__name__ == type(theirs).__name__
        same_state(ours, theirs, case.atol)  # the first input has moved running statistics
        return
    mine, wanted = state_of(ours), state_of(theirs)
    assert [k for k, _ in mine] == [k for k, _ in wanted]
    for (_, a), (_, b) in zip(mine, wanted, strict=True):
        same(a, b)
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    for (name, a), (other, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (name, a.requires_grad) == (other, b.requires_grad)


@every
def test_results_and_running_statistics_equal_pytorchs(case: Case) -> None:
    ours, theirs = made(case, flambeau), made(case, torch)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        for a, b in zip(run(ours, case, flambeau), run(theirs, case, torch), strict=True):
            close(a, b, case.atol)
        same_state(ours, theirs, case.atol)


@every
def test_copies_pickles_and_states_carry_a_module_over(case: Case) -> None:
    module = made(case, flambeau).eval()
    wanted = run(module, case, flambeau)
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), made(case, flambeau).eval()):
        if "Lazy" not in case.name:
            assert repr(again.load_state_dict(module.state_dict())) == "<All keys matched successfully>"
        assert repr(again) == repr(module) or "Lazy" in case.name
        for a, b in zip(run(again, case, flambeau), wanted, strict=True):
            same(a.detach(), to_torch(b.detach()))


def test_every_module_of_pytorch_is_in_the_table() -> None:
    theirs = {
        name
        for name, value in vars(torch.nn).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    }
    listed = {case.name.partition("(")[0] for case in CASES}
    assert theirs - listed == ELSEWHERE


@pytest.mark.parametrize("case", SEEING, ids=[c.name for c in SEEING])
def test_whole_modules_travel_in_checkpoints_both_ways(case: Case) -> None:
    ours, theirs = made(case, flambeau).eval(), made(case, torch).eval()
    for source, room, other in ((ours, flambeau, torch), (theirs, torch, flambeau)):
        file = io.BytesIO()
        room.save(source, file)
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # NLLLoss2d's
            arrived = other.load(file, weights_only=False)
        assert type(arrived).__module__.partition(".")[0] == other.__name__
        assert repr(arrived) == repr(source)
        wanted, found = run(theirs, case, torch), run(arrived, case, other)
        for a, b in zip(found, wanted, strict=True):
            close(a, b, case.atol) if other is flambeau else torch.testing.assert_close(a, b)
