"""One rank of a program of collectives and messages that a seed draws; for Flambeau's and PyTorch's gloo alike.

`python drawn_collectives.py LIBRARY SEED COUNT` prints a digest of what each call left, by line.
"""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from importlib import import_module

KINDS = ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
SIZES = [0, 1, 2, 3, 7, 64, 1001, 8191, 40_000, 300_007]
MOVES = ["broadcast", "all_gather", "all_gather_single", "gather", "scatter", "all_to_all", "all_to_all_single", "messages",
         "barrier", "coalesced"]  # fmt: skip
REDUCTIONS = ["all_reduce", "reduce", "reduce_scatter_single"]


class Rank:
    """What one rank does. All ranks draw the same numbers."""

    def __init__(self, library, seed):
        self.torch = import_module(library)
        self.dist = import_module(f"{library}.distributed")
        self.draw = random.Random(seed)
        self.dist.init_process_group("gloo")
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()
        self.groups = [(None, list(range(self.size)))]

    def values(self, rank, count, kind, seed, whole=True):
        """Of a rank: small whole numbers, so that reductions are exact in every order, or others of 2 ranks."""
        torch = self.torch
        numbers = random.Random(f"{seed} {rank}")
        made = [numbers.randrange(3) if whole else numbers.gauss(0, 1) for _ in range(min(count, 257))]
        some = torch.tensor(made, dtype=torch.float64).to(getattr(torch, kind))
        return some.repeat(count // 257 + 1)[:count].clone() if count > 257 else some

    def new_group(self):
        ranks = sorted(self.draw.sample(range(self.size), self.draw.randint(1, self.size)))
        group = self.dist.new_group(ranks)
        self.groups.append((group, ranks))

    def step(self, number):
        draw = self.draw
        name = draw.choice([*MOVES, *REDUCTIONS, *REDUCTIONS])
        kind, count, asynchronous = draw.choice(KINDS), draw.choice(SIZES), draw.random() < 0.5
        group, ranks = draw.choice(self.groups)
        root, op = draw.choice(ranks), draw.choice(["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
        whole = len(ranks) > 2 or draw.random() < 0.5
        if op.startswith("B") and ("float" in kind or kind == "bool"):
            op = "SUM"
        if kind == "bool":
            kind = kind if name in MOVES else "uint8"
        if self.rank not in ranks:
            return None
        me, torch, dist = ranks.index(self.rank), self.torch, self.dist
        mine = self.values(self.rank, count, kind, number, whole)

        def empty():
            return torch.zeros(count, dtype=mine.dtype)

        more = {"group": group, "async_op": asynchronous}
        reduction = {"op": getattr(dist.ReduceOp, op), **more}
        results, work = [mine], None
        if name == "all_reduce":
            work = dist.all_reduce(mine, **reduction)
        elif name == "reduce":
            work = dist.reduce(mine, root, **reduction)
            results = [mine] if self.rank == root else []  # PyTorch leaves other ranks' tensors undefined
        elif name == "reduce_scatter_single":
            wide = self.values(self.rank, count * len(ranks), kind, number, whole)
            results = [empty()]
            work = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(
                results[0], wide, **reduction
            )
        elif name == "broadcast":
            work = dist.broadcast(mine, root, **more)
        elif name == "all_gather":
            results = [empty() for _ in ranks]
            work = dist.all_gather(results, mine, **more)
        elif name == "all_gather_single":
            results = [torch.zeros(count * len(ranks), dtype=mine.dtype)]
            work = dist.all_gather_into_tensor(results[0], mine, **more)
        elif name == "gather":
            results = [empty() for _ in ranks] if self.rank == root else []
            work = dist.gather(mine, results or None, root, **more)
        elif name == "scatter":
            lists = [self.values(r, count, kind, number + 0.5) for r in ranks] if self.rank == root else None
            results = [empty()]
            work = dist.scatter(results[0], lists, root, **more)
        elif name == "all_to_all":
            sizes = [[random.Random(f"{number} {a} {b}").choice([0, 1, count]) for b in ranks] for a in ranks]
            sent = [self.values(self.rank, n, kind, f"{number} {i}") for i, n in enumerate(sizes[me])]
            results = [torch.zeros(row[me], dtype=mine.dtype) for row in sizes]
            work = self.all_to_all(results, sent, sizes, me, **more)
        elif name == "all_to_all_single":
            wide = self.values(self.rank, count * len(ranks), kind, number)
            results = [torch.zeros_like(wide)]
            work = dist.all_to_all_single(results[0], wide, **more)
        elif name == "messages":
            results = self.messages(ranks, me, mine, empty, number)
        elif name == "barrier":
            work = dist.barrier(group=group, async_op=asynchronous)
            results = []
        else:
            results = [mine, self.values(self.rank, 5, kind, number)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is deprecated
                dist.all_reduce_coalesced(results, op=dist.ReduceOp.MAX, group=group)
        if work is not None:
            work.wait()
        return name, kind, count, op, self.digest(results)

    def all_to_all(self, outputs, sent, sizes, me, group, async_op):
        """By `all_to_all_single` with splits: gloo has no `all_to_all` of lists in every release."""
        flat = self.torch.cat(sent)
        whole = self.torch.zeros(sum(row[me] for row in sizes), dtype=flat.dtype)
        splits = [row[me] for row in sizes]
        work = self.dist.all_to_all_single(whole, flat, splits, sizes[me], group=group, async_op=async_op)
        if work is not None:
            work.wait()
        for output, part in zip(outputs, whole.split(splits), strict=True):
            output.copy_(part)

    def messages(self, ranks, me, mine, empty, number):
        """Each to all others, with tags, received in another order than sent."""
        order = random.Random(number)
        others = [rank for rank in ranks if rank != self.rank]
        works = [
            self.dist.isend(mine, to, tag=tag) for to in order.sample(others, len(others)) for tag in (5, 2)
        ]
        found = {(origin, tag): empty() for origin in others for tag in (2, 5)}
        for origin, tag in found:
            self.dist.recv(found[origin, tag], origin, tag=tag)
        for work in works:
            work.wait()
        return [found[key] for key in sorted(found)]

    def digest(self, tensors):
        whole = hashlib.sha1()
        for tensor in tensors:
            exact = tensor.float() if tensor.dtype is self.torch.bfloat16 else tensor
            whole.update(f"{tuple(exact.shape)} {str(exact.dtype).rpartition('.')[2]}".encode())
            whole.update(exact.numpy().tobytes())
        return whole.hexdigest()


def main(library, seed, count):
    rank = Rank(library, int(seed))
    for number in range(int(count)):
        if number % 10 == 5:
            rank.new_group()
        print(number, rank.step(number))
    rank.dist.barrier()
    rank.dist.destroy_process_group()


main(*sys.argv[1:])
