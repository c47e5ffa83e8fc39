"""The casts that autocast keeps for all streams of a block: nothing orders their uses, as in PyTorch."""

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flambeau as torch
from flambeau.runtime import system
from flambeau.tensor import autocast as state


def certificate_of(program):
    """The certificate of `program(linear, x, first, second)`, whose arguments are there for both streams."""
    with torch.virtual(devices=1, races="warn"):
        linear, x = torch.nn.Linear(64, 64).cuda(), torch.ones(64, 64, device="cuda")
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        program(linear, x, *streams)
        torch.cuda.synchronize()
        return system.accelerator().detector.certificate()


def on(stream, linear, x):
    with torch.cuda.stream(stream):
        return linear(x)


def used_without_a_wait(linear, x, first, second):
    with torch.autocast("cuda"):
        kept = on(first, linear, x), on(second, linear, x)
    del kept


def used_with_a_wait(linear, x, first, second):
    with torch.autocast("cuda"):
        kept = [on(first, linear, x)]
        second.wait_stream(first)
        kept.append(on(second, linear, x))
        first.wait_stream(second)


def used_with_too_early_a_wait(linear, x, first, second):
    with torch.autocast("cuda"):
        second.wait_stream(first)
        kept = on(first, linear, x), on(second, linear, x)
    del kept


def used_without_a_cache(linear, x, first, second):
    with torch.autocast("cuda", cache_enabled=False):
        kept = on(first, linear, x), on(second, linear, x)
    del kept


def used_in_blocks_of_their_own(linear, x, first, second):
    for stream in (first, second):
        with torch.autocast("cuda"):
            kept = on(stream, linear, x)
    del kept


def used_in_one_outer_block(linear, x, first, second):
    with torch.autocast("cuda"):
        for stream in (first, second):
            with torch.autocast("cuda"):
                kept = on(stream, linear, x)
    del kept


def used_without_recording_first(linear, x, first, second):
    with torch.autocast("cuda"):
        with torch.no_grad():
            kept = on(first, linear, x)
        kept = kept, on(second, linear, x)


def used_in_inference_mode(linear, x, first, second):
    with torch.autocast("cuda"), torch.inference_mode():
        kept = on(first, linear, x), on(second, linear, x)
    del kept


RACY = (
    used_without_a_wait,
    used_with_too_early_a_wait,
    used_in_one_outer_block,
    used_without_recording_first,
)
SAFE = (used_with_a_wait, used_without_a_cache, used_in_blocks_of_their_own, used_in_inference_mode)


@pytest.mark.parametrize("program", RACY)
def test_streams_that_share_a_cast_race(program):
    races = certificate_of(program).races
    assert races and {race.first.operator for race in races} == {"autocast"}
    for race in races:
        assert race.fix.call in ("wait_stream", "synchronize") and race.fix.verified
        assert "autocast(cache_enabled=False)" in race.note


@pytest.mark.parametrize("program", SAFE)
def test_streams_that_wait_or_cast_themselves_are_certified(program):
    certificate = certificate_of(program)
    assert certificate.race_free, str(certificate)


def test_a_cast_that_the_block_frees_too_early_is_fixed_before_reuse():
    def program(linear, x, first, second):
        with torch.no_grad(), torch.autocast("cuda"):
            kept = [on(first, linear, x)]
            second.wait_stream(first)
            kept.append(on(second, linear, x))
        with torch.cuda.stream(first):
            kept += [torch.zeros(64, 64, device="cuda", dtype=torch.float16) for _ in range(4)]

    certificate = certificate_of(program)
    line = inspect.getsourcelines(program)[1] + 6
    freed = [race for race in certificate.races if race.reused]
    assert freed
    for race in freed:
        assert race.fix.verified and re.fullmatch(
            rf"Before \S*test_autocast_cache.py:{line} insert: first.wait_stream\(second\)",
            race.fix.text,
        )


def test_a_weight_is_cast_for_gradients_whoever_casts_it_first():
    def program(linear, x, first, second):
        with torch.autocast("cuda"):
            with torch.no_grad():
                linear(x)
            linear(x).float().sum().backward()
        assert linear.weight.grad is not None

    assert certificate_of(program).race_free


STEPS = st.one_of(
    st.tuples(st.just("use"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("use"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("sync"), st.integers(0, 2)),
    st.tuples(st.just("clear")),
)


def races(steps):
    """Whether a use of a cast is not ordered after the cast: by sets of what comes before, step by step."""
    before, host, casts, number = [set(), set(), set()], set(), {}, 0
    for what, *at in steps:
        if what == "wait":
            before[at[0]] |= before[at[1]]
        elif what == "sync":
            host |= before[at[0]]
        elif what == "clear":
            casts.clear()
        else:
            stream, weight = at
            before[stream] |= host
            if weight not in casts:
                number += 1
                casts[weight] = number
                before[stream].add(number)
            if casts[weight] not in before[stream]:
                return True
    return False


@given(st.lists(STEPS, max_size=12))
def test_races_are_those_of_one_cache_for_all_streams(steps):
    with torch.virtual(devices=1, races="warn"):
        weights = [torch.ones(8, 8, device="cuda", requires_grad=True) for _ in range(2)]
        streams, kept, x = [torch.cuda.Stream() for _ in range(3)], [], torch.ones(8, 8, device="cuda")
        torch.cuda.synchronize()
        with torch.autocast("cuda"):
            for what, *at in steps:
                if what == "use":
                    with torch.cuda.stream(streams[at[0]]):
                        kept.append(x @ weights[at[1]])
                elif what == "wait":
                    streams[at[0]].wait_stream(streams[at[1]])
                elif what == "sync":
                    streams[at[0]].synchronize()
                else:
                    kept += [cast for _, cast in state.local.casts._kept.values()]  # no memory comes again
                    torch.clear_autocast_cache()
            torch.cuda.synchronize()
        found = system.accelerator().detector.certificate().races
    assert bool(found) == races(steps)
