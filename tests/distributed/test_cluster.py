"""Clusters by simulation: costs by hand, and one rank with mirrors against all ranks one by one."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
from flambeau import distributed as dist
from flambeau import nn
from flambeau.driver.virtual.cluster_cost import cluster_ns
from flambeau.driver.virtual.cost import collective_ns, wire
from flambeau.driver.virtual.profile import load_profile
from flambeau.nn.parallel import DistributedDataParallel
from flambeau.testing.cluster import cluster
from flambeau.testing.ranks import ranks

MIB = 1 << 20
DGX = load_profile("dgx-h200")


def with_(tmp_path: Path, algorithm: str) -> Any:
    path = tmp_path / "p.toml"
    path.write_text(
        f'base = "h200"\n[cluster]\nnode = 8\nrail = 46e9\nalgorithm = "{algorithm}"\nbase_ns = 8400\nhop_ns = 4000\n'
        "rail_hop_ns = 14000\ntree_share = 0.92\n"
    )
    return load_profile(str(path))


def test_costs_are_those_of_the_formulas(tmp_path: Path) -> None:
    """Two nodes of eight, 100 MiB: by hand. A node sends 8 x 46 GB/s into the network, more than 360 inside."""
    nbytes, places = 100 * MIB, range(16)
    ring = 8400 + 28 * 4000 + 2 * 14000 + round(2 * 15 * nbytes // 16 / 360e9 * 1e9)
    tree = 8400 + 2 * (7 * 4000 + 1 * 14000) + round(2 * nbytes / 0.92 / 360e9 * 1e9)
    inside, across = (
        14 * 4000 + round(2 * 7 * nbytes // 8 / 360e9 * 1e9),
        round(2 * nbytes // 8 // 2 / 46e9 * 1e9),
    )
    for algorithm, wanted in (
        ("ring", ring),
        ("tree", tree),
        ("hierarchical", 8400 + inside + 2 * 14000 + across),
    ):
        assert sum(cluster_ns("all_reduce", nbytes, places, with_(tmp_path, algorithm))) == pytest.approx(
            wanted, rel=1e-6
        )
    assert sum(cluster_ns("all_reduce", nbytes, places, DGX)) == pytest.approx(min(ring, tree), rel=1e-6)
    gathered = 8400 + 14 * 4000 + 14000 + round(15 * nbytes / 360e9 * 1e9)
    assert sum(cluster_ns("all_gather", nbytes, places, DGX)) == pytest.approx(gathered, rel=1e-6)
    assert sum(cluster_ns("broadcast", nbytes, places, DGX)) < gathered
    assert cluster_ns("send/recv", 46_000, (0, 8), DGX) == (22400, 1000)


@pytest.mark.parametrize(("size", "nbytes", "wanted"), [
    (2, 1024, 6_600 + 2 * 600 + 1024 / 141e9 * 1e9),  # protocol LL: short steps, at most 141 GB/s
    (4, 1024, 6_600 + 6 * 600 + 1.5 * 1024 / 141e9 * 1e9),
    (4, 16 * MIB, 8_400 + 6 * 3_400 + 1.5 * 16 * MIB / 360e9 * 1e9),  # Simple: all of the ring's bandwidth
    (8, 4 * MIB, 14_000 + 14 * 1_900 + 1.75 * 4 * MIB / (0.92 * 360e9) * 1e9),  # LL128 between them
])  # fmt: skip
def test_a_ring_takes_the_protocol_that_nccl_takes(size: int, nbytes: int, wanted: float) -> None:
    """Figures of nccl/src/graph/tuning.cc, by hand."""
    assert sum(collective_ns("all_reduce", nbytes, size, wire(DGX, True))) == pytest.approx(wanted, rel=1e-3)


def test_through_the_host_there_is_no_ll128() -> None:
    """NCCL has it over NVLink alone."""
    slow = load_profile("rtx4090")
    assert len(wire(DGX, True).protocols) == 3 and len(wire(slow, False).protocols) == 2
    simple = 8_400 + 2 * 5_700 + 64 * MIB / slow.links.pcie * 1e9
    assert sum(collective_ns("all_reduce", 64 * MIB, 2, wire(slow, False))) == pytest.approx(simple, rel=1e-3)


MEASURED = {  # us of all_reduce on H200s, NCCL 2.28.9: bench/results/h200_simulated.json
    2: {"1 KiB": 20.8, "64 KiB": 20.7, "1 MiB": 22.1, "16 MiB": 76.2, "256 MiB": 910, "1 GiB": 3290},
    4: {"1 KiB": 20.9, "64 KiB": 20.4, "1 MiB": 21.2, "16 MiB": 96.3, "256 MiB": 1192, "1 GiB": 4541},
}


@pytest.mark.parametrize("gpus", [2, 4])
def test_simulated_times_are_near_those_of_real_gpus(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench/distributed.py --driver virtual` beside the same program on H200s."""
    bench = bench_of("distributed", monkeypatch)
    args = argparse.Namespace(profile="dgx-h200", only=["all_reduce", "mlp"], largest=1 << 30)
    found = bench.simulated(gpus, args)
    for size, measured in MEASURED[gpus].items():
        assert found[f"all_reduce {size}"] == pytest.approx(measured, rel=0.25), size
    assert found["step mlp"] > 0


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send/recv"])
def test_inside_of_a_node_the_network_costs_nothing(kind: str) -> None:
    size = 2 if kind == "send/recv" else 8
    wanted = collective_ns(kind, MIB, size, wire(DGX, True))
    assert cluster_ns(kind, MIB, range(8, 8 + size), DGX) == wanted
    assert sum(cluster_ns(kind, MIB, range(4, 4 + 8), DGX)) > sum(wanted)


@pytest.mark.parametrize("algorithm", ["nccl", "ring", "tree", "hierarchical"])
def test_more_bytes_and_more_nodes_never_cost_less(tmp_path: Path, algorithm: str) -> None:
    profile = with_(tmp_path, algorithm)
    sizes = [16, 64, 512, 4096]
    for nbytes in (8, MIB, 100 * MIB):
        times = [sum(cluster_ns("all_reduce", nbytes, range(n), profile)) for n in sizes]
        assert times == sorted(times)
    for n in sizes:
        times = [
            sum(cluster_ns("all_reduce", nbytes, range(n), profile)) for nbytes in (0, 8, MIB, 100 * MIB)
        ]
        assert times == sorted(times)


def bench_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program of bench/, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"bench_{name}", Path(__file__).parents[2] / "bench" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, bench)
    spec.loader.exec_module(bench)
    return bench


def step_ns(steps: int = 3, backend: str = "cpu:gloo,cuda:nccl", **options: Any) -> int:
    """Simulated ns of the last step of a network of 2 MiB a layer."""
    dist.init_process_group(backend)
    with torch.device(f"cuda:{torch.cuda.current_device()}"):
        net = nn.Sequential(*[nn.Linear(724, 724) for _ in range(8)])
        x = torch.zeros(256, 724)
    made = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()], bucket_cap_mb=4, **options)
    for _ in range(steps):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        made(x).sum().backward()
        end.record()
        torch.cuda.synchronize()
        net.zero_grad()
    return round(begin.elapsed_time(end) * 1e6)


@pytest.mark.parametrize("size", [2, 8, 12, 16])
def test_one_rank_with_mirrors_takes_what_all_ranks_take(size: int) -> None:
    """The assumption itself: every rank is simulated, on GPUs of its own, in one node or two."""
    each = ranks(step_ns, size, profile="dgx-h200", data=False)
    with cluster(size):
        alone = step_ns()
    assert each == [alone] * size


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=str)
def test_programs_that_know_nccl_alone_are_simulated_too(options: dict[str, Any]) -> None:
    """What ranks compare before they begin cannot be read there: all say the same. It takes the GPUs' time."""
    with cluster(64):
        both = step_ns(**options)
    with cluster(64):
        alone = step_ns(backend="nccl", **options)
    assert alone == both if not options else both < alone < 2 * both


def test_a_larger_cluster_takes_longer_and_a_hidden_sum_costs_nothing() -> None:
    times = []
    for size in (8, 64, 4096):
        with cluster(size):
            times.append(step_ns())
    assert times == sorted(times) and times[0] < times[-1]


def test_numbers_of_the_cpu_are_those_of_equal_ranks() -> None:
    with cluster(512):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (0, 512)
        t = torch.arange(3.0)
        dist.all_reduce(t)
        assert t.tolist() == [0.0, 512.0, 1024.0]
        parts = [torch.zeros(1) for _ in range(512)]
        dist.all_gather(parts, torch.ones(1))
        assert torch.stack(parts).sum() == 512
        dist.barrier()


def test_what_differs_between_ranks_is_refused() -> None:
    with cluster(16):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        with pytest.raises(RuntimeError, match="all ranks do the same"):
            dist.send(torch.ones(1), 1)
        x = torch.ones(16, device="cuda")
        ring = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, torch.empty_like(x), 15)]
        parts = [torch.empty_like(x) for _ in range(16)]
        for refused in (
            lambda: dist.all_to_all_single(torch.empty_like(x), x),
            lambda: dist.gather(x, parts),
            lambda: dist.batch_isend_irecv(ring),
        ):
            with pytest.raises(torch.NotSupportedError, match="all ranks do the same"):
                refused()
            torch.cuda.synchronize()  # nothing of it is left, which would wait for ever
            dist.barrier()
        half = dist.new_group(list(range(8)))
        with pytest.raises(
            torch.NotSupportedError, match="a simulated cluster of 16 GPUs has collectives of all of them"
        ):
            dist.all_reduce(torch.ones(1, device="cuda"), group=half)
        t = torch.ones(4, device="cuda")
        dist.all_reduce(t)
        with pytest.raises(torch.NotSupportedError, match="no data"):
            t.tolist()
    assert not dist.is_initialized()
    with pytest.raises(torch.NotSupportedError, match="a profile with a cluster"), cluster(8, profile="h200"):
        pass
    with pytest.raises(ValueError, match="at least one rank"), cluster(0):
        pass


def test_profiles_may_stand_on_others_and_broken_ones_say_why(tmp_path: Path) -> None:
    assert DGX.memory == load_profile("h200").memory and load_profile("h200").cluster is None
    path = tmp_path / "p.toml"
    for text, why in (
        ('base = "h300"', "'base' must be the name of a profile without one, not 'h300'"),
        ('base = "dgx-h200"', "'base' must be the name of a profile without one"),
        ('base = "h200"\n[cluster]\nnode = 8', "the key 'cluster.rail' is missing"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            load_profile(str(path))
    with pytest.raises(
        ValueError, match=r"'cluster.algorithm' must be one of nccl, ring, tree, hierarchical, not 'star'"
    ):
        with_(tmp_path, "star")
    machine = torch.virtual(10, profile="dgx-h200")
    with machine:
        assert torch.cuda.can_device_access_peer(0, 7) and not torch.cuda.can_device_access_peer(0, 8)


def test_the_table_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of("cluster", monkeypatch)
    monkeypatch.setattr(
        bench, "LAYERS", 1
    )  # with the whole vocabulary: small steps are the host's, which hide all
    row = bench.simulated(64, "dgx-h200", 1, {})
    assert row.nbytes == 4 * sum(p.numel() for p in bench.GPT().parameters())
    assert 0 < row.exposed < row.alone and 0 < row.bus < 360
    assert bench.table([row], 1).count("\n") == 2
