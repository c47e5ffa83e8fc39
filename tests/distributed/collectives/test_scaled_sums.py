"""Sums of what each rank multiplies by its own factor first (PREMUL_SUM), on virtual GPUs, beside NumPy."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from rank_kit import run_ranks

import flambeau
from flambeau.testing.ranks import ranks

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
FACTORS = [0.3, -1.5, 1 / 3]


def numbers(rank, kind, count=6):
    return (np.arange(count) * 0.7 - rank).astype(KINDS[kind])


def wanted(kind, size, count=6):
    """Each rounds its product, and each sum, in the order of the ranks."""
    total = None
    for rank in range(size):
        part = numbers(rank, kind, count) * np.asarray(FACTORS[rank]).astype(KINDS[kind])
        total = part if total is None else total + part
    return total.astype(np.float64)


def every_call(kind):
    d = flambeau.distributed
    rank, size = d.get_rank(), d.get_world_size()
    op = d._make_nccl_premul_sum(FACTORS[rank])

    def fresh():
        return flambeau.tensor(
            numbers(rank, kind).astype(np.float64), device="cuda", dtype=getattr(flambeau, kind)
        )

    found = {}
    t = fresh()
    d.all_reduce(t, op)
    found["all_reduce"] = t
    t = fresh()
    work = d.all_reduce(t, op, async_op=True)
    work.wait()
    found["async"] = t
    t = fresh()
    d.all_reduce(
        t, d._make_nccl_premul_sum(flambeau.tensor([FACTORS[rank]], device="cuda", dtype=flambeau.float64))
    )
    found["tensor"] = t
    t = fresh()
    d.reduce(t, 0, op)
    found["reduce"] = t if rank == 0 else None
    t = fresh()[: 6 // size].clone()
    d.reduce_scatter_single(t, fresh(), op)
    found["reduce_scatter_single"] = t
    t = t.clone()
    d.reduce_scatter(t, list(fresh().chunk(size)), op)
    found["reduce_scatter"] = t
    return {name: None if t is None else t.double().tolist() for name, t in found.items()}


def body(kind):
    flambeau.distributed.init_process_group("nccl")
    return every_call(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_collective(kind, size):
    want = wanted(kind, size)
    for rank, found in enumerate(ranks(body, size, kind, races="error")):
        mine = want[rank * (6 // size) :][: 6 // size].tolist()
        whole = dict.fromkeys(("all_reduce", "async", "tensor"), want.tolist())
        root = {"reduce": want.tolist() if rank == 0 else None}
        assert found == {**whole, **root, "reduce_scatter_single": mine, "reduce_scatter": mine}


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import flambeau as torch, flambeau.distributed as d
from test_scaled_sums import every_call, wanted
d.init_process_group("nccl")
torch.cuda.set_device(d.get_rank())
assert every_call("float16")["all_reduce"] == wanted("float16", 2).tolist()
print("well")
"""


def test_between_processes():
    folders = os.pathsep.join(str(folder) for folder in Path(__file__).parents[:2])
    said = run_ranks(2, "-c", PROGRAM, folders, FLAMBEAU_VIRTUAL_DEVICES="2")
    assert [one.out for one in said] == ["well\n"] * 2, said


def refused():
    d = flambeau.distributed
    d.init_process_group("nccl")
    op = d._make_nccl_premul_sum(2.0)
    for kind in (flambeau.int32, flambeau.bool):
        with pytest.raises(RuntimeError, match="PreMulSum Data type must be half, float, bfloat16 or double"):
            d.all_reduce(flambeau.ones(2, device="cuda", dtype=kind), op)
    t = flambeau.ones(2, device="cuda")
    if d.get_rank():
        d.all_reduce(t)
    else:
        d.all_reduce(t, op)


def test_what_is_no_number_and_who_does_not_scale():
    with pytest.raises(Exception, match=r"(?s)op sum of 2 times each.*op sum\b"):
        ranks(refused, 2)
