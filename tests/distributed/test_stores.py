"""Stores beside PyTorch's own: the same calls, answers and errors; waits, many clients, files, rendezvous."""

from __future__ import annotations

import errno
import io
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flambeau.core.errors import DriverError
from flambeau.core.host.turn_scheduler import Baton
from flambeau.core.ipc.codec import Inbox, frame_message, pack, unpack
from flambeau.distributed import dist_errors
from flambeau.distributed.rendezvous import register_rendezvous_handler, rendezvous
from flambeau.distributed.stores import file_store
from flambeau.distributed.stores.file_store import FileStore
from flambeau.distributed.stores.store import HashStore, PrefixStore, Store, await_keys
from flambeau.distributed.stores.tcp_store import TCPStore

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
SEEDS = 20 if EXHAUSTIVE else 3
SHORT = timedelta(milliseconds=20)
KINDS = ("hash", "file", "tcp", "prefix")


def ours(kind: str, folder: Path) -> Store:
    if kind == "file":
        return FileStore(str(folder / "ours"), 1)
    if kind == "tcp":
        return TCPStore("127.0.0.1", 0, 1, True)
    return HashStore() if kind == "hash" else PrefixStore("p", HashStore())


def theirs(kind: str, folder: Path) -> Any:
    from support import torch  # skips where the oracle is not installed

    dist = torch.distributed
    if kind == "file":
        return dist.FileStore(str(folder / "theirs"), 1)
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", 0, 1, True)
    return dist.HashStore() if kind == "hash" else dist.PrefixStore("p", dist.HashStore())


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, or the name of what it raises."""
    try:
        found = call()
    except Exception as error:
        return type(error).__name__
    return sorted(found) if isinstance(found, list) and found and isinstance(found[0], str) else found


def calls(seed: int, kind: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A program of calls on few keys, so that they meet. Values beside counters would end PyTorch's server."""
    dice = random.Random(seed)
    texts, counters, queues = ["a", "b", "é/x"], ["n", "m"], ["q", "r"]

    def value() -> str | bytes:
        return dice.choice(["", "1", "two", b"\x00\xff", "x" * 50])

    for _ in range(20 if kind == "file" else 60):  # PyTorch's is slow with files
        key = dice.choice(texts)
        yield dice.choice([
            ("set", (key, value())), ("append", (key, value())), ("compare_set", (key, value(), value())),
            ("get", (key,)), ("check", (dice.sample(texts + counters, 2),)), ("wait", ([key],)),
            ("wait", ([key, dice.choice(counters)], SHORT)), ("num_keys", ()), ("list_keys", ()),
            ("add", (dice.choice(counters), dice.randint(-9, 9))), ("get", (dice.choice(counters),)),
            ("multi_set", (texts[:2], [value(), value()])), ("multi_get", (dice.sample(texts, 2),)),
            ("queue_push", (dice.choice(queues), value())), ("queue_pop", (dice.choice(queues), False)),
            ("queue_pop", (dice.choice(queues),)), ("queue_len", (dice.choice(queues),)),
            ("set", (key, 1)), ("add", (key, 1.5)), ("wait", (key,)), ("check", (dice.sample(queues, 1),)),
            ("delete_key", (key,)),
        ])  # fmt: skip


@pytest.mark.parametrize(
    "kind, seed", [(k, seed) for k in KINDS for seed in range(SEEDS if k != "file" else 1)]
)
def test_a_store_answers_as_pytorchs(kind: str, seed: int, tmp_path: Path) -> None:
    mine, reference = ours(kind, tmp_path), theirs(kind, tmp_path)
    for store in (mine, reference):
        store.set_timeout(SHORT)
    for name, args in calls(seed, kind):
        if kind == "file" and name in ("delete_key", "list_keys"):
            continue  # there PyTorch's says True of any key, and shows keys of its own
        expected = answer(lambda name=name, args=args: getattr(reference, name)(*args))
        assert answer(lambda name=name, args=args: getattr(mine, name)(*args)) == expected, (name, args)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stores_say_of_themselves(kind: str, tmp_path: Path) -> None:
    mine, reference = ours(kind, tmp_path), theirs(kind, tmp_path)
    assert mine.timeout == reference.timeout
    assert mine.has_extended_api() == reference.has_extended_api()
    for store in (mine, reference):
        store.set_timeout(1.5)
        assert store.timeout == timedelta(seconds=1.5)
        with pytest.raises(TypeError, match="set_timeout"):
            store.set_timeout(5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_key_is_named(kind: str, tmp_path: Path) -> None:
    store = ours(kind, tmp_path)
    store.set("here", "1")
    with pytest.raises(RuntimeError, match=r"(?i)wait timeout.*absent") as caught:
        store.wait(["here", "absent"], SHORT)
    assert (type(caught.value) is RuntimeError) == (kind == "file"), "PyTorch's types"
    store.set_timeout(SHORT)
    with pytest.raises(RuntimeError, match=r"(?i)timeout.*absent"):
        store.get("absent")


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_leave_the_store_usable(kind: str, tmp_path: Path) -> None:
    store = ours(kind, tmp_path)
    store.set("here", "1")
    for limit in (timedelta(seconds=-1), timedelta(), timedelta.max, timedelta(microseconds=1), 0.5):
        store.wait(["here"], limit)  # type: ignore[arg-type] # PyTorch takes floats
        store.set_timeout(limit)  # type: ignore[arg-type]
        assert store.get("here") == b"1"
    with pytest.raises(RuntimeError, match=r"(?i)wait timeout.*absent"):
        store.wait(["absent"], timedelta(microseconds=1))
    for wrong in (float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match=r"wait\(\): the timeout must be a number of seconds"):
            HashStore.wait(store, ["here"], wrong)  # type: ignore[arg-type]
    for call in (lambda: store.set("\ud800", "1"), lambda: store.set("here", "\ud800")):
        with pytest.raises(TypeError, match="without surrogates"):
            call()
    with pytest.raises(ValueError):
        store.add("number", 10**5000)
    assert store.get("here") == b"1"


def test_a_tcp_store_refuses_a_negative_timeout() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=-1))


def test_counting_in_a_text_is_refused_and_leaves_the_store_usable(tmp_path: Path) -> None:
    for kind in KINDS:  # PyTorch's TCPStore loses its connection here
        store = ours(kind, tmp_path)
        store.set("text", "xyz")
        with pytest.raises(ValueError, match="stoll"):
            store.add("text", 1)
        assert store.get("text") == b"xyz"


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_is_woken_by_who_sets(kind: str, tmp_path: Path) -> None:
    store = ours(kind, tmp_path)
    seen: list[bytes] = []
    other = store.clone()
    thread = threading.Thread(target=lambda: seen.append(other.get("late")))
    thread.start()
    store.set("late", "now")
    thread.join(300)
    assert seen == [b"now"]


@pytest.mark.parametrize("kind", ["hash", "tcp"])
def test_a_queue_wakes_its_consumers_one_by_one(kind: str, tmp_path: Path) -> None:
    store = ours(kind, tmp_path)
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(store.clone().queue_pop("q"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        store.queue_push("q", str(number))
    for thread in threads:
        thread.join(300)
    assert sorted(seen) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_barriers_and_counters_of_many_threads(kind: str, tmp_path: Path) -> None:
    store = ours(kind, tmp_path)

    def body(mine: Store) -> None:
        for _ in range(5):
            mine.add("n", 1)
        mine.barrier("end", 4, timedelta(seconds=300))
        assert mine.get("n") == b"20"
        mine.add("seen", 1)

    threads = [threading.Thread(target=body, args=(store.clone(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert store.add("seen", 0) == 4


def test_a_prefix_store_leads_to_the_programs_own_store() -> None:
    class Mine(Store):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def set(self, key: Any, value: Any) -> None:
            self.seen.append(key)

    store = Mine()
    inner = PrefixStore("a", PrefixStore("b", store))
    inner.set("key", "1")
    assert store.seen == ["b/a/key"]
    assert inner._underlying_non_prefix_store is store
    with pytest.raises(RuntimeError, match="Not implemented"):
        inner.add("key", 1)


# -- over TCP -------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_and_a_server_that_is_not_there() -> None:
    master = TCPStore("127.0.0.1", 0, None, True)
    with pytest.raises(dist_errors.DistNetworkError, match="EADDRINUSE"):
        TCPStore("127.0.0.1", master.port, None, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(
        dist_errors.DistNetworkError, match=r"timed out after 50ms while trying to connect to \(localhost"
    ):
        TCPStore("localhost", port, None, False, timedelta(milliseconds=50))
    with pytest.raises(ValueError, match="world size cannot be 0"):
        TCPStore("127.0.0.1", 0, 0, True)


def test_the_master_waits_for_its_workers() -> None:
    with pytest.raises(dist_errors.DistStoreError, match="1/2 clients joined"):
        TCPStore("127.0.0.1", 0, 2, True, timedelta(milliseconds=50))
    found: list[TCPStore] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    worker = threading.Thread(target=lambda: found.append(TCPStore("127.0.0.1", port, 2)))
    worker.start()
    master = TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=300))
    worker.join(300)
    found[0].set("a", "1")
    assert master.get("a") == b"1"


def test_stores_of_one_process_may_share_a_server() -> None:
    first = TCPStore("127.0.0.1", 0, None, True, multi_tenant=True)
    second = TCPStore("127.0.0.1", first.port, None, True, multi_tenant=True)
    first.set("a", "1")
    del first
    assert second.get("a") == b"1", "the server lives as long as a store of it"


def test_a_server_that_went_says_so() -> None:
    master = TCPStore("127.0.0.1", 0, None, True)
    worker = TCPStore("127.0.0.1", master.port)
    del master
    with pytest.raises(dist_errors.DistNetworkError, match="closed"):
        worker.get("a")
    with pytest.raises(dist_errors.DistNetworkError):
        await_keys(worker, ["a"], timedelta(0))


def test_a_server_may_be_ended_by_a_collection_amid_the_list_of_threads() -> None:
    held = [TCPStore("127.0.0.1", 0, 1, True)]
    begin, ended = threading.Event(), threading.Event()

    def end() -> None:
        begin.wait()
        held.clear()
        ended.set()

    threading.Thread(target=end, daemon=True).start()
    with threading._active_limbo_lock:  # type: ignore[attr-defined]  # as in threading.enumerate
        begin.set()
        assert ended.wait(20)


def test_strangers_do_not_harm_a_server() -> None:
    master = TCPStore("127.0.0.1", 0, None, True)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, frame_message(["no", "greeting"])):
        with socket.create_connection(("127.0.0.1", master.port)) as stranger:
            stranger.sendall(noise)
            stranger.settimeout(20)
            assert stranger.recv(1) == b"", "the server hangs up"
    master.set("a", "1")
    assert master.get("a") == b"1"


def test_a_listening_socket_may_be_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        master = TCPStore("127.0.0.1", port, None, True, master_listen_fd=listener.fileno())
        assert master.port == port
        master.set("a", "x" * 3_000_000)
        assert len(TCPStore("127.0.0.1", port).get("a")) == 3_000_000


def test_messages_are_what_was_packed_and_nothing_else() -> None:
    value = [None, True, False, -5, 10**25, "é", b"\x00\xff", [[], ["a", [1]]]]
    assert unpack(pack(value)) == value
    for cut in range(1, len(pack(value))):
        with pytest.raises(ValueError):
            unpack(pack(value)[:cut])
    with pytest.raises(TypeError, match="object"):
        pack([object()])
    inbox, found = Inbox(limit=100), []
    for byte in frame_message([1]) + frame_message("two"):
        found += inbox.feed(bytes([byte]))
    assert found == [[1], "two"]
    with pytest.raises(ValueError, match="at most 100"):
        inbox.feed(frame_message(b"x" * 200))


# -- ranks that are threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hash", "tcp", "file"])
def test_ranks_under_a_baton_give_it_away_where_they_wait(kind: str, tmp_path: Path) -> None:
    stores = [ours(kind, tmp_path)]
    stores.append(stores[0].clone())
    heard: list[bytes] = []

    def first() -> None:
        heard.append(stores[0].get("from 1"))
        stores[0].set("from 0", "b")

    def second() -> None:
        stores[1].set("from 1", "a")
        heard.append(stores[1].get("from 0"))

    assert Baton(2).run([first, second]) is None
    assert heard == [b"a", b"b"]


def test_a_wait_that_nothing_can_end_is_a_deadlock_told_at_once() -> None:
    store = HashStore()
    error = Baton(2).run([lambda: store.wait(["never"]), lambda: store.wait(["nor this"])])
    assert isinstance(error, DriverError)
    assert "deadlock" in str(error)
    assert "waits for 'never' of a store" in str(error)
    assert "waits for 'nor this' of a store" in str(error)


def test_tcp_stores_of_ranks_under_a_baton_find_each_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def body(rank: int) -> None:
        store = TCPStore("127.0.0.1", port, 2, rank == 0)
        store.set(f"rank {rank}", "here")
        store.wait(["rank 0", "rank 1"])
        store.barrier("end", 2)

    assert Baton(2).run([lambda: body(1), lambda: body(0)]) is None


# -- files, processes and rendezvous ----------------------------------------------------------------------------

_RANK = """
import sys
from datetime import timedelta
from flambeau.distributed.rendezvous import rendezvous
store, rank, size = next(iter(rendezvous(sys.argv[1], timeout=timedelta(seconds=300))))
store.set(f"from {rank}", f"{rank} of {size}")
print(store.get(f"from {1 - rank}").decode())
store.barrier("end", size)
"""


def ranks(urls: list[str], **environment: str) -> list[str]:
    """What two processes say that meet at these URLs."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, url], env={**os.environ, "RANK": str(rank), **environment},
            stdout=subprocess.PIPE, text=True,
        )
        for rank, url in enumerate(urls)
    ]  # fmt: skip
    return [process.communicate(timeout=300)[0].strip() for process in started]


def test_ranks_meet_in_a_file_which_the_last_one_deletes(tmp_path: Path) -> None:
    file = tmp_path / "meeting"
    assert ranks([f"file://{file}?rank={rank}&world_size=2" for rank in (0, 1)]) == ["1 of 2", "0 of 2"]
    assert not file.exists()


def test_ranks_meet_by_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = ranks(["env://", "env://"], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    assert said == ["1 of 2", "0 of 2"]


def test_a_file_keeps_what_it_holds_without_a_world_size(tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    FileStore(path).set("a", "1")
    again = FileStore(path)
    assert again.get("a") == b"1"
    assert again.path == path
    with pytest.raises(OSError):
        FileStore(str(tmp_path / "absent" / "file"), 1)


def test_rendezvous_over_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, 1))
    assert (rank, size) == (0, 1)
    store.set("a", "1")
    assert TCPStore("127.0.0.1", port).get("a") == b"1"


@pytest.mark.parametrize(
    "args",
    [
        ("tcp://127.0.0.1:1?rank=0&world_size=1", 0, 1), ("tcp://127.0.0.1?rank=0&world_size=1",), ("tcp://h:1?rank=0",),
        ("tcp://h:1?world_size=1",), ("file://?rank=0&world_size=1",), ("file:///tmp/x?rank=0",), ("env://",),
        ("nothing://",), (7,), ("env://", "0"), ("env://", 0, 1.5), ("env://", 0, 1),
    ],
)  # fmt: skip
def test_what_rendezvous_refuses_and_says(args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from support import torch  # noqa: F401  skips where the oracle is not installed

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    function = sys.modules["torch.distributed.rendezvous"].rendezvous
    with pytest.raises(Exception) as expected:
        next(function(*args))
    with pytest.raises(type(expected.value)) as caught:
        next(rendezvous(*args))
    assert str(caught.value).split("{")[0] == str(expected.value).split("{")[0]


def test_a_program_may_register_a_scheme() -> None:
    def handler(url: str, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
        yield HashStore(), 3, 4

    register_rendezvous_handler("mine", handler)
    assert next(rendezvous("mine://x"))[1:] == (3, 4)
    with pytest.raises(RuntimeError, match="already registered"):
        register_rendezvous_handler("mine", handler)


@pytest.mark.parametrize("kind", KINDS)
def test_waits_for_other_ranks_end_with_the_keys_a_reason_or_the_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flambeau.distributed.stores.store._LOOK_S", 0.005)
    store, asked = ours(kind, tmp_path), list[int]()

    def gone() -> str:
        asked.append(1)
        return "it has ended" if len(asked) == 2 else ""

    store.set("here", "")
    assert await_keys(store, ["here"], timedelta(minutes=5)) is None
    assert await_keys(store, ["here", "never"], timedelta(milliseconds=5)) == ""
    assert await_keys(store, ["never"], timedelta(0), gone) == "it has ended"


def test_sums_of_more_than_64_bits_are_refused() -> None:
    """Their text would be longer than what a client reads as a number."""
    for store in (HashStore(), TCPStore("127.0.0.1", 0, 1, True)):
        store.set("n", "9" * 4000)
        with pytest.raises(ValueError, match="more than 64 bits"):
            store.add("n", 1)
        assert store.add("m", (1 << 63) - 1) == (1 << 63) - 1
        with pytest.raises(ValueError, match="more than 64 bits"):
            store.add("m", 1)
        assert store.add("m", -1) == (1 << 63) - 2


_FULL = """
import resource, sys
import flambeau.distributed as dist
store, other = dist.FileStore(sys.argv[1], 2), dist.FileStore(sys.argv[1], 2)
store.set("a", "1")
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
for room in (0, 5):  # nothing, or a part of the change, fits
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(open(sys.argv[1], "rb").read()) + room, limit[1]))
    try:
        store.set("b", "2")
    except OSError as error:
        print(error.strerror, error.filename == sys.argv[1], store.check(["b"]), other.check(["b"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    store.set("c", "3")
    print(other.get("a"), other.get("c"))
"""


def test_a_full_disk_leaves_a_file_store_as_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FULL, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wanted = "File too large; the store is as before True False False\nb'1' b'3'\n"
    assert done.stdout == wanted * 2, done.stderr


@pytest.mark.parametrize("part", [1, 8, 20, -1])
def test_a_file_store_ignores_the_partial_change_of_a_killed_writer(tmp_path: Path, part: int) -> None:
    path = tmp_path / "store"
    ours, other = FileStore(str(path), 9), FileStore(str(path), 9)
    ours.set("a", "1")
    before = path.read_bytes()
    ours.set("b", "2")
    whole = path.read_bytes()
    path.write_bytes(before + whole[len(before) :][:part])
    assert other.check(["b"]) is False and len(path.read_bytes()) > len(before)  # reading changes nothing
    other.set("c", "3")
    later = FileStore(str(path), 9)
    assert [store.get("c") for store in (other, later)] == [b"3", b"3"]
    assert later.check(["b"]) is False and later.get("a") == b"1"


def test_a_change_that_cannot_be_written_leaves_a_file_store_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = FileStore(str(path), 9)
    store.add("n", 1)
    path.write_bytes(path.read_bytes() + frame_message(["add", ["n", 1]])[:9])  # a killed writer's part

    class Broken(io.FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_store, "open", lambda name, *_, **__: Broken(name, "a+"), raising=False)
        with pytest.raises(OSError, match="Input/output error"):
            store.add("n", 1)
    assert store.add("n", 1) == 2
