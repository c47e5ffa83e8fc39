"""Placements of the allocator: PyTorch's order against a model of it, random ones, and how a program asks for one."""

from __future__ import annotations

import random
from bisect import insort
from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver

import flambeau
import flambeau as torch
from flambeau.runtime import system
from flambeau.runtime.memory.allocator import CachingAllocator

SIZES = (1, 512, 700, 4096, 70_000, 400_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 12 * MIB)
STREAMS = (1, 2)


class Piece:
    """A part of a segment in the model. `free` only once no stream uses it any more."""

    def __init__(self, ptr: int, size: int) -> None:
        self.ptr, self.size, self.free = ptr, size, False
        self.left: Piece | None = None
        self.right: Piece | None = None


class Model:
    """PyTorch's CUDACachingAllocator as its documentation and Note describe it: one sorted set of (size, address) for
    each stream and kind; the first that fits; a rest of 512 bytes, or of more than 1 MiB, is split off; neighbours join
    at once when a block becomes free; recorded uses are asked for at each request.
    """

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.free_pieces: dict[tuple[int, bool], list[tuple[int, int, Piece]]] = {}
        self.waiting: list[tuple[Piece, tuple[int, bool], dict[int, int]]] = []

    def allocate(self, nbytes: int, stream: int) -> Piece:
        for entry in list(self.waiting):
            if all(self.driver.done.get(user, 0) >= clock for user, clock in entry[2].items()):
                self.waiting.remove(entry)
                self.release(entry[0], entry[1])
        size = max(512, -(-nbytes // 512) * 512)
        small = size <= MIB
        pool = self.free_pieces.setdefault((stream, small), [])
        fitting = [entry for entry in pool if entry[0] >= size]
        if fitting:
            pool.remove(fitting[0])
            piece = fitting[0][2]
        else:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            piece = Piece(self.driver.mem_alloc(0, segment), segment)
        piece.free = False
        rest = piece.size - size
        if rest >= 512 if small else rest > MIB:
            other = Piece(piece.ptr + size, rest)
            other.free, other.left, other.right = True, piece, piece.right
            if piece.right is not None:
                piece.right.left = other
            piece.right, piece.size = other, size
            insort(pool, (rest, other.ptr, other))
        return piece

    def free(self, piece: Piece, stream: int, small: bool, users: dict[int, int]) -> None:
        if users:
            self.waiting.append((piece, (stream, small), users))
        else:
            self.release(piece, (stream, small))

    def release(self, piece: Piece, key: tuple[int, bool]) -> None:
        pool = self.free_pieces[key]
        for left, right in ((piece.left, piece), (piece, piece.right)):
            other = left if right is piece else right
            if other is None or not other.free or left is None or right is None:
                continue
            pool.remove((other.size, other.ptr, other))
            if left is other:  # `piece` takes its place
                piece.ptr, piece.left = left.ptr, left.left
                if left.left is not None:
                    left.left.right = piece
            else:
                piece.right = right.right
                if right.right is not None:
                    right.right.left = piece
            piece.size += other.size
        piece.free = True
        insort(pool, (piece.size, piece.ptr, piece))


@pytest.mark.parametrize("seed", range(20))
def test_pytorch_placement_equals_a_model_of_pytorchs_allocator(seed: int) -> None:
    rng = random.Random(seed)
    mine, theirs = FakeDriver(), FakeDriver()
    context = context_over(mine)
    allocator, model = CachingAllocator(context, placement="pytorch"), Model(theirs)
    streams = {handle: stream_of(context, handle) for handle in STREAMS}
    live: list[tuple[Any, Piece, int, int, set[int]]] = []
    for _ in range(400):
        step = rng.random()
        if step < 0.45:
            stream, nbytes = rng.choice(STREAMS), rng.choice(SIZES)
            block, piece = allocator.allocate(nbytes, streams[stream]), model.allocate(nbytes, stream)
            assert (block.ptr, block.size) == (piece.ptr, piece.size)
            live.append((block, piece, stream, nbytes, set()))
        elif step < 0.8 and live:
            block, piece, stream, nbytes, users = live.pop(rng.randrange(len(live)))
            allocator.free(block)
            model.free(piece, stream, nbytes <= MIB, {user: mine.clock.get(user, 0) for user in users})
        elif step < 0.9 and live:
            block, _, stream, _, users = rng.choice(live)
            user = 3 - stream
            allocator.record_stream(block, streams[user])
            users.add(user)
        else:
            user = rng.choice(STREAMS)
            for driver in (mine, theirs):
                driver.work(user)
            if rng.random() < 0.5:
                for driver in (mine, theirs):
                    driver.finish(user)


def addresses(placement: str) -> list[int]:
    """Where a small program's tensors lie, relative to the lowest: each machine has addresses of its own."""
    with flambeau.virtual(devices=1, placement=placement):
        kept = [torch.empty(100 * n, device="cuda") for n in range(1, 30)]
        del kept[::2]
        kept += [torch.empty(90 * n, device="cuda") for n in range(1, 30)]
        lowest = min(x.data_ptr() for x in kept)
        return [x.data_ptr() - lowest for x in kept]


def test_random_placements_repeat_and_differ() -> None:
    first = addresses("random:1")
    assert addresses("random:1") == first
    others = [addresses(placement) for placement in ("random:2", "default", "pytorch")]
    assert first not in others and len(others) == len({tuple(other) for other in others})


def test_random_placement_joins_before_it_refuses() -> None:
    """A free segment in many unjoined parts serves a request that needs all of it."""
    driver = FakeDriver(capacity=20 * MIB)
    context = context_over(driver)
    stream = stream_of(context, 1)
    for seed in range(20):
        allocator = CachingAllocator(context, placement=f"random:{seed}")
        parts = [allocator.allocate(2 * MIB, stream) for _ in range(10)]
        for block in parts:
            allocator.free(block)
        allocator.free(allocator.allocate(9 * MIB, stream))
        allocator.free(allocator.allocate(20 * MIB, stream))
        allocator.empty_cache()
        assert not driver.sizes


def test_the_environment_names_a_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_PLACEMENT", "random:1")
    with flambeau.virtual(devices=1):
        assert system.machine_settings().placement == "random:1"
    with flambeau.virtual(devices=1, placement="pytorch"):
        assert system.machine_settings().placement == "pytorch"


@pytest.mark.parametrize("name", ["best", "random", "random:", "random:x", "random:-1", "pytorch:1", "", 7])
def test_unknown_placements_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="must be default, pytorch or random:SEED"):
        flambeau.virtual(devices=1, placement=name)
