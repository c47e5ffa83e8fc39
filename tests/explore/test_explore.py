"""The explorer: each order that can differ runs once, failures replay from one line, what was proved is said."""

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

import flambeau
import flambeau as torch
from flambeau.runtime import system
from flambeau.testing.conflicts import Conflicts
from flambeau.testing.explore import explore


def handed_over(wait):
    side = torch.cuda.Stream()
    x = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    x.fill_(1.0)
    if wait:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.synchronize()
    return y


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (
            "testing.explore(lambda: torch.ones(3, device='cuda').sum().item(), schedules=3).expected.value",
            "0x1.8000000000000p+1",
        ),
        ("testing.ranks(torch.cuda.current_device, 2)", "[0, 1]"),
    ],
)
def test_the_kit_is_called_by_its_names(call, result):
    """In a fresh process, where nothing of it was imported, and where its modules were."""
    for more in ("", "import flambeau.testing.explore, flambeau.testing.ranks; "):
        code = f"import flambeau as torch; from flambeau import testing; {more}print({call})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.stdout == f"{result}\n", done.stderr


def test_a_missing_wait_is_found_and_its_line_replays_it():
    found = explore(lambda: handed_over(False), 20)
    (failure,) = found.failures
    assert len(found.races) == 1 and found.complete and not found.ok
    assert (found.pairs, found.orders, found.outcomes) == (1, 2, 2)
    assert "float32[100] of 0.0" in str(failure)
    assert "expected, as in the recorded run: gives float32[100] of 2.0" in str(found)
    assert len(failure.reorderings) == 1 and "'mul'" in failure.reorderings[0]
    assert failure.reorderings[0].count("test_explore.py:") == 2
    with eval(failure.replay, {"flambeau": flambeau}):
        assert handed_over(False).tolist() == [0.0] * 100
    with pytest.raises(AssertionError, match=r"replay, with mul at .* before fill_ at .*: flambeau"):
        found.check()


def test_a_program_without_unordered_conflicts_never_runs_again():
    found = explore(lambda: handed_over(True), 1000, check=False)
    assert (found.runs, found.orders, found.pairs, found.complete) == (1, 1, 0, True)
    assert "every legal order" in str(found)
    found.check()


def increments():
    """Three streams that each do two things to one number: 6! / 2^3 orders, all of them of conflicting commands."""
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    for i in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(i + 1)
            x.mul_(i + 2)
    torch.cuda.synchronize()
    return x


def results_by_brute_force():
    """What the orders of `increments` give, and how many orders there are, by arithmetic alone."""
    tasks = [i for i in range(3) for _ in range(2)]
    results = set()
    orders = set(itertools.permutations(tasks))
    for order in orders:
        x, at = 1.0, [0, 0, 0]
        for i in order:
            x = x + (i + 1) if at[i] == 0 else x * (i + 2)
            at[i] += 1
        results.add(x)
    return results, len(orders)


def test_the_exhaustive_search_runs_each_class_once():
    results, orders = results_by_brute_force()
    found = explore(increments, 10_000, ["exhaustive"], check=False, shrink=False, stop=10_000)
    assert found.complete
    assert found.orders == orders == 90
    assert found.outcomes == len(results)
    assert found.schedules == orders + 1 and found.runs == orders


def test_unordered_work_that_shares_nothing_has_one_class():
    def columns():
        m = torch.zeros(8, 8, device="cuda")
        torch.cuda.synchronize()
        for i in range(8):
            with torch.cuda.stream(torch.cuda.Stream()):
                m[:, i].fill_(float(i))
        torch.cuda.synchronize()
        return m

    found = explore(columns, 10)
    assert found.ok and found.pairs == 0 and found.complete


@pytest.mark.parametrize("policies", [["random"], ["pct:1"], ["pct:3"], ["adversarial"]])
def test_each_policy_finds_the_missing_wait_alone(policies):
    found = explore(lambda: handed_over(False), 30, policies, check=False)
    assert found.failures and not found.complete


def test_shrinking_leaves_the_reorderings_that_matter():
    def program():
        x = torch.zeros(1, device="cuda")
        noise = [torch.zeros(1, device="cuda") for _ in range(3)]
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        for n in noise:
            n.add_(1)
        x.fill_(1.0)
        with torch.cuda.stream(side):
            for n in noise:
                n.add_(2)
            y = x * 2
        torch.cuda.synchronize()
        return y

    found = explore(program, 40, ["adversarial"])
    assert found.pairs == 4
    assert len(found.failures) == 1
    (text,) = found.failures[0].reorderings
    assert "'mul'" in text and "'fill_'" in text


def test_a_result_that_steers_the_program_is_followed():
    def program():
        y = handed_over(False)
        if y.sum().item() == 0:
            raise ValueError("nothing arrived")
        return y + 1

    found = explore(program, 20)
    (failure,) = found.failures
    assert failure.outcome.error == "ValueError: nothing arrived"
    with eval(failure.replay, {"flambeau": flambeau}), pytest.raises(ValueError, match="nothing arrived"):
        program()


def test_polls_make_each_schedule_a_run():
    def program():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = torch.ones(4, device="cuda")
        while not side.query():
            pass
        return y

    found = explore(program, 6, ["random", "adversarial"])
    assert found.runs == found.schedules == 6
    assert "asked whether work is done" in str(found) and not found.complete


def test_nondeterminism_that_no_schedule_controls_is_a_failure():
    calls = itertools.count()
    found = explore(lambda: torch.ones(1, device="cuda") * next(calls), 5)
    (failure,) = found.failures
    assert failure.nondeterministic and "two runs of this schedule differ" in str(found)
    assert "the first gives float32[1] of 0.0" in str(found) and "the second gives float32[1] of 1.0" in str(
        found
    )


def test_random_numbers_are_the_same_in_each_run_and_afterwards():
    torch.manual_seed(3)
    before = torch.get_rng_state().tolist()
    assert explore(lambda: torch.rand(4).to("cuda") + torch.rand(4, device="cuda"), 5).ok
    assert torch.get_rng_state().tolist() == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"policies": ["latest"]}, ValueError),
        ({"policies": ["pct:0"]}, ValueError),
        ({"policies": []}, ValueError),
        ({"schedules": 0}, ValueError),
    ],
)
def test_bad_arguments_are_refused(options, error):
    with pytest.raises(error):
        explore(lambda: None, **options)


def test_results_that_cannot_be_compared_are_refused():
    with pytest.raises(TypeError, match="cannot compare object"):
        explore(object, 2)


def test_layouts_that_interleave_are_no_conflict_in_the_graph():
    with flambeau.virtual(devices=1) as machine:
        graph = machine.driver.record()
        m = torch.zeros(8, 8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        m[:, 0].fill_(1.0)
        with torch.cuda.stream(side):
            m[:, 1].fill_(2.0)
            m[:, :1].add_(1.0)
        torch.cuda.synchronize()
        system.accelerator()
    (pair,) = Conflicts(graph).pairs
    assert [graph.steps[at].name for at in pair] == ["fill", "add"]


def test_orders_that_make_the_program_do_something_else_void_the_proof():
    def program():
        y = handed_over(False)
        if y.sum().item() == 0:
            y.add_(200)
        return y.sum().item() > 0

    found = explore(program, 20)
    assert found.outcomes == 1 and found.failures == []
    assert "other commands" in found.violated[-1]


@pytest.mark.parametrize("interval", [1e-6, 5e-3, 5e-2])
def test_host_threads_void_the_proof(interval):
    """Of two runs, Python may switch threads at different calls: that is no failure of the program."""

    def program():
        results = []
        thread = threading.Thread(target=lambda: results.append(torch.ones(4, device="cuda").sum().item()))
        thread.start()
        mine = torch.ones(2, device="cuda").sum().item()
        thread.join()
        return [*results, mine]

    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for _ in range(5):
            found = explore(program, 5)
            assert found.ok, found
            assert "host threads" in str(found) and "every legal order" not in str(found)
    finally:
        sys.setswitchinterval(before)


def test_thousands_of_streams_and_no_synchronization():
    def program():
        streams = [torch.cuda.Stream() for _ in range(2000)]
        x = torch.zeros(2000, device="cuda")
        torch.cuda.synchronize()
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                x[i].fill_(float(i))

    found = explore(program, 3, check=False)
    assert found.ok and found.complete and found.commands >= 2001


def test_many_conflicts_are_cut_and_said_so():
    def program():
        x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(150):
                    x.add_(1)
        torch.cuda.synchronize()
        return x

    found = explore(program, 3, ["random"], check=False, shrink=False)
    assert found.pairs == 20_000 and not found.complete
    assert any("first 20000" in text for text in found.violated)


@pytest.mark.parametrize("wait", [True, False])
def test_a_replayed_cuda_graph_is_explored_command_by_command(wait):
    def program():
        x, recorded, side = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(recorded):
            x.add_(1)
            x.mul_(3)
        torch.cuda.synchronize()
        recorded.replay()
        if wait:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 0
        torch.cuda.synchronize()
        return y

    found = explore(program, 50)
    assert found.outcomes == (1 if wait else 3), str(found)  # before the graph, in the middle of it, after it
    assert found.complete and found.ok == wait


def test_a_failure_of_a_program_that_polls_is_shortened_and_replays():
    def program():
        y = handed_over(False)
        event = torch.cuda.Event()
        for _ in range(50):
            y.add_(0)
        event.record()
        while not event.query():
            pass
        return y

    full = explore(program, 30, ["random"], shrink=False, stop=1).failures[0]
    (failure,) = explore(program, 30, ["random"], stop=1).failures
    assert failure.schedule == full.schedule and failure.outcome == full.outcome
    assert len(failure.token) < len(full.token)
    with eval(failure.replay, {"flambeau": flambeau}):
        assert program().tolist() == [0.0] * 100


def test_a_program_that_always_raises_is_no_success():
    def program():
        raise RuntimeError("as ever")

    found = explore(program, 3)
    assert not found.ok and "raises RuntimeError: as ever" in str(found)


class Turns:
    """A program whose results take turns, as nothing that a schedule controls explains."""

    def __init__(self, *results):
        self.results = itertools.cycle(results)

    def __call__(self):
        return next(self.results)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("a\n" * 50 + "b\n", "a\n" * 50 + "c\n", "line 51, 'c\\n' for 'b\\n'"),
        ("a\n" * 50, "a\n" * 51, "51 lines for 50"),
        ({"x": (1, "a" * 100)}, {"x": (1, "a" * 101)}, "item 0, item 1, item 1, line 1, "),
        (torch.zeros(3, 4), torch.ones(3, 4).tril(-1), "[1, 0], 1.0 for 0.0; 3 of 12 elements differ"),
        (
            torch.tensor([0.0] * 5),
            torch.tensor([0.0] * 4 + [-0.0]),
            "[4], -0.0 for 0.0; 1 of 5 elements differ",
        ),
        (
            torch.zeros(9, dtype=torch.bfloat16),
            torch.arange(9).bfloat16().clamp(7) - 7,
            "[8], 1.0 for 0.0; 1 of 9",
        ),
        (np.zeros(9), np.eye(9)[8], "[8], 1.0 for 0.0; 1 of 9 elements differ"),
        (np.zeros(9), np.eye(9)[0], None),
        (1.5, 2.5, None),
    ],
)
def test_outcomes_that_look_alike_are_told_apart(one, other, told):
    (failure,) = explore(Turns(one, other)).failures
    if told is None:
        assert "first difference" not in str(failure)
    else:
        assert f"; first difference: {told}" in str(failure), str(failure)


def test_numbers_are_told_as_python_writes_them():
    (failure,) = explore(Turns(1.5, [-2.0, float("inf"), "1.5"])).failures
    assert "the first gives 1.5, the second gives (-2.0, inf, '1.5')" in str(failure)


def test_errors_of_other_lines_are_other_outcomes():
    def program():
        side = torch.cuda.Stream()
        x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        x.fill_(1.0)
        with torch.cuda.stream(side):
            y = x * 2
        if y.item():
            raise ValueError("it")
        raise ValueError("it")

    found = explore(program, 10)
    line = program.__code__.co_firstlineno
    assert f"the recorded run raises ValueError: it (test_explore.py:{line + 8})" in str(found).replace(
        "tests/explore/", ""
    )
    assert f"ValueError: it (test_explore.py:{line + 9})" in str(found.failures[0]).replace(
        "tests/explore/", ""
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((None,), "a function that takes nothing, got NoneType"),
        ((int, 1.5), "schedules must be an int, got float"),
        ((int, 10, "random"), "policies must be a list of names, got 'random'"),
    ],
)
def test_arguments_of_another_type_are_refused(arguments, why):
    with pytest.raises(TypeError, match=why):
        explore(*arguments)
