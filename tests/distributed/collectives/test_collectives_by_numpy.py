"""Every collective, dtype, world of 1 to 4 ranks and group against NumPy: on GPUs' tensors and on the CPU's."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.dtype import DTYPES
from flambeau.testing.ranks import ranks

NAMES = [
    "bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
KINDS = {d.name: d for d in DTYPES}
OPS = {
    "SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip
SHAPE = (2, 3)
BACKENDS = ("nccl", "gloo")


def numbers(rank, name, shape=SHAPE):
    """Small whole numbers: exact in every dtype and in every order of sums and products of four."""
    values = np.random.default_rng(rank).integers(1, 4, shape)
    return values.astype(KINDS[name].numpy)


def there(array, name, where):
    return torch.tensor(array.tolist(), dtype=KINDS[name], device=where)


def here(tensor):
    return np.array(tensor.cpu().tolist()).astype(KINDS[tensor.dtype.name].numpy)


def same(tensor, expected):
    got = here(tensor)
    assert got.shape == expected.shape and (got == expected).all(), (got, expected)


def allowed(op, name, backend):
    if name.startswith("complex"):
        return op == "SUM"
    if op.startswith("B"):
        return backend == "gloo" and name in ("bool", "uint8", "int8", "int32", "int64")
    return True


class Rank:
    """What one rank of a group does in a test: `members` are the group's global ranks."""

    def __init__(self, backend, members, group):
        self.where = "cuda" if backend == "nccl" else "cpu"
        self.backend = backend
        self.members = members
        self.group = group
        self.rank = members.index(dist.get_rank())
        self.size = len(members)

    def all_of(self, name, shape=SHAPE):
        return [numbers(rank, name, shape) for rank in self.members]

    def mine(self, name, shape=SHAPE):
        return there(self.all_of(name, shape)[self.rank], name, self.where)

    def empty(self, name, shape=SHAPE):
        return torch.zeros(shape, dtype=KINDS[name], device=self.where)

    def reduces(self, name):
        for op, ufunc in OPS.items():
            if allowed(op, name, self.backend):
                yield getattr(dist.ReduceOp, op), lambda arrays, u=ufunc: reduce(u, arrays)

    def all_reduce(self, name):
        for op, expected in self.reduces(name):
            for async_op in (False, True):
                tensor = self.mine(name)
                work = dist.all_reduce(tensor, op, self.group, async_op)
                assert (work is None) != async_op and (not async_op or work.wait())
                same(tensor, expected(self.all_of(name)))

    def reduce(self, name):
        for op, expected in self.reduces(name):
            tensor, root = self.mine(name), self.size - 1
            dist.reduce(tensor, self.members[root], op, self.group)
            values = self.all_of(name)
            if self.rank == root:
                same(tensor, expected(values))
            else:
                assert self.backend != "nccl" or (here(tensor) == values[self.rank]).all()

    def broadcast(self, name):
        for root in range(self.size):
            tensor = self.mine(name)
            dist.broadcast(tensor, group=self.group, group_src=root)
            same(tensor, self.all_of(name)[root])

    def all_gather(self, name):
        outputs = [self.empty(name) for _ in range(self.size)]
        dist.all_gather(outputs, self.mine(name), self.group)
        for output, expected in zip(outputs, self.all_of(name), strict=True):
            same(output, expected)

    def all_gather_single(self, name):
        output = self.empty(name, (self.size, *SHAPE))
        dist.all_gather_single(output, self.mine(name), self.group)
        same(output, np.stack(self.all_of(name)))

    def all_gather_of_unequal_sizes(self, name):
        values = [numbers(rank, name, (rank + 1,)) for rank in self.members]
        outputs = [self.empty(name, v.shape) for v in values]
        dist.all_gather(outputs, there(values[self.rank], name, self.where), self.group)
        for output, expected in zip(outputs, values, strict=True):
            same(output, expected)

    def gather(self, name):
        for root in range(self.size):
            outputs = [self.empty(name) for _ in range(self.size)] if self.rank == root else None
            dist.gather(self.mine(name), outputs, group=self.group, group_dst=root)
            for output, expected in zip(outputs or (), self.all_of(name), strict=bool(outputs)):
                same(output, expected)

    def scatter(self, name):
        for root in range(self.size):
            inputs = [there(v, name, self.where) for v in self.all_of(name)] if self.rank == root else None
            output = self.empty(name)
            dist.scatter(output, inputs, group=self.group, group_src=root)
            same(output, self.all_of(name)[self.rank])

    def reduce_scatter(self, name):
        wide = self.all_of(name, (self.size, *SHAPE))
        for op, expected in self.reduces(name):
            output = self.empty(name)
            dist.reduce_scatter(output, list(self.mine(name, (self.size, *SHAPE))), op, self.group)
            same(output, expected(wide)[self.rank])
            output = self.empty(name)
            dist.reduce_scatter_single(output, self.mine(name, (self.size, *SHAPE)), op, self.group)
            same(output, expected(wide)[self.rank])

    def all_to_all(self, name):
        wide = self.all_of(name, (self.size, *SHAPE))
        outputs = [self.empty(name) for _ in range(self.size)]
        dist.all_to_all(outputs, list(self.mine(name, (self.size, *SHAPE))), self.group)
        for output, values in zip(outputs, wide, strict=True):
            same(output, values[self.rank])
        output = self.empty(name, (self.size, *SHAPE))
        dist.all_to_all_single(output, self.mine(name, (self.size, *SHAPE)), group=self.group)
        same(output, np.stack([values[self.rank] for values in wide]))

    def all_to_all_of_unequal_splits(self, name):
        """Rank r has r + 1 + n rows for rank n."""
        rows = [[r + 1 + n for n in range(self.size)] for r in range(self.size)]
        values = [numbers(r, name, (sum(rows[r]), 2)) for r in range(self.size)]
        given, taken = rows[self.rank], [rows[r][self.rank] for r in range(self.size)]
        output = self.empty(name, (sum(taken), 2))
        dist.all_to_all_single(output, there(values[self.rank], name, self.where), taken, given, self.group)
        starts = [sum(rows[r][: self.rank]) for r in range(self.size)]
        expected = [values[r][starts[r] : starts[r] + taken[r]] for r in range(self.size)]
        same(output, np.concatenate(expected))

    def messages(self, name):
        """Round the ring: in a batch, and one after the other."""
        if self.size == 1:
            return
        values, near, far = self.all_of(name), (self.rank + 1) % self.size, (self.rank - 1) % self.size
        output = self.empty(name)
        batch = [
            dist.P2POp(dist.isend, self.mine(name), group=self.group, group_peer=near),
            dist.P2POp(dist.irecv, output, group=self.group, group_peer=far),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        same(output, values[far])
        output = self.empty(name)
        if self.rank == 0:
            dist.send(self.mine(name), group=self.group, group_dst=near)
            assert dist.recv(output, self.members[far], self.group) == self.members[far]
        else:
            assert dist.recv(output, group=self.group, group_src=far) == self.members[far]
            dist.send(self.mine(name), group=self.group, group_dst=near)
        same(output, values[far])

    def everything(self, name):
        for kind in (
            "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_single", "all_gather_of_unequal_sizes",
            "gather", "scatter", "reduce_scatter", "all_to_all", "all_to_all_of_unequal_splits", "messages",
        ):  # fmt: skip
            getattr(self, kind)(name)


def program(backend, groups, names):
    dist.init_process_group(backend)
    for members in groups:
        group = None if members is None else dist.new_group(members, sort_ranks=False)
        chosen = list(range(dist.get_world_size())) if members is None else members
        if dist.get_rank() in chosen:
            one = Rank(backend, chosen, group)
            for name in names:
                one.everything(name)
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier(device_ids=[torch.cuda.current_device()] if backend == "nccl" else None)
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_collective_and_dtype(backend, world):
    ranks(program, world, backend, [None], NAMES, order=world)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_of_some_ranks_in_any_order(backend):
    ranks(program, 4, backend, [[0, 2], [3, 1, 0], [2]], ["float32", "int64"], order=1)


@pytest.mark.parametrize("schedule", ["random:1", "adversarial:2", "pct:3:3"])
def test_any_schedule_gives_the_same(schedule):
    ranks(program, 3, "nccl", [None, [2, 0]], ["float32"], schedule=schedule, poison=True, order=5)


def transposed(backend):
    """A transposed tensor, as a gradient in channels last is: dense, but in another order."""
    dist.init_process_group(backend)
    where, rank, size = "cuda" if backend == "nccl" else "cpu", dist.get_rank(), dist.get_world_size()
    values = [numbers(r, "float32", (3, 2)) for r in range(size)]

    def mine():
        return there(values[rank].T.copy(), "float32", where).t()

    assert not mine().is_contiguous()
    dist.all_reduce(summed := mine())
    same(summed, reduce(np.add, values))
    dist.broadcast(given := mine(), 1)
    same(given, values[1])
    dist.reduce(rooted := mine(), 0, dist.ReduceOp.MAX)
    same(rooted, reduce(np.maximum, values) if rank == 0 else values[rank])
    outputs = [torch.zeros((2, 3), device=where).t() for _ in values[1:]]
    outputs.insert(0, torch.zeros((3, 2), device=where))
    dist.all_gather(outputs, mine())
    for output, expected in zip(outputs, values, strict=True):
        same(output, expected)
    part = torch.zeros((3, 2), device=where)
    dist.reduce_scatter(part, [mine() + n for n in range(size)])
    same(part, reduce(np.add, values) + size * rank)
    if rank == 0:
        dist.send(mine(), 1)
    elif rank == 1:
        dist.recv(got := mine(), 0)
        same(got, values[0])
    for refused in (
        lambda: dist.all_reduce(torch.zeros((4, 4), device=where)[:, ::2]),
        lambda: dist.all_reduce(torch.zeros(1, device=where).expand(4)),
        lambda: dist.all_gather_single(torch.zeros((2, 3 * size), device=where).t(), mine()),
    ):
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            refused()


@pytest.mark.parametrize("backend", BACKENDS)
def test_dense_tensors_may_have_any_order_of_dimensions(backend):
    ranks(transposed, 2, backend)


def averaged():
    dist.init_process_group("nccl")
    whole = torch.full((3,), 7.0 * (dist.get_rank() + 1), device="cuda")
    ints = torch.tensor([7, -7], device="cuda") * (dist.get_rank() + 1)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    dist.all_reduce(ints, dist.ReduceOp.AVG)
    return whole.tolist(), ints.tolist()


def test_an_average_scales_floats_first_and_truncates_integers():
    third = np.float32(1 / 3)
    sums = np.float32(7) * third + np.float32(14) * third + np.float32(21) * third
    assert ranks(averaged, 3) == [([float(sums)] * 3, [14, -14])] * 3


def to_the_bit(op):
    dist.init_process_group("nccl")
    values = torch.tensor(
        np.random.default_rng(dist.get_rank()).standard_normal(100).astype(np.float32)
    ).cuda()
    dist.all_reduce(values, op)
    return values.tolist()


def too_large(backend):
    dist.init_process_group(backend)
    device, found = "cuda" if backend == "nccl" else "cpu", []
    for dtype, most in (
        (torch.float16, 60000.0),
        (torch.bfloat16, 3e38),
        (torch.float32, 3e38),
        (torch.float64, 1.5e308),
    ):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
            x = torch.tensor(
                [most, float("inf") * (-1) ** dist.get_rank(), float("nan")], device=device, dtype=dtype
            )
            dist.all_reduce(x, op)
            found.append([str(number) for number in x.tolist()])
    return found


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_sums_too_large_are_infinite_and_nothing_to_warn_of(backend):
    """Warnings are errors here: the device of each member failed with NumPy's."""
    expected = [["inf", "nan", "nan"], ["inf", "-inf", "nan"]] * 4
    assert ranks(too_large, 2, backend) == [expected] * 2


def test_sums_are_the_same_on_all_ranks_in_the_order_of_the_ranks():
    values = [np.random.default_rng(r).standard_normal(100).astype(np.float32) for r in range(4)]
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    assert ranks(to_the_bit, 4, dist.ReduceOp.SUM) == [expected.tolist()] * 4


def coalesced():
    dist.init_process_group("nccl")
    tensors = [torch.full((n,), float(n), device="cuda") for n in (1, 2, 3)]
    with pytest.warns(FutureWarning, match="all_reduce_coalesced"):
        future = dist.all_reduce_coalesced(tensors, async_op=True)
    future.wait()
    return [tensor.tolist() for tensor in tensors]


def test_several_tensors_at_once():
    assert ranks(coalesced, 2) == [[[2.0], [4.0] * 2, [6.0] * 3]] * 2


def objects(backend):
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * 10**rank}
    all_of_them = [None] * size
    dist.all_gather_object(all_of_them, mine)
    assert [o["rank"] for o in all_of_them] == list(range(size)) and all_of_them[rank] == mine
    gathered = [None] * size if rank == 1 else None
    dist.gather_object(mine, gathered, dst=1)
    assert rank != 1 or gathered == all_of_them
    sent = [rank, {"of": rank}, None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(sent, src=0)
    assert sent == [0, {"of": 0}, None]
    output = [None]
    dist.scatter_object_list(output, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert output == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["a", [1, 2]], 1)
    elif rank == 1:
        received = [None, None]
        assert dist.recv_object_list(received, 0) == 0
        assert received == ["a", [1, 2]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects(backend):
    ranks(objects, 3, backend)


def from_anyone():
    """Rank 0 receives from whoever sends; the others send with tags, the later tag first."""
    dist.init_process_group("gloo")
    rank, t = dist.get_rank(), torch.zeros(2)
    if rank:
        works = [dist.isend(torch.full((2,), float(10 * tag + rank)), 0, tag=tag) for tag in (2, 1)]
        return [work.wait() for work in works]
    found = {}
    for tag in (1, 2):
        for _ in range(2):
            origin = dist.recv(t, tag=tag)
            found[tag, origin] = t.tolist()
    return found


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_messages_from_anyone_meet_by_their_tags(order):
    found, *sent = ranks(from_anyone, 3, order=order)
    assert found == {(tag, rank): [10.0 * tag + rank] * 2 for tag in (1, 2) for rank in (1, 2)}
    assert sent == [[True, True]] * 2


def from_anyone_on_gpus():
    dist.init_process_group("nccl")
    with pytest.raises(RuntimeError, match="does not support recv from any source"):
        dist.recv(torch.zeros(2, device="cuda"))


def test_nccl_knows_no_receipt_from_anyone():
    ranks(from_anyone_on_gpus, 2)
