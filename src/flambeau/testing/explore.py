"""`explore`: run a program in every order of its commands that can make a difference, or in many.

The program runs once and its command graph is recorded. Policies then compute other legal orders of the graph, without
running kernels. The program runs again only for an order that reverses an unordered conflicting pair in a way that was
not run before. Without such pairs nothing runs again; that is what the certificate states. See Note [Classes].

If the host polls, each combination of answers has its own graph: see Note [Answers].
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import flambeau as torch
from flambeau.core.host.gc_pause import without_collections
from flambeau.testing import make_callable
from flambeau.testing.answers import Answers
from flambeau.testing.exploration import Exploration
from flambeau.testing.failures import Failure
from flambeau.testing.orders import Orders
from flambeau.testing.runs import ExplorationPlan, Runs

POLICIES = ("exhaustive", "random", "pct:1", "pct:2", "pct:3", "adversarial")


def explore(
    function: Callable[[], Any],
    schedules: int | None = 100,
    policies: Sequence[str] = POLICIES,
    *,
    seed: int = 0,
    devices: int = 2,
    profile: str | None = None,
    check: bool = True,
    shrink: bool = True,
    stop: int = 10,
    seconds: float | None = None,
    replay: Callable[[str], str] | None = None,
    watch: Callable[[Exploration, Failure | None], None] | None = None,
) -> Exploration:
    """Run `function()` on new virtual GPUs in up to `schedules` orders and compare its results or exceptions.

    Args:
        function: The program. It creates its own tensors; its result is compared bit for bit.
        schedules: Number of orders to examine; None for as many as `seconds` allow.
        policies: "exhaustive" (each combination of answers to polls, and each order that can differ, while there are
            few conflicting pairs), "random", "pct:DEPTH", "adversarial"; used in turns with seeds from `seed` on.
        check: Run each order twice; two different outcomes are a separate failure.
        shrink: Reduce a failure to the fewest forced reorderings.
        stop: Stop after this many kinds of failures.
        seconds: Time limit for starting another order; None for no limit.
        replay: The line that repeats a schedule, for reports; by default a call of `flambeau.virtual`.
        watch: Called for each examined order with the results so far, and for each wrong outcome with its failure,
            before it is reduced.

    Raises:
        ValueError: If a policy is unknown, a number is below 1, `seed` is below 0, `seconds` is not above 0, or there
            is no limit.
        TypeError: If results cannot be compared, or an argument has another type.
    """
    if not callable(function):
        raise TypeError(f"explore wants a function that takes nothing, got {type(function).__name__}")
    kinds = _kinds(policies)
    _check_numbers(schedules=(schedules, 1), stop=(stop, 1), devices=(devices, 1), seed=(seed, 0))
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    if schedules is None and seconds is None:
        raise ValueError("schedules and seconds are None: nothing would end the exploration")
    with _quiet_collector(), _same_seeds() as reseed:
        watch = watch or (lambda found, failure: None)
        plan = ExplorationPlan(
            function, devices, profile, schedules, seconds, stop, check, shrink, replay, watch, reseed
        )
        runs = Runs(plan)
        if runs.going:
            search = Answers(runs) if runs.first.graph.polls else Orders(runs, runs.first).count()
            search.look(kinds, seed)
        return runs.found


def _check_numbers(**numbers: tuple[int | None, int]) -> None:
    for name, (number, least) in numbers.items():
        if number is None:
            continue
        if not isinstance(number, int):
            raise TypeError(f"{name} must be an int, got {type(number).__name__}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")


def is_policy(policy: str) -> bool:
    """Return True if there is a policy of this name."""
    kind, colon, depth = policy.partition(":")
    if kind == "pct":
        return depth.isdigit() and int(depth) > 0
    return kind in ("exhaustive", "random", "adversarial") and not colon


def _kinds(policies: Sequence[str]) -> list[str]:
    if isinstance(policies, str):
        raise TypeError(f"policies must be a list of names, got {policies!r}")
    for policy in policies:
        if not is_policy(policy):
            raise ValueError(f"policy {policy!r} is not one of exhaustive, random, pct:DEPTH, adversarial")
    if not policies:
        raise ValueError("policies must name at least one")
    return list(policies)


@contextmanager
def _same_seeds() -> Iterator[Callable[[], None]]:
    """Yield a function that restores the present state of the CPU's generator, so that each run draws equal numbers."""
    state = torch.get_rng_state()
    try:
        yield lambda: torch.set_rng_state(state)
    finally:
        torch.set_rng_state(state)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Disable the garbage collector inside the block, because its timing depends on the process's past."""
    gc.collect()
    with without_collections():
        yield


make_callable(__name__)
