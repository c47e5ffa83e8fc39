"""Communication hooks, uneven inputs, narrow parameters and batch normalization over ranks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from test_ddp import DDP, batches, close, make, same, start, train, trained

import flambeau as torch
from flambeau import distributed as dist
from flambeau import nn
from flambeau.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from flambeau.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
from flambeau.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from flambeau.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from flambeau.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from flambeau.distributed.algorithms.join import Join, Joinable, JoinHook
from flambeau.testing.ranks import ranks

BACKENDS = ["nccl", "gloo"]


def hooked(register: Any, steps: int, backend: str, options: dict[str, Any]) -> list[Any]:
    rank, size, device = start(backend)
    net = DDP(make(rank).to(device), **options)
    register(net)
    return train(net, device, batches(steps, 12), slice(rank, None, size))


def all_reduced(net: Any) -> None:
    net.register_comm_hook(None, hooks.allreduce_hook)


def custom(net: Any) -> None:
    """As PyTorch's page writes it."""

    def encode_and_decode(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensors = [t / dist.get_world_size() for t in (bucket.buffer(),)]
        assert [tuple(g.shape) for g in bucket.gradients()] == [tuple(p.shape) for p in bucket.parameters()]
        fut = dist.all_reduce(tensors[0], async_op=True).get_future()
        return fut.then(lambda done: done.value()[0] * 1.0)

    net.register_comm_hook(state=None, hook=encode_and_decode)


def by_name(net: Any) -> None:
    register_ddp_comm_hook(DDPCommHookType.ALLREDUCE, net)


def built_in(net: Any) -> None:
    net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}], ids=str)
@pytest.mark.parametrize("register", [all_reduced, custom, by_name, built_in])
def test_a_mean_by_a_hook_is_the_mean_without_one(
    register: Any, options: dict[str, Any], backend: str
) -> None:
    races = {"races": "error"} if backend == "nccl" else {}
    plain = ranks(trained, 2, 3, options, backend)
    got = ranks(hooked, 2, register, 3, backend, options, **races)
    assert same(got[0], got[1])
    assert same(got[0], plain[0])  # of two ranks: halves are exact, whether they are taken before or after


NARROW = {
    "fp16": (lambda net: net.register_comm_hook(None, hooks.fp16_compress_hook), np.float16),
    "bf16": (lambda net: net.register_comm_hook(None, hooks.bf16_compress_hook), None),
    "wrapped": (lambda net: net.register_comm_hook(None, hooks.fp16_compress_wrapper(hooks.allreduce_hook)), np.float16),
    "built in": (lambda net: net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS), np.float16),
}  # fmt: skip


def gradients(register: Any, backend: str, view: bool) -> tuple[list[Any], list[Any]]:
    """This rank's own gradients, and what DistributedDataParallel makes of them."""
    rank, size, device = start(backend)
    x, y = (t[rank::size].to(device) for t in batches(1, 12)[0])
    alone = make(0).to(device)
    (alone(x) - y).square().mean().backward()
    net = DDP(make(0).to(device), gradient_as_bucket_view=view)
    register(net)
    (net(x) - y).square().mean().backward()
    return [p.grad.cpu().numpy() for p in alone.parameters()], [
        p.grad.cpu().numpy() for p in net.parameters()
    ]


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NARROW)
def test_narrow_hooks_round_and_do_nothing_else(name: str, backend: str, view: bool) -> None:
    register, kind = NARROW[name]
    (mine, got), (other, again) = ranks(gradients, 2, register, backend, view)
    assert same(got, again)
    for a, b, mean in zip(mine, other, got, strict=True):
        if kind is None:
            a, b = (torch.from_numpy(t).to(torch.bfloat16) / 2 for t in (a, b))
            wanted = (a + b).to(torch.float64).numpy()
        else:
            wanted = ((a.astype(kind) / kind(2)) + (b.astype(kind) / kind(2))).astype(np.float64)
        assert np.array_equal(mean, wanted)


def test_without_communication_ranks_drift_apart_and_with_it_they_do_not() -> None:
    one, other = ranks(hooked, 2, lambda net: net.register_comm_hook(None, noop_hook), 2, "nccl", {})
    assert not same(one, other)

    def local(net: Any) -> None:
        state = PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=1)
        net.register_comm_hook(state, post_localSGD_hook)

    assert same(*ranks(hooked, 2, local, 1, "gloo", {}))
    assert not same(*ranks(hooked, 2, local, 2, "gloo", {}))


# -- PowerSGD -----------------------------------------------------------------------------------------------------


def squeezed(state_options: dict[str, Any], batched: bool, steps: int, backend: str) -> list[Any]:
    """Of each step: this rank's gradient, and the average of the products."""
    rank, _, device = start(backend)
    torch.manual_seed(0)
    net = DDP(nn.Linear(24, 20, bias=not batched).double().to(device))
    state = power.PowerSGDState(None, start_powerSGD_iter=2, **state_options)
    net.register_comm_hook(state, power.batched_powerSGD_hook if batched else power.powerSGD_hook)
    seen = []
    for step in range(steps):
        x = torch.from_numpy(np.random.default_rng((rank, step)).standard_normal((6, 24))).to(device)
        net.zero_grad()
        (net(x).square()).mean().backward()
        own = copy.deepcopy(net.module).to(device)
        own.zero_grad()
        own(x).square().mean().backward()
        seen.append([[p.grad.cpu().numpy() for p in m.parameters()] for m in (own, net)])
    return seen


def reference(steps: list[list[Any]], rank: int, feedback: bool, warm: bool, side: int = 0) -> list[Any]:
    """Vogels, Karimireddy, Jaggi, algorithm 1 and 2, with NumPy: the averages, step by step."""
    rng, q, errors, outputs = np.random.RandomState(0), None, None, []
    for step, grads in enumerate(steps):
        mats = [_square(g[0], side) for g in grads]
        if step < 2:
            outputs.append(np.mean([g[0] for g in grads], 0))
            continue
        errors = errors or [0.0] * len(mats)
        wanted = [m + e for m, e in zip(mats, errors, strict=True)]
        if q is None or not warm:
            generator = torch.Generator().manual_seed(int(rng.randint(1_000_000_000)))
            q = torch.randn(mats[0].shape[1], rank, dtype=torch.float64, generator=generator).numpy()
        q = _orthogonal(q)
        p = _orthogonal(np.sum([w @ q for w in wanted], 0))
        q = np.mean([w.T @ p for w in wanted], 0)
        product = p @ q.T
        if feedback:
            errors = [w - product for w in wanted]
        size = grads[0][0].size
        outputs.append(product.ravel()[:size].reshape(grads[0][0].shape))
    return outputs


def _square(m: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    if not side:
        return m
    return np.pad(m.ravel(), (0, side * side - m.size)).reshape(side, side)


def _orthogonal(m: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found, triangle = np.linalg.qr(m)
    return found * np.sign(np.diag(triangle)) if m.shape[1] <= 2 else found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rank", "feedback", "warm", "batched"),
    [(1, True, True, False), (2, True, True, False), (3, False, True, False), (1, True, False, False), (1, True, True, True)],
)  # fmt: skip
def test_power_sgd_is_the_papers(rank: int, feedback: bool, warm: bool, batched: bool, backend: str) -> None:
    options = {"matrix_approximation_rank": rank, "use_error_feedback": feedback, "warm_start": warm}
    races = {"races": "error"} if backend == "nccl" else {}
    one, other = ranks(squeezed, 2, options, batched, 5, backend, **races)
    wanted = reference(
        [[a[0], b[0]] for a, b in zip(one, other, strict=True)], rank, feedback, warm, 22 if batched else 0
    )
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        assert same(a[1], b[1])
        np.testing.assert_allclose(a[1][0], wanted[step], rtol=1e-8, atol=1e-10)
        if not batched:  # vectors go as they are
            np.testing.assert_allclose(a[1][1], (a[0][1] + b[0][1]) / 2, rtol=1e-10)


def test_power_sgd_takes_matrices_of_one_shape_together_and_says_what_it_saved() -> None:
    def body(together: bool) -> Any:
        rank, size, device = start()
        net = DDP(nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)]).double().to(device))
        state = power.PowerSGDState(None, 1, 2, batch_tensors_with_same_shape=together)
        net.register_comm_hook(state, power.powerSGD_hook)
        result = train(net, device, [(x.repeat(1, 3)[:, :16], y.repeat(1, 6)[:, :16]) for x, y in batches(4, 12)],
                       slice(rank, None, size))  # fmt: skip
        again = pickle.loads(pickle.dumps(state))
        return result, state.compression_stats(), again.iter

    for together in (False, True):
        (result, stats, iterations), (other, *_) = ranks(body, 2, together)
        assert same(result, other)
        assert stats == (2 * 816 / (2 * (3 * 32 + 48)), 2 * 816, 2 * (3 * 32 + 48)) and iterations == 4


# -- uneven inputs ------------------------------------------------------------------------------------------------


def uneven(initial: bool, options: dict[str, Any], backend: str, syncs: int) -> Any:
    """Rank n has n + 1 batches; each tells the means that it saw."""
    rank, _, device = start(backend)
    net = DDP(nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2)).to(device), **options)
    with torch.no_grad():
        net.module[0].weight.fill_(1.0)
    seen = []
    with net.join(divide_by_initial_world_size=initial):
        for _ in range(rank + syncs):
            net.zero_grad()
            out = net.module[0].weight.sum() * (rank + 1.0)
            net(torch.ones(3, 2, device=device) * torch.arange(3, device=device).view(3, 1)).sum().mul(0).add(
                out
            ).backward()
            seen.append(net.module[0].weight.grad[0, 0].item())
            with torch.no_grad():
                net.module[0].weight -= 0.5
    return seen, net.module[0].weight.tolist(), net.module[1].running_mean.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"bucket_cap_mb": 1e-5}], ids=str)
def test_ranks_that_are_done_answer_the_others(options: dict[str, Any], backend: str) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        for initial, wanted in ((True, [2.0, 5 / 3, 1.0]), (False, [2.0, 2.5, 3.0])):
            got = ranks(uneven, 3, initial, options, backend, 1)
            for rank, (seen, _, _) in enumerate(got):
                assert seen == pytest.approx(wanted[: rank + 1])
            assert got[0][1:] == got[1][1:] == got[2][1:]  # those of the rank that worked longest
            assert got[0][1] == [[1.0 - 0.5 * 3] * 2] * 2


def test_the_first_rank_that_ends_may_end_all() -> None:
    def body() -> Any:
        rank, _, _ = start("gloo")
        net = DDP(nn.Linear(1, 1))
        with pytest.raises(RuntimeError) as raised, net.join(throw_on_early_termination=True):
            for _ in range(rank + 1):
                net(torch.ones(1, 1)).sum().backward()
        return str(raised.value)

    first, second = ranks(body, 2)
    assert first == "Rank 0 exhausted all inputs."
    assert second == "Detected at least one rank that exhausted inputs. Throwing across all ranks."


def test_joinables_of_the_program_are_mirrored_too() -> None:
    class Counter(Joinable):
        def __init__(self) -> None:
            super().__init__()
            self.total = 0.0

        def __call__(self) -> None:
            Join.notify_join_context(self)
            t = torch.ones(1)
            dist.all_reduce(t)
            self.total += t.item()

        def join_hook(self, **kwargs: Any) -> JoinHook:
            counter = self

            class Hook(JoinHook):
                def main_hook(self) -> None:
                    dist.all_reduce(torch.zeros(1))

                def post_hook(self, is_last_joiner: bool) -> None:
                    counter.last = is_last_joiner

            return Hook()

        @property
        def join_device(self) -> Any:
            return torch.device("cpu")

        @property
        def join_process_group(self) -> Any:
            return dist.group.WORLD

    def body() -> Any:
        rank, _, _ = start("gloo")
        counter = Counter()
        with Join([counter]):
            for _ in range(rank + 1):
                counter()
        return counter.total, counter.last

    assert ranks(body, 3) == [(3.0, False), (5.0, False), (6.0, True)]


# -- narrow parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
def test_mixed_precision_computes_narrow_and_keeps_parameters_wide(options: dict[str, Any]) -> None:
    from flambeau.nn.parallel.distributed import _MixedPrecision

    def body() -> Any:
        rank, size, device = start()
        net = make(0).float().to(device)
        kinds = []
        net[0].register_forward_hook(
            lambda m, args, out: kinds.append((args[0].dtype, out.dtype, m.weight.dtype))
        )
        config = _MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
        )
        made = DDP(net, mixed_precision=config, **options)
        result = train(
            made, device, [(x.float(), y.float()) for x, y in batches(3, 12)], slice(rank, None, size)
        )
        state = {name: t.dtype for name, t in made.state_dict().items()}
        grads = {p.grad.dtype for p in made.parameters()}
        with torch.no_grad():
            made(torch.ones(1, 6, device=device))
        return result, kinds, set(state.values()), grads, {p.dtype for p in net.parameters()}

    one, other = ranks(body, 2, races="error")
    assert same(one[0], other[0])
    assert one[1] == [(torch.bfloat16,) * 3] * 4 and one[2:] == ({torch.float32},) * 3
    wide = train(make(0).float(), "cpu", [(x.float(), y.float()) for x, y in batches(3, 12)])
    assert max(abs(a - b).max() for a, b in zip(one[0], wide, strict=True)) < 0.05
    assert not same(one[0], wide)


def np_close(got: Any, wanted: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), rtol=rtol, atol=atol)


# -- batch normalization over ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(4, 4), (2, 5, 3), (3, 0)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_sync_batch_norm_is_batch_norm_of_the_joined_batch(
    sizes: tuple[int, ...], affine: bool, momentum: Any
) -> None:
    torch.manual_seed(2)
    whole = (torch.randn(sum(sizes), 3, 5, dtype=torch.float64) * 3 + 1000).requires_grad_()
    weights = torch.randn(sum(sizes), 3, 5, dtype=torch.float64)
    parts = whole.detach().split(list(sizes))

    def body() -> Any:
        rank, _, device = start()
        net = nn.Sequential(nn.BatchNorm1d(3, affine=affine, momentum=momentum)).double()
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(device)
        x = parts[rank].to(device).requires_grad_()
        for _ in range(2):
            net.zero_grad()
            x.grad = None
            out = net(x)
            (out * weights.split(list(sizes))[rank].to(device)).sum().backward()
        grads = [p.grad.cpu() for p in net.parameters()]
        buffers = [b.cpu() for b in net.buffers()]
        net.eval()
        return out.detach().cpu(), x.grad.cpu(), grads, buffers, net(x).detach().cpu()

    got = ranks(body, len(sizes), races="error")
    net = nn.BatchNorm1d(3, affine=affine, momentum=momentum).double()
    for _ in range(2):
        net.zero_grad()
        whole.grad = None
        out = net(whole)
        (out * weights).sum().backward()
    np_close(torch.cat([g[0] for g in got]), out.detach(), rtol=1e-9, atol=1e-9)
    np_close(torch.cat([g[1] for g in got]), whole.grad, rtol=1e-7, atol=1e-9)
    for i, p in enumerate(net.parameters()):
        np_close(sum(g[2][i] for g in got), p.grad, rtol=1e-7, atol=1e-7)
    for rank in range(len(sizes)):
        for mine, b in zip(got[rank][3], net.buffers(), strict=True):
            np_close(mine, b, rtol=1e-9, atol=1e-9)
    net.eval()
    np_close(torch.cat([g[4] for g in got]), net(whole).detach(), rtol=1e-9, atol=1e-9)


def test_sync_batch_norm_in_a_wrapped_module_trains_as_one_process_does() -> None:
    def net() -> nn.Module:
        torch.manual_seed(5)
        made = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        return made.double()

    def body() -> Any:
        rank, size, device = start()
        made = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net()).to(device))
        return train(made, device, batches(5, 12), slice(rank, None, size)), [
            b.cpu().numpy() for b in made.buffers()
        ]

    alone = net()
    wanted = train(alone, "cpu", batches(5, 12))
    for params, buffers in ranks(body, 3, races="error"):
        close(params, wanted, 1e-6)
        close(buffers, [b.numpy() for b in alone.buffers()])


def test_sync_batch_norm_refuses_the_cpu_and_is_plain_where_there_is_one_rank() -> None:
    x = torch.randn(4, 2)
    np_close(nn.SyncBatchNorm(2)(x), nn.BatchNorm1d(2)(x))

    def body() -> None:
        start("gloo")
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
            nn.SyncBatchNorm(2)(x)
        with pytest.raises(ValueError, match="expected at least 2D input"):
            nn.SyncBatchNorm(2)(x[0])

    ranks(body, 2)


# -- what goes in and comes out ---------------------------------------------------------------------------------


def test_arguments_are_moved_and_outputs_are_found_in_containers() -> None:
    from collections import namedtuple
    from dataclasses import dataclass

    from flambeau.nn.utils.rnn import pack_sequence

    Pair = namedtuple("Pair", "x y")

    @dataclass
    class Found:
        out: Any

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.rnn = nn.Linear(2, 2), nn.Linear(2, 2), nn.RNN(2, 2)

        def forward(self, pair: Any, table: Any, packed: Any, module: Any, *, flag: str) -> Any:
            assert flag == "as it is" and module.weight.device.type == "cpu"
            assert {pair.x.device, pair.y[0].device, table["z"].device, packed.data.device} == {
                self.a.weight.device
            }
            assert packed.batch_sizes.device.type == "cpu"
            return Found({"a": [self.a(pair.x)], "r": self.rnn(packed)[1]}), (table, None)

    def body() -> Any:
        rank, _, device = start()
        made = DDP(Net().to(device), device_ids=[rank], find_unused_parameters=True)
        packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
        for _ in range(2):
            made.zero_grad()
            found, (table, nothing) = made(
                Pair(torch.ones(1, 2), [torch.ones(1)]),
                {"z": torch.ones(2)},
                packed,
                nn.Linear(1, 1),
                flag="as it is",
            )
            (found.out["a"][0].sum() + found.out["r"].sum()).backward()
        return (
            [n for n, p in made.module.named_parameters() if p.grad is None],
            nothing,
            table["z"].device.type,
        )

    assert ranks(body, 2, races="error") == [(["b.weight", "b.bias"], None, "cuda")] * 2


def test_a_hook_must_give_a_tensor() -> None:
    def body(result: Any) -> None:
        _, _, device = start()
        made = DDP(make(0).to(device))

        def hook(state, bucket):  # type: ignore[no-untyped-def]
            if result == "no future":
                return 3
            future = torch.futures.Future()
            future.set_result(result)
            return future

        made.register_comm_hook(None, hook)
        made(torch.ones(1, 6, dtype=torch.float64, device=device)).sum().backward()

    with pytest.raises(
        RuntimeError, match="expected the hook result is either a Tensor or a TensorList found NoneType"
    ):
        ranks(body, 1, None)
    with pytest.raises(
        RuntimeError, match=r"must return a torch.futures.Future object, but got builtins.int"
    ):
        ranks(body, 1, "no future")
