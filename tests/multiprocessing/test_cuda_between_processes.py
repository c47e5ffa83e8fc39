"""CUDA tensors and events between processes, over the drivers' IPC: whose memory it is, how long, in which order."""

from __future__ import annotations

import gc
import random
import weakref
from multiprocessing.reduction import ForkingPickler

import gpus
import peer_kit as kit
import pytest

import flambeau as torch
import flambeau.multiprocessing as mp
from flambeau.runtime.devices import device_ipc

pytestmark = gpus.either

MIB = 1 << 20


@pytest.fixture(scope="module")
def machine():
    with gpus.gpus(2, profile="a100-40g"):
        yield


@pytest.fixture(scope="module")
def peer(machine):
    made = kit.Peer()
    yield made
    assert made.stop() == 0


@pytest.fixture(autouse=True)
def nothing_left(peer):
    """What a test sent is given back when it ends."""
    yield
    gc.collect()
    torch.cuda.ipc_collect()
    assert not device_ipc._state.limbo and not device_ipc._state.receipts


# -- one memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_what_is_sent_is_one_memory(peer, device):
    """L08: CUDA tensors between processes."""
    x = torch.arange(6.0, device=device).view(2, 3)
    assert peer.call(kit.facts, x[1]) == kit.facts(x[1])
    peer.call(kit.fill, x[1], 7)
    assert x.tolist() == [[0, 1, 2], [7, 7, 7]]
    peer.call(kit.keep, "x", x)
    x[0] = 5
    torch.cuda.synchronize(device)
    assert peer.call(kit.values, [x, x.t()[1:]]) == [[[5, 5, 5], [7, 7, 7]], [[5, 7], [5, 7]]]
    assert peer.call(kit.is_kept, "x", x)
    assert peer.call(kit.are_views, [x, x[1], torch.nn.Parameter(x)])
    peer.call(kit.drop, "x")


def test_blocks_of_every_kind_and_dtype(peer):
    made = [
        torch.full((3,), 2, device="cuda", dtype=torch.bfloat16), torch.ones(2 * MIB, device="cuda", dtype=torch.uint8),
        torch.ones(30 * MIB, device="cuda", dtype=torch.uint8), torch.empty(0, 3, device="cuda"),
        torch.nn.Parameter(torch.ones(2, 2, device="cuda")),
    ]  # fmt: skip
    there = [peer.call(kit.facts, x) for x in made]
    assert [fact[4:9] for fact in there] == [kit.facts(x)[4:9] for x in made]
    assert there[4][:4] == ("Parameter", True, True, True)
    assert [fact[9] for fact in there] == [str(x.device) for x in made]
    peer.call(kit.fill, made[2], 9)
    assert bool((made[2] == 9).all())


def test_what_comes_back_to_its_sender_is_what_it_sent(peer):
    queue = mp.get_context("spawn").SimpleQueue()
    x = torch.ones(3, device="cuda")
    queue.put(x)
    assert queue.get().data_ptr() == x.data_ptr()
    at, side = x.data_ptr(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
        x.fill_(4)
        queue.put(x)
    del x  # in limbo now
    y = queue.get()
    assert y.data_ptr() == at and y.tolist() == [4, 4, 4]
    data = ForkingPickler.dumps(y)
    ForkingPickler.loads(data)
    with pytest.raises(RuntimeError, match="was given back since it was sent"):
        ForkingPickler.loads(data)  # a message can be received once only


def test_what_another_process_sent_cannot_be_sent_on(peer):
    peer.call(kit.keep, "theirs", torch.ones(2, device="cuda"))
    with pytest.raises(RuntimeError, match=r"^Attempted to send CUDA tensor received from another process"):
        peer.call(kit.kept_again, "theirs")
    peer.call(kit.keep_clone, "theirs")
    clone = peer.call(kit.kept_again, "theirs")
    assert clone.tolist() == [1, 1]
    peer.call(kit.fill, clone.clone(), 3)
    with pytest.raises(RuntimeError, match=r"^Attempted to send"):
        peer.pipe.send(clone)
    del clone
    gc.collect()
    peer.call(kit.drop, "theirs")


def test_storages_travel_by_tensors_alone():
    x = torch.ones(2, device="cuda")
    with pytest.raises(
        RuntimeError, match=r"^Cannot pickle CUDA storage; try pickling a CUDA tensor instead$"
    ):
        mp.SimpleQueue().put(x.untyped_storage())
    with pytest.raises(RuntimeError, match=r"^Cowardly refusing"):
        mp.SimpleQueue().put(x.requires_grad_() * 2)


@gpus.simulated
def test_expandable_segments_are_refused():
    with torch.virtual(1):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        x = torch.ones(5, device="cuda")
        with pytest.raises(torch.NotSupportedError, match=r"expandable segment cannot be sent"):
            mp.SimpleQueue().put(x)
        assert x.sum() == 5


def test_pytorchs_names_below(peer):
    """As libraries use them: the call and its arguments are taken apart, and put together elsewhere."""
    x = torch.arange(4.0, device="cuda")
    rebuild, args = mp.reductions.reduce_tensor(x[1:])
    assert rebuild is mp.reductions.rebuild_cuda_tensor and args[6] == 0 and len(args[7]) > 64
    assert peer.call(kit.rebuilt, rebuild, args) == [1, 2, 3]
    shared = x.untyped_storage()._share_cuda_()
    assert len(shared) == 8
    assert peer.call(kit.storage_of, shared) == 16


# -- how long ---------------------------------------------------------------------------------------------


def test_the_sender_keeps_the_memory_until_the_receiver_has_done_with_it(peer):
    before = torch.cuda.memory_allocated()
    x = torch.full((MIB,), 1.0, device="cuda")
    at = x.data_ptr()
    peer.call(kit.keep, "x", x)
    del x
    torch.cuda.empty_cache()
    y = torch.full((MIB,), 2.0, device="cuda")
    assert y.data_ptr() != at and torch.cuda.memory_allocated() >= before + 8 * MIB
    assert peer.call(kit.total_of_kept, "x") == MIB
    peer.call(kit.drop, "x")
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before + 4 * MIB
    many = [torch.empty(MIB, device="cuda") for _ in range(256)]  # smaller holes of other tests come first
    assert any(
        t.data_ptr() <= at < t.data_ptr() + t.nbytes for t in many
    )  # joined with a free neighbour, perhaps


@pytest.mark.parametrize("beside", [True, False])
def test_memory_is_kept_until_work_that_the_receiver_queued_is_done(peer, beside):
    """Whether another tensor of the same segment stays there, or the segment is unmapped."""
    x, y = torch.full((1000,), 1.0, device="cuda"), torch.zeros(1000, device="cuda")
    if beside:
        peer.call(kit.keep, "beside", y)
    at = x.data_ptr()
    peer.call(kit.slow_copy, "copy", x, 10_000)
    del x
    torch.cuda.ipc_collect()
    z = torch.full((1000,), 2.0, device="cuda")
    torch.cuda.synchronize()
    assert z.data_ptr() == at and peer.call(kit.total_of_kept, "copy") == 1000
    peer.call(kit.drop, "copy")
    if beside:
        peer.call(kit.drop, "beside")


def test_l09_collecting_gives_back_memory_and_closes_the_counters(peer):
    before = torch.cuda.memory_allocated()
    torch.cuda.ipc_collect()
    for _ in range(2):
        assert device_ipc._state.own is None
        x = torch.ones(MIB, device="cuda")
        peer.call(kit.keep, "x", x)
        counters = weakref.ref(device_ipc._state.own)
        del x
        torch.cuda.ipc_collect()
        assert torch.cuda.memory_allocated() == before + 4 * MIB and counters() is not None
        peer.call(kit.drop, "x")
        assert torch.cuda.memory_allocated() == before + 4 * MIB
        torch.cuda.ipc_collect()
        assert torch.cuda.memory_allocated() == before and counters() is None


def test_too_many_blocks_in_limbo_are_warned_of(peer, monkeypatch):
    monkeypatch.setattr(device_ipc, "_MANY", 1)
    monkeypatch.setattr(device_ipc._state, "warned", False)
    values = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]
    peer.call(kit.keep, "values", values)
    with pytest.warns(UserWarning, match="^Producer process tried to deallocate over 1000 memory blocks"):
        values.clear()
    peer.call(kit.drop, "values")


def test_each_sending_counts(peer):
    before = torch.cuda.memory_allocated()
    x = torch.ones(MIB, device="cuda")
    queue = mp.get_context("spawn").SimpleQueue()
    peer.call(kit.keep, "x", x)
    queue.put(x)
    del x
    peer.call(kit.drop, "x")
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before + 4 * MIB  # one is still underway
    assert queue.get().sum() == MIB
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@gpus.simulated  # on a real GPU other processes may want the memory meanwhile
def test_memory_that_runs_out_is_looked_for_in_limbo(peer):
    size = torch.cuda.mem_get_info()[0] // 4 * 3
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    peer.call(kit.keep, "x", x)
    del x
    peer.call(kit.drop, "x")
    assert torch.cuda.memory_allocated() >= size
    assert torch.empty(size, dtype=torch.uint8, device="cuda").numel() == size
    torch.cuda.empty_cache()


@gpus.simulated
def test_memory_that_is_open_counts_there_too(peer):
    free = peer.call(kit.free_memory, 1)
    peer.call(kit.keep, "x", torch.ones(64 * MIB, dtype=torch.uint8, device="cuda:1"))
    assert free - peer.call(kit.free_memory, 1) >= 64 * MIB
    peer.call(kit.drop, "x")
    assert peer.call(kit.free_memory, 1) == free


def test_a_receiver_that_is_killed_holds_nothing():
    before = torch.cuda.memory_allocated()
    other = kit.Peer()
    x = torch.ones(MIB, device="cuda")
    other.call(kit.keep, "x", x)
    del x
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before + 4 * MIB
    other.kill()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_receiver_that_ends_gives_everything_back(method):
    before = torch.cuda.memory_allocated()
    other = kit.Peer(method)
    other.call(kit.keep, "x", torch.ones(MIB, device="cuda"))
    assert other.stop() == 0
    device_ipc.collect(thoroughly=False)  # it has said so itself: that it ended is not looked at
    assert torch.cuda.memory_allocated() == before


@gpus.simulated
def test_poison_is_laid_on_no_other_processes_memory():
    with torch.virtual(1, poison=True):
        other = kit.Peer()
        x, y = torch.full((1000,), 3.0, device="cuda"), torch.full((3 * MIB,), 4.0, device="cuda")
        assert [other.call(kit.total, x), other.call(kit.total, y)] == [3000, 12 * MIB]
        assert x.sum() == 3000 and y.sum() == 12 * MIB
        assert other.stop() == 0


def test_a_sender_that_has_ended_is_reported():
    other = kit.Peer()
    ours, theirs = mp.Pipe()
    other.call(kit.send_cuda, theirs, 2)
    assert ours.recv().tolist() == [1, 1]
    other.call(kit.send_cuda, theirs, 3)
    other.kill()
    with pytest.raises(RuntimeError, match=r"process \d+.* has ended"):
        ours.recv()


@gpus.simulated
def test_a_sender_that_ends_too_early_says_so():
    """PyTorch's warning, when the machine closes."""
    x, queue = torch.ones(2, device="cuda"), mp.get_context("spawn").SimpleQueue()
    with torch.virtual(1) as inner:
        queue.put(torch.ones(2, device="cuda"))
        with pytest.warns(
            UserWarning, match=r"^Producer process has been terminated before all shared CUDA tensors"
        ):
            inner.close()
    assert x.tolist() == [1, 1]


def test_a_fork_is_refused():
    """L07: care has to be taken; where it was not, an error says so."""
    torch.cuda.init()
    other = kit.Peer("fork")
    with pytest.raises(RuntimeError, match=r"^Cannot re-initialize CUDA in forked subprocess"):
        other.call(kit.values, torch.ones(2, device="cuda"))
    assert other.stop() == 0


@gpus.simulated
def test_a_device_that_is_not_there(peer):
    x = torch.ones(2, device="cuda:1")
    other = kit.Peer()
    other.call(kit.use_virtual, 1)
    with pytest.raises(
        RuntimeError, match="lies on a device which this process does not see: cuda:1 of process"
    ):
        other.call(kit.values, x)


@gpus.simulated
def test_children_have_virtual_gpus_like_ours():
    assert kit.Peer().call(kit.gpus) == (2, "NVIDIA A100-SXM4-40GB") == kit.gpus()


def test_many_messages_between_three_processes():
    """Of any size, held there for a while or not: all arrive, all comes back, nothing is left."""
    draw = random.Random(0)
    before = torch.cuda.memory_allocated()
    others = [kit.Peer() for _ in range(2)]
    for number in range(120):
        where, size = draw.choice(["cpu", "cuda"]), draw.choice([1, 100, 5000, 300_000, 1_500_000])
        x = torch.full((size,), float(number), device=where)
        draw.choice(others).call(kit.increment_and_hold, x, number, draw.randrange(1, 5))
        assert bool((x == number + 1).all())
    del x
    assert [other.stop() for other in others] == [0, 0]
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


# -- in which order ---------------------------------------------------------------------------------------


def test_the_receiver_waits_for_the_senders_stream(peer):
    side = torch.cuda.Stream()
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        x.fill_(3)
        assert not side.query()
        assert peer.call(kit.values, x[:2]) == [3, 3]
    assert gpus.real or not side.query()  # nobody waited here: its time has not come


@pytest.mark.parametrize("method", ["pipe", "queue"])
def test_the_stream_of_the_thread_that_sends_counts(peer, method):
    """Also where a queue's own thread does the rest."""
    queue = mp.get_context("spawn").Queue()
    side = torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
        x.fill_(6)
        (queue.put if method == "queue" else peer.pipe.send)((kit.values, (x,)))
    if method == "queue":
        peer.pipe.send(queue.get(timeout=300))
        queue.close()
        queue.join_thread()
    assert peer.answer() == [6, 6, 6, 6]


def test_many_sendings_wait_for_their_streams_instead(peer, monkeypatch):
    monkeypatch.setattr(device_ipc, "_EVENTS", 0)
    x = torch.ones(2, device="cuda")
    parcel = x.untyped_storage()._share_cuda_()
    assert parcel[6:] == (b"", False)
    assert peer.call(kit.storage_of, parcel) == 8


def test_events_go_both_ways(peer):
    ours = torch.cuda.Event(interprocess=True)
    x = torch.zeros(3, device="cuda")
    x.fill_(2)
    ours.record()
    peer.call(kit.keep, "event", ours)
    x.fill_(4)
    ours.record()
    peer.call(kit.wait_and_double, "event", x)
    ours.wait()
    assert x.tolist() == [8, 8, 8]
    assert ours.query() and str(ours.device) == "cuda:0"
    peer.call(kit.drop, "event")


def test_a_handle_of_an_event_opens_elsewhere(peer):
    event = torch.cuda.Event(interprocess=True)
    event.record()
    assert peer.call(kit.opened_event, 0, event.ipc_handle()) == ("cuda:0", True)
    if not gpus.real:
        with pytest.raises(RuntimeError, match="another device"):
            peer.call(kit.opened_event, 1, event.ipc_handle())
    with pytest.raises(RuntimeError, match=r"CUDA error: (invalid|mapping)"):
        peer.call(kit.opened_event, 0, bytes(64))


@pytest.mark.parametrize("recorded_first", [False, True])
@pytest.mark.parametrize("method", ["event", "handle"])
def test_an_importer_waits_for_the_exporters_work(peer, method, recorded_first):
    event = torch.cuda.Event(interprocess=True)
    assert event.query()
    if recorded_first:
        event.record()
        event.synchronize()
    if method == "event":
        peer.call(kit.keep, "event", event)
    else:
        peer.call(kit.open_event, "event", event.ipc_handle())
    for _ in range(2):
        torch.cuda._sleep(50_000_000)
        event.record()
        assert not event.query()
        assert peer.call(kit.synchronize_event, "event")
        assert event.query()
    peer.call(kit.drop, "event")


def test_an_exporter_waits_for_the_importers_work(peer):
    event = torch.cuda.Event(interprocess=True)
    peer.call(kit.open_event, "event", event.ipc_handle())
    for _ in range(2):
        peer.call(kit.record_late, "event")
        assert not event.query()
        event.synchronize()
        assert event.query()
    torch.cuda._sleep(50_000_000)
    event.record()  # by this process again
    assert not event.query()
    event.synchronize()
    assert event.query()
    peer.call(kit.drop, "event")


def test_a_poll_of_another_processs_event_ends(peer):
    event = torch.cuda.Event(interprocess=True)
    peer.call(kit.open_event, "event", event.ipc_handle())
    peer.call(kit.record_late, "event")
    polls = 0
    while not event.query():
        polls += 1
    assert polls
    peer.call(kit.drop, "event")


def test_handles_are_made_on_any_current_device():
    with torch.cuda.device(0):
        new, recorded = torch.cuda.Event(interprocess=True), torch.cuda.Event(interprocess=True)
        recorded.record(torch.cuda.Stream())
    with torch.cuda.device(1):
        assert len({new.ipc_handle(), recorded.ipc_handle()}) == 2


@pytest.mark.parametrize("kind", ["parameter", "variable", "constant"])
def test_each_process_has_its_own_gradient_of_a_shared_parameter(peer, kind):
    x = torch.arange(1.0, 26, device="cuda").view(5, 5)
    value = torch.nn.Parameter(x) if kind == "parameter" else x.requires_grad_(kind == "variable")

    @torch.utils.hooks.unserializable_hook
    def hook(grad):
        pass

    if value.requires_grad:
        value.register_hook(hook)
        assert len(value._backward_hooks) == 1
    value._grad = torch.full_like(value, 4)
    name = "Parameter" if kind == "parameter" else "Tensor"
    expected = (name, kind != "constant", True, True, torch.arange(1.0, 26).view(5, 5).tolist())
    assert peer.call(kit.change_parameter, value) == expected
    assert value.tolist() == [[1.0] * 5] * 5
    assert value.grad.tolist() == value._grad.tolist() == [[4.0] * 5] * 5


@gpus.simulated
def test_simulated_time_and_the_trace_do_not_depend_on_the_other_process(peer):
    """A sending costs what its calls cost; what the other process does meanwhile costs nothing here."""

    def run():
        with torch.virtual(1) as here:
            x = torch.ones(1000, device="cuda")
            for number in range(3):
                peer.call(kit.fill, x, number)
                x.add_(1)
            assert x.tolist() == [3.0] * 1000
            peer.call(kit.collect)
            torch.cuda.ipc_collect()
            return here.driver.time_ns(), here.driver.trace_hash()

    assert run() == run()
