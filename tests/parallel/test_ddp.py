"""DistributedDataParallel on ranks that are threads: the same parameters everywhere, and those of one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau import distributed as dist
from flambeau import nn
from flambeau.distributed.backends.nccl_backend import StreamWork
from flambeau.distributed.ddp.reducer import Reducer
from flambeau.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  as PyTorch's pages write it
from flambeau.runtime import system
from flambeau.testing.explore import explore
from flambeau.testing.ranks import ranks

OPTIONS = [
    {},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.001},
    {"bucket_cap_mb_list": [0.0005, 0.002]},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    {"find_unused_parameters": True, "skip_all_reduce_unused_params": True, "bucket_cap_mb": 0.001},
]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing is unused where unused parameters are sought: the warning is of no use here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        yield


def make(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(6, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)
    )
    return net.double()


def batches(count: int, size: int) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(9)
    return [
        (
            torch.randn(size, 6, dtype=torch.float64, generator=generator),
            torch.randn(size, 3, dtype=torch.float64, generator=generator),
        )
        for _ in range(count)
    ]


def start(backend: str = "nccl") -> tuple[int, int, Any]:
    """(rank, size, device)."""
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, size, f"cuda:{rank}" if "nccl" in backend else "cpu"


def arrays(net: nn.Module) -> list[np.ndarray[Any, Any]]:
    return [p.detach().cpu().numpy() for p in net.parameters()]


def train(net: Any, device: Any, data: list[tuple[Any, Any]], part: slice = slice(None)) -> list[Any]:
    """Parameters after a step with this part of each batch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for x, y in data:
        loss = (net(x[part].to(device)) - y[part].to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return arrays(net)


def trained(steps: int, options: dict[str, Any], backend: str = "nccl") -> list[Any]:
    rank, size, device = start(backend)
    net = DDP(make(rank).to(device), device_ids=[rank] if backend == "nccl" else None, **options)
    return train(net, device, batches(steps, 12), slice(rank, None, size))


def close(one: list[Any], other: list[Any], rtol: float = 1e-9) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# -- the promises -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_after_200_steps_ranks_agree_to_the_bit_and_with_one_process_to_rounding(size: int) -> None:
    """L04: PyTorch promises both: gradients are the mean over the ranks, and every rank steps alike."""
    alone = train(make(0), "cpu", batches(200, 12))
    got = ranks(trained, size, 200, {})
    assert all(same(each, got[0]) for each in got)
    close(got[0], alone, 1e-7)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_change_no_gradient(options: dict[str, Any], backend: str) -> None:
    alone = train(make(0), "cpu", batches(5, 12))
    got = ranks(trained, 3, 5, options, backend, **({"races": "error"} if backend == "nccl" else {}))
    assert all(same(each, got[0]) for each in got)
    close(got[0], alone)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_training_run_is_certified_for_every_schedule(options: dict[str, Any]) -> None:
    """Not only is there no race: nothing is read that was never written, neither a bucket nor what states come in."""
    with torch.virtual(devices=2, races="warn"):
        ranks(trained, 2, 3, options)
        certificate = system.accelerator().detector.certificate()
    assert certificate.race_free, certificate


@pytest.mark.parametrize("schedule", ["random:1", "random:2", "adversarial:3", "pct:4:3", "random:5"])
def test_no_schedule_and_no_order_of_ranks_changes_a_bit(schedule: str) -> None:
    options = {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": schedule == "random:5"}
    wanted = ranks(trained, 3, 3, options)
    for order in (None, 7):
        got = ranks(trained, 3, 3, options, schedule=schedule, races="error", poison=True, order=order)
        assert all(same(each, wanted[0]) for each in got)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
def test_without_the_wait_the_detector_names_the_race(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: nobody waits for the sums. Were the wait not needed, this would find nothing."""
    ranks(trained, 2, 2, options, races="error")
    monkeypatch.setattr(StreamWork, "wait", lambda self, timeout=None: True)
    with pytest.raises(torch.RaceError, match="all_reduce"):
        ranks(trained, 2, 2, options, races="error")


def test_exploring_finds_no_order_with_another_outcome() -> None:
    """Memory that reductions use is asked after when it comes back, so each order is a run of its own."""
    found = explore(lambda: ranks(trained, 2, 2, {"bucket_cap_mb": 0.001}), 6)
    assert found.schedules == 6 and not found.failures and not found.races


def sided(options: dict[str, Any]) -> list[Any]:
    """Half of the network runs on another stream: its gradients come to rest there."""
    rank, size, device = start()
    side = torch.cuda.Stream()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = make(0), make(1)

        def forward(self, x: Any) -> Any:
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            x.record_stream(side)
            with torch.cuda.stream(side):
                b = self.b(x)
            a = self.a(x)
            here.wait_stream(side)
            b.record_stream(here)
            return a + b

    return train(DDP(Two().to(device), **options), device, batches(3, 12), slice(rank, None, size))


@pytest.mark.parametrize(
    "options", [{}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}], ids=str
)
def test_gradients_of_several_streams_are_waited_for(options: dict[str, Any]) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = make(0), make(1)

        def forward(self, x: Any) -> Any:
            return self.a(x) + self.b(x)

    alone = train(Both(), "cpu", batches(3, 12))
    for schedule in ("earliest", "adversarial:1", "random:2"):
        close(ranks(sided, 2, options, races="error", schedule=schedule, poison=True)[0], alone)


def overlapped(options: dict[str, Any]) -> tuple[int, int]:
    """Simulated ns of a step, and of one that reduces nothing."""
    _, _, device = start("cpu:gloo,cuda:nccl")  # what ranks agree on goes by the CPU: no GPU has data here
    with torch.device(device):
        net = DDP(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]), **options)
        x = torch.zeros(512, 2048)
    times = []
    for reduces in (True, True, True, False):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        net.require_backward_grad_sync = reduces
        begin.record()
        net(x).sum().backward()
        end.record()
        end.synchronize()
        times.append(round(begin.elapsed_time(end) * 1e6))
    return times[2], times[3]


def test_reductions_overlap_with_backward() -> None:
    """Twelve layers of 16 MiB: with one bucket the sum comes after backward, with buckets of 25 MB beside it."""
    (one, without), *_ = ranks(overlapped, 2, {"bucket_cap_mb": 1000}, profile="a100-40g", data=False)
    (several, alone), *_ = ranks(overlapped, 2, {}, profile="a100-40g", data=False)
    assert alone == without
    assert several - without < 0.6 * (one - without)


# -- what it is made of -----------------------------------------------------------------------------------------


def differing(changed: str) -> None:
    rank, _, device = start()
    net = make(0)
    if rank and changed == "count":
        net[0].bias = None
    if rank and changed == "shape":
        net[0].bias = nn.Parameter(torch.ones(25, dtype=torch.float64))
    if rank and changed == "strides":
        net[0].weight = nn.Parameter(net[0].weight.detach().t().contiguous().t())
    DDP(net.to(device))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ("count", r"DDP expects same model across all ranks, but Rank \d has \d+ params, while rank \d has inconsistent \d+ params."),
        ("shape", r"\[1\]: params\[1\] in this process with sizes \[25\] appears not to match sizes of the same param in process 0."),
        ("strides", r"params\[0\] in this process with sizes \[24, 6\] appears not to match strides of the same param in process 0."),
    ],
)  # fmt: skip
def test_models_that_differ_are_refused_in_pytorchs_words(changed: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        ranks(differing, 2, changed)


def stated() -> Any:
    rank, _, device = start()
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).to(device)
    with torch.no_grad():
        for t in (*net.parameters(), *net.buffers()):
            t.fill_(rank + 5)
    made = DDP(net, device_ids=[rank])
    first = [t.tolist() for t in made.state_dict().values()]
    names = list(made.state_dict())
    for b in net.buffers():
        b.fill_(rank + 1)
    made(torch.ones(4, 3))  # moved to the device
    return names, first, [net[0].num_batches_tracked.item(), made.device_ids, made.output_device]


def test_parameters_and_buffers_are_rank_0s_and_buffers_at_each_forward() -> None:
    got = ranks(stated, 3)
    for rank, (names, first, after) in enumerate(got):
        assert names == [f"module.{n}" for n in ("0.weight", "0.bias", "0.running_mean", "0.running_var",
                                                 "0.num_batches_tracked", "1.weight", "1.bias")]  # fmt: skip
        assert first == [[5.0] * 3] * 4 + [5] + [[[5.0] * 3] * 2, [5.0] * 2]
        assert after == [2, [rank], rank]


@pytest.mark.parametrize("options", [{"forward_sync_buffers": False}, {"broadcast_buffers": False}], ids=str)
def test_buffers_stay_a_ranks_own_if_it_says_so(options: dict[str, bool]) -> None:
    def body() -> Any:
        rank, _, device = start()
        net = nn.BatchNorm1d(2).to(device)
        net.running_mean.fill_(rank)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            made = DDP(net, **options)
        kept = net.running_mean[0].item()
        net.num_batches_tracked.fill_(10 * rank)
        made(torch.ones(2, 2, device=device))
        return kept, net.num_batches_tracked.item()

    synced = "forward_sync_buffers" in options  # when it is made, as PyTorch warns
    assert ranks(body, 2) == [(0.0, 1), (0.0 if synced else 1.0, 11)]


def test_what_is_ignored_is_neither_given_nor_reduced() -> None:
    def body() -> Any:
        rank, _, device = start()
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
        with torch.no_grad():
            net[1].weight.fill_(rank)
        DDP._set_params_and_buffers_to_ignore_for_model(net, ["1.weight"])
        made = DDP(net)
        made(torch.full((1, 2), rank + 1.0, device=device)).sum().backward()
        return (
            net[1].weight[0, 0].item(),
            net[1].weight.grad.tolist(),
            net[1].bias.grad.tolist(),
            net[0].bias.grad.tolist(),
        )

    (first, mine, bias, low), (second, other, bias2, low2) = ranks(body, 2)
    assert (first, second) == (0.0, 1.0) and mine != other and bias == bias2 == [1.0, 1.0] and low == low2


# -- gradients that add up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}], ids=str
)
def test_no_sync_leaves_gradients_alone_until_a_backward_outside(options: dict[str, Any]) -> None:
    data = batches(4, 12)

    def body() -> Any:
        rank, size, device = start()
        net, seen = DDP(make(0).to(device), **options), []
        for step in range(2):
            net.zero_grad(set_to_none=step == 0)
            with net.no_sync():
                for x, _ in data[:3]:
                    net(x[rank::size].to(device)).square().mean().backward()
            seen.append([p.grad.cpu().numpy() for p in net.parameters()])
            net(data[3][0][rank::size].to(device)).square().mean().backward()
            seen.append([p.grad.cpu().numpy() for p in net.parameters()])
        return seen

    one, other = ranks(body, 2, races="error")
    net = make(0)
    for x, _ in data:
        net(x).square().mean().backward()
    wanted = [p.grad.numpy() for p in net.parameters()]
    for inside, outside in ((0, 1), (2, 3)):
        assert not same(one[inside], other[inside])
        assert same(one[outside], other[outside])
        close(one[outside], wanted)


class Chooser(nn.Module):
    """Three branches; a call uses those that it names. A fourth is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 2) for _ in range(4))

    def forward(self, x: Any, which: list[int]) -> Any:
        return [self.branches[i](x) for i in which]


@pytest.mark.parametrize("cap", [25, 1e-5])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_unused_parameters_count_as_zeros_and_those_that_nobody_used_keep_their_gradient(
    view: bool, cap: float, skip: bool
) -> None:
    def body() -> Any:
        rank, _, device = start()
        torch.manual_seed(1)
        net = DDP(Chooser().to(device), find_unused_parameters=True, gradient_as_bucket_view=view, bucket_cap_mb=cap,
                  skip_all_reduce_unused_params=skip)  # fmt: skip
        x, seen = torch.full((2, 3), rank + 1.0, device=device), []
        net.module.branches[2].bias.grad = torch.full((2,), 7.0 + rank, device=device)
        for which in ([0], [0, 1] if rank else [1]):
            net.zero_grad() if which != [0] else None
            out = net(x, which)
            (out[0].sum() + 0 * out[-1].sum()).backward() if which == [0, 1] else sum(
                o.sum() for o in out
            ).backward()
            seen.append([None if p.grad is None else p.grad.tolist() for p in net.parameters()])
        return seen

    one, other = ranks(body, 2, races="error")
    row = [[3.0] * 3] * 2  # the mean of 2 and 4
    kept = (
        [[7.5, 7.5]] * 2 if view and not (skip and cap < 25) else [[7.0, 7.0], [8.0, 8.0]]
    )  # a view of a bucket goes with it
    assert one[0] == [row, [2.0, 2.0], None, None, None, kept[0], None, None]
    assert other[0] == [row, [2.0, 2.0], None, None, None, kept[1], None, None]
    assert one[1] == other[1]
    assert one[1] == [[[2.0] * 3] * 2, [1.0, 1.0], [[1.0] * 3] * 2, [1.0, 1.0], None, None, None, None]


def test_parameters_that_are_frozen_for_a_while_are_reduced_again() -> None:
    """As a GAN's discriminator is while the generator learns from it."""

    def program() -> Any:
        dist.init_process_group("nccl")
        net = torch.nn.Linear(2, 1, bias=False).to(f"cuda:{dist.get_rank()}")
        ddp = DDP(net, device_ids=[dist.get_rank()])
        x = torch.full((1, 2), dist.get_rank() + 1.0, device="cuda", requires_grad=True)
        net.requires_grad_(False)
        net(x).sum().backward()
        net.requires_grad_(True)
        ddp(x).sum().backward()
        return net.weight.grad.tolist()

    assert ranks(program, 2) == [[[1.5, 1.5]]] * 2


def test_outputs_that_the_loss_leaves_out_are_no_error_if_unused_ones_are_sought() -> None:
    def body() -> Any:
        _, _, device = start()
        net = DDP(Chooser().to(device), find_unused_parameters=True)
        for _ in range(2):
            net.zero_grad()
            first, _second = net(torch.ones(2, 3, device=device), [0, 1])
            first.sum().backward()
        return [p.grad is None for p in net.parameters()]

    assert ranks(body, 2, races="error") == [[False, False] + [True] * 6] * 2


def test_a_static_graph_may_visit_parameters_often_and_leave_some_out() -> None:
    from flambeau.utils.checkpoint import checkpoint

    def body(wrapped: bool) -> Any:
        rank, size, device = start() if wrapped else (0, 1, "cpu")
        torch.manual_seed(4)

        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.never = nn.Linear(3, 3), nn.Linear(2, 2)

            def forward(self, x: Any) -> Any:
                x = checkpoint(self.layer, x, use_reentrant=True)
                return checkpoint(self.layer, x.tanh(), use_reentrant=True)

        net = Twice().double().to(device)
        made = DDP(net, static_graph=True) if wrapped else net
        return train(
            made, device, [(x[:, :3].requires_grad_(), y) for x, y in batches(5, 12)], slice(rank, None, size)
        )

    got = ranks(body, 2, True, races="error")
    assert same(*got)
    close(got[0], body(False))


def test_delayed_parameters_are_reduced_when_another_gradient_comes() -> None:
    def body() -> Any:
        rank, _, device = start("gloo")
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
        with torch.no_grad():
            net[1].weight.fill_(1.0 + rank)
        delayed = [(f"1.{n}", p) for n, p in net[1].named_parameters()]
        made = DDP(net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=net[0].weight)
        given = net[1].weight.tolist()
        seen = []
        for _ in range(2):
            made.zero_grad()
            made(torch.full((1, 2), 1.0 + rank)).sum().backward()
            seen.append([p.grad.tolist() for p in net.parameters()])
        return given, seen

    (given, one), (given2, other) = ranks(body, 2)
    assert given == given2 == [[1.0, 1.0]] * 2 and one == other and one[0] == one[1]


def test_each_rank_samples_its_own_part_of_the_data() -> None:
    def body() -> list[int]:
        start("gloo")
        sampler = torch.utils.data.DistributedSampler(range(10), shuffle=False)
        return list(sampler)

    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        torch.utils.data.DistributedSampler(range(10))
    assert ranks(body, 3) == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}], ids=str)
def test_a_module_may_lie_on_several_devices_of_each_rank(options: dict[str, Any]) -> None:
    class Halves(nn.Module):
        def __init__(self, *devices: Any) -> None:
            super().__init__()
            self.devices = devices
            self.a, self.b = make(0)[:3].to(devices[0]), make(0)[3:].to(devices[1])

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x.to(self.devices[0])).to(self.devices[1]))

    def body() -> Any:
        rank, size, _ = start()
        made = DDP(Halves(f"cuda:{2 * rank}", f"cuda:{2 * rank + 1}"), **options)
        assert made.is_multi_device_module and made.device_ids is None
        return train(made, f"cuda:{2 * rank + 1}", batches(3, 12), slice(rank, None, size))

    with torch.virtual(4, races="error"):
        torch.cuda.init()
        one, other = ranks(body, 2)
    assert same(one, other)
    close(one, train(make(0), "cpu", batches(3, 12)))


def test_autocast_and_a_loss_scale_go_with_it() -> None:
    def body() -> Any:
        rank, size, device = start()
        net = DDP(make(rank).float().to(device))
        optimizer, scaler = (
            torch.optim.SGD(net.parameters(), lr=0.1),
            torch.amp.GradScaler("cuda", init_scale=2.0**16),
        )
        losses = []
        for x, y in batches(8, 24):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(
                    net(x[rank::size].float().to(device)), y[rank::size].float().to(device)
                )
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return arrays(net), scaler.get_scale(), all(np.isfinite(losses))

    one, other = ranks(body, 2, races="error")
    assert same(one[0], other[0]) and one[1:] == other[1:] and one[2]


# -- what goes wrong on one rank --------------------------------------------------------------------------------


def test_a_rank_that_runs_out_of_memory_ends_all_with_its_error() -> None:
    def body() -> None:
        rank, _, device = start()
        net = DDP(make(0).to(device))
        x = torch.ones(2, 6, dtype=torch.float64, device=device)
        net(x).sum().backward()
        if rank == 1:
            torch.empty(1 << 40, device=device)
        net(x).sum().backward()
        torch.cuda.synchronize()

    with pytest.raises(torch.OutOfMemoryError) as raised:
        ranks(body, 3)
    assert "(rank 1 of 3)" in raised.value.__notes__


def test_a_rank_that_leaves_early_is_named_with_who_waits_for_it() -> None:
    def body() -> None:
        rank, _, device = start()
        net = DDP(make(0).to(device))
        for _ in range(1 if rank == 2 else 2):
            net(torch.ones(2, 6, dtype=torch.float64, device=device)).sum().backward()
            torch.cuda.synchronize()

    with pytest.raises(
        RuntimeError,
        match=r"(?s)deadlock.*waits for rank 2 \(cuda:2\), which has not arrived.*rank 2 has ended",
    ):
        ranks(body, 3)


def test_models_that_differ_in_what_they_use_are_told_apart() -> None:
    """Rank 1 leaves a layer out: its next forward says what PyTorch says."""

    def body() -> None:
        rank, _, device = start()
        net = DDP(Chooser().to(device))
        for _ in range(2):
            sum(
                o.sum() for o in net(torch.ones(1, 3, device=device), [0, 1, 2] if rank else [0, 1, 2, 3])
            ).backward()

    with pytest.raises(RuntimeError, match=r"did not receive grad for rank 1: 6 7"):
        ranks(body, 2)


# -- the end of a reducer ---------------------------------------------------------------------------------------


def test_parameters_outlive_the_wrapper_and_buckets_go_with_it() -> None:
    def body() -> Any:
        import gc

        _, _, device = start()
        net = make(0).to(device)
        before = torch.cuda.memory_allocated()
        made = DDP(net)
        made(torch.ones(2, 6, dtype=torch.float64, device=device)).sum().backward()
        held = torch.cuda.memory_allocated()
        net.zero_grad()
        del made
        gc.collect()
        net(
            torch.ones(2, 6, dtype=torch.float64, device=device)
        ).sum().backward()  # hooks are gone: nobody is waited for
        net.zero_grad()
        return before, held, torch.cuda.memory_allocated()

    for before, held, after in ranks(body, 2):
        assert held > before and after == before


def test_a_reducer_wants_parameters_of_one_kind_a_bucket() -> None:
    def body() -> None:
        start("gloo")
        group = dist.group.WORLD
        with pytest.raises(RuntimeError, match="Expected at least one parameter"):
            Reducer([], [], [], group)
        wide, narrow = (nn.Parameter(torch.ones(2, dtype=d)) for d in (torch.float64, torch.float32))
        with pytest.raises(RuntimeError, match="All parameters in a bucket must have the same dtype"):
            Reducer([wide, narrow], [[0, 1]], [1], group)
        with pytest.raises(torch.NotSupportedError, match="sparse"):
            Reducer([wide], [[0]], [1], group, [True])

    ranks(body, 1)
