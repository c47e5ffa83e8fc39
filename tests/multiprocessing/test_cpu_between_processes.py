"""CPU tensors between processes: one memory, whatever carries them; what lives how long."""

from __future__ import annotations

import gc
import multiprocessing as standard
import os
import signal
import subprocess
import sys
import textwrap
from multiprocessing.reduction import ForkingPickler
from queue import Full

import peer_kit as kit
import pytest
import torch

import flambeau
import flambeau.multiprocessing as mp
from flambeau.core.ipc.shared_memory import Door

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(scope="module")
def peer():
    made = kit.Peer()
    yield made
    assert made.stop() == 0


@pytest.fixture
def file_system():
    mp.set_sharing_strategy("file_system")
    yield
    mp.set_sharing_strategy("file_descriptor")


@pytest.fixture(params=["file_descriptor", "file_descriptor, no door", "file_system"])
def strategy(request, monkeypatch):
    """Both, and what stands in where a process hides its descriptors: they are sent by a thread."""
    if "no door" in request.param:
        monkeypatch.setattr(Door, "opens", lambda: False)
    mp.set_sharing_strategy(request.param.partition(",")[0])
    yield request.param
    mp.set_sharing_strategy("file_descriptor")


def named():
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"flambeau_{os.getpid()}_")]


# -- one memory -------------------------------------------------------------------------------------------


def test_what_is_sent_is_shared_and_writes_are_seen_on_both_sides(peer, strategy):
    x = flambeau.arange(6.0).view(2, 3)
    row = x[1]
    peer.call(kit.keep, "x", x)
    assert x.is_shared() and row.is_shared()
    peer.call(kit.fill, x, 3)
    assert row.tolist() == [3, 3, 3]
    row.fill_(4)
    assert peer.call(kit.values, x) == [[3, 3, 3], [4, 4, 4]]
    assert peer.call(kit.is_kept, "x", x)  # what comes again is what is there
    assert peer.call(kit.kept_again, "x").data_ptr() == x.data_ptr()  # and here, too
    peer.call(kit.drop, "x")
    assert not named() or strategy == "file_system"
    del x, row
    gc.collect()
    assert not named()


@pytest.mark.parametrize("kind", ["float32", "bool", "bfloat16", "complex64", "uint16", "float8_e4m3fn"])
def test_layouts_and_dtypes_arrive_as_with_pytorch(peer, kind):
    def made(library):
        x = library.ones(4, 6, device="cpu").to(getattr(library, kind))
        return [x, x.t(), x[1:3, ::2], x[3, 2], x[:0], library.empty(0, 3)]

    there = [peer.call(kit.facts, value) for value in made(flambeau)]
    queue = torch.multiprocessing.SimpleQueue()
    theirs = []
    for value in made(torch):
        queue.put(value)
        theirs.append(kit.facts(queue.get()))
    assert there[:4] == theirs[:4]
    assert [fact[5] for fact in there] == [fact[5] for fact in theirs]


def test_views_of_one_message_stay_views(peer):
    x = flambeau.arange(10.0)
    assert peer.call(kit.are_views, [x, x[2:5], x.view(2, 5), flambeau.nn.Parameter(x)])
    assert not peer.call(kit.are_views, [x, x.clone()])


def test_leaves_parameters_and_attributes(peer):
    leaf = flambeau.ones(2, requires_grad=True)
    assert peer.call(kit.facts, leaf)[:4] == ("Tensor", True, True, True)
    parameter = flambeau.nn.Parameter(flambeau.ones(2, dtype=flambeau.int64), requires_grad=False)
    assert peer.call(kit.facts, parameter)[:4] == ("Parameter", True, False, True)
    peer.call(kit.fill, parameter, 9)
    assert parameter.tolist() == [9, 9]


def test_modules_are_shared_parameter_by_parameter(peer):
    model = flambeau.nn.Linear(3, 1)
    peer.call(kit.keep, "model", model)
    model.weight.data.fill_(2)
    assert peer.call(kit.kept_again, "model").weight.data_ptr() == model.weight.data_ptr()
    assert peer.call(kit.values, model.weight) == [[2, 2, 2]]
    peer.call(kit.drop, "model")


def test_refusals_are_pytorchs():
    for library in (flambeau, torch):
        queue = library.multiprocessing.SimpleQueue()
        x = library.ones(2, requires_grad=True)
        with pytest.raises(
            RuntimeError, match=r"^Cowardly refusing to serialize non-leaf tensor which requires_grad"
        ):
            queue.put(x * 2)
        x.register_hook(lambda grad: None)
        with pytest.warns(UserWarning, match="^backward hook <function .* on tensor will not be serialized"):
            queue.put(x)
        assert queue.get().tolist() == [1, 1]
        y = library.ones(2, requires_grad=True)
        y.register_hook(library.utils.hooks.unserializable_hook(lambda grad: None))
        queue.put(y)
        assert queue.get().tolist() == [1, 1]


def test_put_pickles_at_once():
    """What is put is what is there at that time, and what cannot be put says so. See Note [Put and pickled]."""
    queue = mp.get_context("spawn").Queue(1)
    numbers = [1]
    queue.put(numbers)
    numbers.append(2)
    assert queue.get(timeout=300) == [1]
    with pytest.raises(RuntimeError, match="Cowardly"):
        queue.put(flambeau.ones(2, requires_grad=True) * 2)
    queue.put(1)
    x = flambeau.ones(2)
    for _ in range(3):
        with pytest.raises(Full):
            queue.put(x, block=False)
    assert queue.get(timeout=300) == 1
    joinable = mp.JoinableQueue()
    joinable.put(x)
    assert joinable.get(timeout=300).data_ptr() == x.data_ptr()
    joinable.task_done()
    joinable.join()
    for one in (queue, joinable):
        one.close()
        one.join_thread()
    with pytest.raises(ValueError, match="is closed"):
        queue.put(x)


# -- what starts and carries ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_arguments_of_processes_and_queues(method):
    context = mp.get_context(method)
    assert context.get_start_method() == method and context.get_context() is context
    x, queue = flambeau.zeros(2, 2), context.Queue()
    x.share_memory_()
    process = context.Process(target=kit.increment, args=(x, queue))
    process.start()
    assert queue.get(timeout=300) == 4
    process.join(300)
    assert process.exitcode == 0 and x.tolist() == [[1, 1], [1, 1]]
    queue.close()
    queue.join_thread()


def test_pools_and_the_names_of_the_standard_library():
    assert set(standard.__all__) <= set(dir(mp))
    for module in (mp, mp.reductions):
        with pytest.raises(
            AttributeError, match=r"module 'torch\.multiprocessing.*' has no attribute 'nothing': Fl"
        ):
            module.nothing  # noqa: B018
    assert mp.get_start_method() == standard.get_start_method()
    with pytest.raises(ValueError, match="cannot find context for 'threads'"):
        mp.get_context("threads")
    with mp.get_context("spawn").Pool(1) as pool:
        x = flambeau.arange(3.0).share_memory_()
        assert [y.tolist() for y in pool.map(kit.doubled, [x, x + 1])] == [[0, 2, 4], [2, 4, 6]]
        pool.apply(kit.fill, (x, 8))
        assert x.tolist() == [8, 8, 8]


def test_strategies():
    assert mp.get_all_sharing_strategies() == torch.multiprocessing.get_all_sharing_strategies()
    assert mp.get_sharing_strategy() == torch.multiprocessing.get_sharing_strategy()
    with pytest.raises(AssertionError, match="invalid sharing strategy 'x', expected one of"):
        mp.set_sharing_strategy("x")


# -- what lives how long ----------------------------------------------------------------------------------


def test_the_receiver_keeps_what_the_sender_drops(peer, strategy):
    x = flambeau.full((1000,), 3.0)
    peer.call(kit.keep, "x", x)
    before = len(named())
    del x
    assert len(named()) == before
    x = peer.call(kit.kept_again, "x")
    assert x.sum() == 3000
    peer.call(kit.drop, "x")
    del x
    gc.collect()
    assert not named()


def test_a_message_underway_keeps_its_memory(strategy):
    x = flambeau.full((1000,), 3.0)
    message = bytes(ForkingPickler.dumps(x))
    del x
    gc.collect()
    y = ForkingPickler.loads(message)
    assert y.sum() == 3000
    del y
    gc.collect()
    assert not named()


def test_descriptors_are_closed_on_both_sides(peer):
    peer.call(kit.values, flambeau.ones(3))
    ours, theirs = kit.descriptors(), peer.call(kit.descriptors)
    for _ in range(5):
        peer.call(kit.values, [flambeau.ones(3), flambeau.ones(4)])
    gc.collect()
    assert (kit.descriptors(), peer.call(kit.descriptors)) == (ours, theirs)


def test_names_open_no_descriptors(peer, file_system):
    before = kit.descriptors()
    many = [flambeau.ones(3).share_memory_() for _ in range(10)]
    assert kit.descriptors() <= before + 1 and len(named()) == 10  # one to the resource tracker
    del many
    assert not named()


PROGRAM = """
    import os, sys
    import flambeau as torch, flambeau.multiprocessing as mp
    import peer_kit as kit
    if __name__ == "__main__":
        mp.set_sharing_strategy("file_system")
        peer = kit.Peer("spawn")
        x, y = torch.ones(3), torch.ones(4)
        peer.call(kit.keep, "x", x)
        z = peer.call(kit.kept_again, "x")
        print(" ".join(n for n in os.listdir("/dev/shm") if n.startswith("flambeau_%d_" % os.getpid())), flush=True)
        {end}
"""


ENDS = {  # whether somebody is killed: a process that is a daemon, and has not ended, is, too
    "peer.stop()": False, "peer.kill()": True, "peer.kill(); os.kill(os.getpid(), 9)": True, "pass": True,
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_no_name_outlives_the_program_whoever_is_killed(end, tmp_path):
    """The standard library's tracker removes what the killed have left: it says so, and ends after the program."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(end=end))
    path = os.pathsep.join([os.path.dirname(kit.__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )  # its output ends when the tracker has ended, too
    names = done.stdout.split()
    assert len(names) == 1, done.stderr
    assert done.returncode == (-signal.SIGKILL if "getpid" in end else 0), done.stderr
    assert not set(names) & set(os.listdir("/dev/shm"))
    assert "leaked shared_memory" in done.stderr if ENDS[end] else not done.stderr, done.stderr


def test_a_sender_that_has_ended_is_named():
    ours, theirs = mp.Pipe()
    process = mp.get_context("fork").Process(target=kit.send_and_end, args=(theirs,))
    process.start()
    process.join(300)
    assert process.exitcode == 3
    with pytest.raises(FileNotFoundError, match="the process that sent this tensor has ended"):
        ours.recv()


def test_hogwild_as_pytorchs_documentation_has_it():
    """Processes train one model, whose parameters they share, without a lock."""
    context = mp.get_context("spawn")
    flambeau.manual_seed(0)
    model = flambeau.nn.Linear(2, 1)
    model.share_memory()
    before = kit.loss_of(model)
    processes = [context.Process(target=kit.train, args=(rank, model)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert kit.loss_of(model) < before / 20
