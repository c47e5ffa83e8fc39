"""A wait that is left out of Flambeau's own code is noticed: by the race detector, or by what a program sees."""

from __future__ import annotations

import warnings

import pytest
from addresses import Addresses
from mutants import applied, find, reached
from ordering_programs import PROGRAMS
from seeds import EXHAUSTIVE, session_seed

import flambeau as torch
from flambeau.runtime import system

SCHEDULES, PART = ["random:0"], 4  # each day another fourth of the mutants
if EXHAUSTIVE:
    SCHEDULES, PART = ["random:0", "earliest", "random:1", "adversarial:0", "pct:0:3"], 1

# Calls that may be left out: what each of them makes sure, another one does as well.
EQUIVALENT = {
    "cuda/nccl.py: _queue: source.memory.used_on(stream.handle)": (
        "the collective is given the address by data_ptr(), which says that anybody may use the memory"
    ),
    "cuda/nccl.py: _queue: target.memory.used_on(stream.handle)": "as for the source",
    "tensor/sparse/sparse_storage.py: share: part.memory.share()": (
        "a sparse tensor has no address to give away; its parts are tensors that share their own memory"
    ),
    "tensor/fusion/fused_plans.py: _load: pending.wait()": (
        "kernels of virtual GPUs are never pending; a real GPU's compiler takes time"
    ),
    "data/pin.py: join: self._ended.wait()": (
        "the thread's results came through its queue; this only waits until it has let go of them"
    ),
    "distributed/ddp/reducer.py: end_exchange: self.exchange[0].wait()": (
        "the map's memory is kept until it has come, and who reads it waits for it"
    ),
    "distributed/ddp/reducer.py: _reduce_zeros: outcome.wait()": (
        "nobody reads what the others' gradients and these zeros add up to, and the memory is kept until then"
    ),
    "nn/parallel/_functions.py: forward: output.record_stream(mine)": (
        "the copy's stream is gone after the call: nobody is ever given memory of it without an order"
    ),
    "tensor/exchange/transfer.py: _copy_staged: staging.record_copy(staging.ptr, here)": (
        "the use that is recorded on the target's stream comes after the copy out"
    ),
    "tensor/exchange/transfer.py: _copy_staged: staging.record_copy(staging.ptr, there)": (
        "the source's stream waits for the copy in before the staging memory is freed, and its use is recorded then"
    ),
}


def outcome(run, schedule):
    """What the program returned or raised, and what was found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.virtual(devices=2, profile="a100-40g", schedule=schedule, races="warn"):
            driver = system.accelerator()
            driver.inner = Addresses(driver.inner)
            try:
                value = run()
                for device in range(2):
                    torch.cuda.synchronize(device)
            except Exception as error:  # whatever a mutant breaks
                value = repr(error)
            return value, driver.detector.certificate()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_wait_that_is_left_out_is_reported(schedule):
    expected, programs = {}, {}
    for name, run in PROGRAMS.items():
        value, certificate = outcome(run, schedule)
        assert not certificate.races and not isinstance(value, str), f"{name}: {value} {certificate}"
        with reached() as mutants:
            assert outcome(run, schedule)[0] == value, f"{name} does not repeat"
        expected[name] = value
        for mutant in mutants:
            programs.setdefault(mutant, []).append(name)
    mutants = find()[session_seed() % PART :: PART]
    silent = [
        mutant for mutant in mutants if not is_reported(mutant, programs.get(mutant, []), expected, schedule)
    ]
    unnamed = [str(mutant) for mutant in silent if str(mutant) not in EQUIVALENT]
    assert unnamed == [], (
        "these calls can be left out of Flambeau and nothing is noticed: add a program that needs them to "
        "ordering_programs.py, or say in EQUIVALENT why they are not needed"
    )
    assert EQUIVALENT.keys() <= {str(mutant) for mutant in find()}, "some of EQUIVALENT are gone"
    assert len(silent) == sum(str(mutant) in EQUIVALENT for mutant in mutants), (
        "some of EQUIVALENT are reported"
    )


def is_reported(mutant, programs, expected, schedule):
    """Whether a program that makes the call notices that it is left out."""
    if not programs:
        return False
    with applied(mutant):
        for name in programs:
            value, certificate = outcome(PROGRAMS[name], schedule)
            if certificate.races or value != expected[name]:
                return True
    return False
