"""A recorded graph gives the orders that runs take: same policy and seed, same order; each token makes a run take it."""

import pytest
from virtual_kit import adder

from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.scheduling.schedule_policy import write_token
from flambeau.testing.conflicts import Conflicts


def program(driver, length=6):
    """Work on four streams of two devices with waits of streams and of the host; nothing polls."""
    streams = [driver.stream_create(i % 2, 0) for i in range(4)]
    buffers = [driver.mem_alloc(i, 1 << 20) for i in range(2)]
    adders = [adder(driver, 256, i) for i in range(2)]
    pinned = driver.host_alloc(1 << 16)
    for step in range(length):
        for i, stream in enumerate(streams):
            at, ptr = i % 2, buffers[i % 2]
            driver.copy_in(ptr + (step << 16), pinned.part(0, 1 << (10 + i)), stream)
            driver.launch(adders[at], (ptr, ptr, ptr), (), stream)
            if (step + i) % 3 == 0:
                event = driver.event_create(at, True)
                driver.event_record(event, stream)
                driver.stream_wait(streams[(i + 1) % 4], event)
        driver.copy(buffers[1], buffers[0], 4096 * (step + 1), streams[step % 4])
        if step % 2:
            driver.stream_sync(streams[step % 4])
    for index in range(2):
        driver.device_sync(index)


def recorded(schedule="earliest", run=program):
    driver = VirtualDriver(2, schedule=schedule)
    graph = driver.record()
    run(driver)
    token = driver.token()
    driver.close()
    return graph, token


def seqs(order):
    return [step.seq for step in order]


KINDS = ("random:{}", "adversarial:{}", "pct:{}:1", "pct:{}:3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_orders_the_graph_as_it_orders_the_run(kind):
    graph, _ = recorded()
    orders = set()
    for seed in range(5):
        schedule = kind.format(seed)
        order = seqs(graph.order(schedule))
        assert order == seqs(graph.steps_of_token(recorded(schedule)[1]))
        orders.add(tuple(order))
    assert len(orders) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_shortest_token_makes_a_run_take_the_whole_order(kind):
    graph, _ = recorded()
    order = graph.order(kind.format(3))
    token = graph.token(order)
    assert seqs(graph.steps_of_token(recorded("replay:" + token)[1])) == seqs(order)
    assert graph.token(graph.oldest()) == write_token([])


def test_a_full_queue_is_part_of_every_order():
    def long(driver):
        add, ptr = adder(driver), driver.mem_alloc(0, 4096)
        streams = [driver.stream_create(0, 0) for _ in range(2)]
        for i in range(3 * driver.profile.queue):
            driver.launch(add, (ptr, ptr, ptr), (), streams[i % 3 == 0])
        driver.device_sync(0)

    graph, _ = recorded(run=long)
    for schedule in ("adversarial:1", "random:1"):
        order = graph.order(schedule)
        assert seqs(graph.steps_of_token(recorded("replay:" + graph.token(order), long)[1])) == seqs(order)


def test_forced_orders_are_respected_or_refused():
    graph, _ = recorded()
    first, second = Conflicts(graph).pairs[0]
    place = {step.at: i for i, step in enumerate(graph.oldest([(second, first)]))}
    assert place[second] < place[first]
    assert graph.oldest([(second, first), (first, second)]) is None


def test_polls_are_counted_and_times_refused():
    def polling(driver):
        driver.stream_query(driver.stream_default(0))

    graph, _ = recorded(run=polling)
    assert [step.poll.done for step in graph.polls] == [True]
    with pytest.raises(ValueError, match="earliest"):
        graph.order("earliest")
