"""Random command programs against the simplest model of what order means: a graph of what precedes what."""

from hypothesis import given
from hypothesis import strategies as st

from flambeau.driver.virtual import VirtualDriver

STREAMS, EVENTS = 4, 3
COMMANDS = st.one_of(
    st.tuples(st.just("work"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("record"), st.integers(0, EVENTS - 1), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("query"), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("event_sync"), st.integers(0, EVENTS - 1)),
)
SCHEDULES = st.one_of(
    st.just("earliest"),
    st.builds("random:{}".format, st.integers(0, 99)),
    st.builds("adversarial:{}".format, st.integers(0, 99)),
    st.builds("pct:{}:{}".format, st.integers(0, 99), st.integers(1, 4)),
)


class Model:
    """For each stream and event the set of work that certainly precedes its next command."""

    def __init__(self):
        self.streams = [set() for _ in range(STREAMS)]
        self.events = [None] * EVENTS
        self.host = set()
        self.before = []  # of each piece of work, what must run first

    def work(self, stream):
        self.before.append(set(self.streams[stream]) | self.host)
        self.streams[stream] = self.before[-1] | {len(self.before) - 1}

    def record(self, event, stream):
        self.events[event] = set(self.streams[stream])

    def wait(self, stream, event):
        self.streams[stream] |= self.events[event] or set()


def play(program, schedule):
    driver, model, ran = VirtualDriver(2, schedule=schedule), Model(), []
    streams = [driver.stream_create(0, -(i % 2)) for i in range(STREAMS)]
    events = [driver.event_create(0, True) for _ in range(EVENTS)]
    last = 0
    for name, *at in program:
        if name == "work":
            number = len(model.before)
            model.work(at[0])
            driver.host_call(lambda number=number: ran.append(number), streams[at[0]])
        elif name == "record":
            model.record(*at)
            driver.event_record(events[at[0]], streams[at[1]])
        elif name == "wait":
            model.wait(*at)
            driver.stream_wait(streams[at[0]], events[at[1]])
        elif name == "sync":
            driver.stream_sync(streams[at[0]])
            assert model.streams[at[0]] <= set(ran)
            model.host |= model.streams[at[0]]
        elif name == "event_sync":
            driver.event_sync(events[at[0]])
            assert (model.events[at[0]] or set()) <= set(ran)
            model.host |= model.events[at[0]] or set()
        elif driver.event_query(events[at[0]]):
            assert (model.events[at[0]] or set()) <= set(ran)
            model.host |= model.events[at[0]] or set()
        assert driver.time_ns() >= last
        last = driver.time_ns()
    driver.device_sync(0)
    result = ran, driver.trace_hash(), driver.token()
    driver.close()
    return model, result


@given(st.lists(COMMANDS, max_size=40), SCHEDULES)
def test_every_schedule_runs_all_work_once_and_in_a_legal_order(program, schedule):
    model, (ran, trace, token) = play(program, schedule)
    assert sorted(ran) == list(range(len(model.before)))
    place = {number: i for i, number in enumerate(ran)}
    for number, before in enumerate(model.before):
        assert all(place[other] < place[number] for other in before)
    assert play(program, "replay:" + token)[1] == (ran, trace, token)
