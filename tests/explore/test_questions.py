"""What the host is told when it asks whether work is done is a choice of the schedule: both answers are explored."""

import random

import pytest

import flambeau
import flambeau as torch
from flambeau.testing.explore import explore


def _event():
    event = torch.cuda.Event()
    event.record()
    return event.query


def _stream():
    return torch.cuda.current_stream().query


QUESTIONS = {"event": _event, "stream": _stream}


def hurried(question):
    """Right only if the first question says no: whoever is told yes forgets to wait for the side stream."""
    x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.fill_(1.0)
    torch.ones(8, device="cuda")
    if not QUESTIONS[question]()():
        side.synchronize()
    y = x * 2
    torch.cuda.synchronize()
    return y


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("policies", [["exhaustive"], ["random"], ["pct:2"], ["adversarial"]])
def test_a_bug_behind_the_first_yes_is_found_and_replays(question, policies):
    found = explore(lambda: hurried(question), 40, policies, stop=1)
    assert found.failures, str(found)
    with eval(found.failures[0].replay, {"flambeau": flambeau}):
        assert hurried(question).tolist() == [0.0] * 8


def test_the_default_schedule_still_says_no_at_first():
    with flambeau.virtual(devices=1):
        assert hurried("event").tolist() == [2.0] * 8


def test_the_race_behind_a_yes_is_reported_though_the_first_run_never_went_there():
    found = explore(lambda: hurried("event"), 40)
    assert len(found.races) == 1 and "race: " in str(found)


def test_a_failure_says_what_the_host_was_told():
    (failure,) = explore(lambda: hurried("event"), 10, ["exhaustive"]).failures
    assert any("test_questions.py" in text and "yes" in text for text in failure.reorderings), str(failure)


def told(ask):
    """Explore what `ask` returns: the answers to its questions, by the set of all that were seen."""
    seen = set()

    def program():
        answers = ask()
        seen.add(tuple(answers))
        return "the same"  # no outcome differs: all is looked at

    found = explore(program, 200, ["exhaustive"], check=False)
    assert found.complete and found.ok, str(found)
    return seen, found


def test_each_question_has_both_answers_and_a_yes_stays():
    def ask():
        torch.ones(8, device="cuda")
        event = torch.cuda.Event()
        event.record()
        return [event.query() for _ in range(2)]

    assert told(ask)[0] == {(False, False), (False, True), (True, True)}


def test_a_later_event_says_yes_for_an_earlier_one_of_its_stream_and_not_the_other_way():
    def ask():
        events = [torch.cuda.Event(), torch.cuda.Event()]
        for event in events:
            torch.ones(8, device="cuda")
            event.record()
        return [events[1].query(), events[0].query()]

    assert told(ask)[0] == {(False, False), (False, True), (True, True)}


def test_events_of_two_streams_are_answered_independently():
    def ask():
        events = []
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.ones(8, device="cuda")
                events.append(torch.cuda.Event())
                events[-1].record()
        return [event.query() for event in events]

    seen, found = told(ask)
    assert len(seen) == 4 and found.answers == 4


def test_what_the_host_has_waited_for_is_done_however_it_came_to_know():
    def ask():
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            torch.ones(8, device="cuda")
        second.wait_stream(first)
        second.synchronize()
        return [first.query()]

    seen, found = told(ask)
    assert seen == {(True,)} and found.answers == 1


def test_work_may_not_be_known_to_be_done_though_it_came_first():
    """In memory it did: whoever is told no may still see what it wrote."""

    def program():
        x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.fill_(1.0)
        y = x + 0
        torch.cuda.current_stream().synchronize()
        said = side.query()
        torch.cuda.synchronize()
        return said, y.sum().item()

    found = explore(program, 100, ["exhaustive"], check=False, shrink=False, stop=100)
    outcomes = {found.expected.value, *[failure.outcome.value for failure in found.failures]}
    numbers = {(said, float.fromhex(total)) for said, total in outcomes}
    assert found.complete and numbers == {(False, 0.0), (False, 8.0), (True, 0.0), (True, 8.0)}


def test_a_loop_that_asks_until_it_is_told_yes_is_explored_to_its_end():
    def program():
        y = torch.ones(8, device="cuda")
        while not torch.cuda.current_stream().query():
            pass
        return y + 1

    found = explore(program, 50)
    assert found.complete and found.ok and not found.violated
    assert "whatever" in str(found) and "at most 2 times" in str(found)


@pytest.mark.parametrize("policies", [["random"], ["random", "adversarial", "exhaustive"]])
def test_one_bug_is_one_failure_however_many_schedules_have_it(policies):
    found = explore(lambda: hurried("event"), 40, policies, check=False, stop=40)
    (failure,) = found.failures
    assert [swap.brief.count("test_questions.py") for swap in failure.swaps] == [2]
    assert ["test_questions.py" in answer.place for answer in failure.answers] == [True]


def test_no_more_schedules_are_looked_at_than_asked_for():
    def program():
        torch.ones(8, device="cuda")
        for _ in range(6):
            torch.cuda.current_stream().query()
            torch.ones(8, device="cuda")

    for schedules in (1, 2, 7, 8):
        found = explore(program, schedules, check=False)
        assert found.schedules == found.runs == schedules and not found.complete


def test_the_runtimes_own_questions_alone_need_one_run_where_nothing_hangs_on_them():
    def program():
        x, side = torch.ones(1 << 16, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        x.record_stream(side)
        del x
        z = torch.ones(1 << 16, device="cuda")
        torch.cuda.synchronize()
        return y, z

    found = explore(program, 50)
    assert found.complete and found.ok and found.runs <= 3, str(found)


def asks(seed):
    """A small program of 5 commands on 2 streams over 2 tensors that asks now and then, and goes by the answers."""

    def program():
        draw = random.Random(seed)
        streams = [torch.cuda.Stream() for _ in range(2)]
        tensors = [torch.full((2,), float(i + 1), device="cuda") for i in range(2)]
        torch.cuda.synchronize()
        said = []
        for step in range(5):
            stream = draw.choice(streams)
            with torch.cuda.stream(stream):
                target, source = draw.choice(tensors), draw.choice(tensors)
                torch.add(source, step + 1, out=target)
            if draw.random() < 0.5:
                said.append(draw.choice(streams).query())
                if said[-1]:
                    tensors[draw.randrange(2)].mul_(3)  # on the default stream
            elif draw.random() < 0.4:
                draw.choice(streams).wait_stream(draw.choice(streams))
        torch.cuda.synchronize()
        return said, tensors

    return program


def seen_outcomes(found):
    return {found.expected, *[o for f in found.failures for o in (f.outcome, *f.others)]}


@pytest.mark.parametrize("seed", range(6))
def test_exhaustion_sees_all_that_random_schedules_see(seed):
    program, values = asks(seed), seen_outcomes
    options = {"devices": 1, "check": False, "shrink": False, "stop": 10_000}
    every = explore(program, 10_000, ["exhaustive"], **options)
    some = explore(program, 60, ["random", "adversarial"], **options)
    assert every.complete and every.outcomes >= some.outcomes > 1
    assert every.orders >= every.outcomes and some.orders >= some.outcomes  # each outcome has an order
    assert {str(v) for v in values(some)} <= {str(v) for v in values(every)}


def test_a_few_schedules_of_several_policies_have_both_answers():
    """Policies of one seed draw apart: a short run of tests would else always, or never, be told yes."""

    def ask(schedule):
        with flambeau.virtual(devices=1, schedule=schedule):
            torch.ones(8, device="cuda")
            return torch.cuda.current_stream().query()

    for seed in range(4):
        kinds = ("random:{}", "adversarial:{}", "pct:{}:1", "pct:{}:2", "pct:{}:3")
        assert len({ask(kind.format(s)) for kind in kinds for s in (seed, seed + 1)}) == 2


def test_the_answers_of_a_collective_are_choices_too():
    from flambeau.testing.ranks import ranks

    def rank():
        torch.distributed.init_process_group("nccl")
        x = torch.ones(8, device="cuda")
        work = torch.distributed.all_reduce(x, async_op=True)
        early = work.is_completed()
        work.wait()
        torch.cuda.synchronize()
        return early

    found = explore(lambda: ranks(rank, 2), 40, ["random"], check=False, stop=40)
    seen = {found.expected.value, *[failure.outcome.value for failure in found.failures]}
    assert {any(early) for early in seen} == {False, True}, seen


def test_a_program_of_one_rank_that_keeps_its_process_group_runs_again_and_again():
    """As `flambeau explore` runs a script: nothing destroys the group. Work that is done at once is seen, too."""
    dist = torch.distributed

    def program():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(8, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        done = work.is_completed()
        work.wait()
        return done, x

    found = explore(program, 20, ["exhaustive"])
    assert found.complete and not dist.is_initialized()
    assert {found.expected.value[0], *[failure.outcome.value[0] for failure in found.failures]} == {
        False,
        True,
    }


def test_what_a_failure_of_many_questions_takes_is_found_in_few_runs():
    def program():
        answers = []
        for _ in range(300):
            torch.ones(2, device="cuda")
            answers.append(torch.cuda.current_stream().query())
        return answers[7]

    found = explore(program, 2, ["exhaustive"], check=False)
    (failure,) = found.failures
    assert len(failure.reorderings) == 1 and found.runs <= 50
