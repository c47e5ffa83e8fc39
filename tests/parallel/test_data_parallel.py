"""DataParallel on virtual GPUs: one device's numbers, without a race, with all memory given back. On real ones, too."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gpus import either, gpus, needs, simulated

import flambeau as torch
from flambeau import nn
from flambeau.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter
from flambeau.nn.parallel.scatter_gather import scatter_kwargs
from flambeau.runtime import system

pytestmark = either

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def gpus_4() -> Iterator[None]:
    """Without TF32, whose rounding depends on the size of the batch where real GPUs multiply."""
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    for flag in flags:
        flag.allow_tf32 = False
    with gpus(devices=4, races="error"):
        yield
    for flag in flags:
        flag.allow_tf32 = True


def a_net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()


def a_batch(size: int = 10) -> Any:
    torch.manual_seed(1)
    return torch.randn(size, 5).cuda()


def used() -> list[int]:
    for index in range(4):
        torch.cuda.synchronize(index)
    gc.collect()
    return [torch.cuda.memory_allocated(index) for index in range(4)]


def close(ours: Any, theirs: Any) -> None:
    assert ours.device == theirs.device and ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# -- a step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[0], [0, 1], [0, 2, 1], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("size", [1, 3, 8, 10])
def test_l01_a_step_is_that_of_one_device(ids: list[int], size: int) -> None:
    net, x = a_net(), a_batch(size).requires_grad_()
    other, y = copy.deepcopy(net), x.detach().clone().requires_grad_()
    expected = other(y)
    expected.square().sum().backward()
    found = nn.DataParallel(net, ids)(x)
    found.square().sum().backward()
    close(found, expected)
    close(x.grad, y.grad)
    for mine, its in zip(net.parameters(), other.parameters(), strict=True):
        assert mine.is_leaf
        close(mine.grad, its.grad)


def test_training_follows_one_device_and_leaves_no_memory() -> None:
    before = used()

    def trained(wrap: Any) -> list[float]:
        net = a_net()
        model, optimizer, losses = wrap(net), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(a_batch(7 + step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    one, several = trained(lambda net: net), trained(nn.DataParallel)
    assert several == pytest.approx(one, rel=1e-5) and several[-1] < several[0] / 2
    assert used() == before


@pytest.mark.parametrize("where", ["cpu", "cuda:0", "cuda:3"])
def test_input_may_be_anywhere(where: str) -> None:
    net, x = a_net(), a_batch()
    close(nn.DataParallel(net)(x.to(where)), net(x))


def test_output_device_and_dim() -> None:
    net, x = a_net(), a_batch(6)
    model = nn.DataParallel(net, [0, 1, 2], output_device=torch.device("cuda:2"))
    assert model(x).device == torch.device("cuda:2")
    flipped = nn.DataParallel(Flipped(net), [0, 1], dim=1)
    close(flipped(x.t()), net(x).t())
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        assert data_parallel(net, x, [0, 1], -1).device.type == "cpu"


class Flipped(nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return self.net(x.t()).t()


def test_second_derivatives() -> None:
    x = a_batch(5).requires_grad_()

    def twice(model: Any) -> Any:
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), next(iter(model.parameters())))[0]

    net = a_net()
    close(twice(nn.DataParallel(net)), twice(net))


def test_nothing_is_recorded_without_gradients() -> None:
    net, x = a_net(), a_batch()
    with torch.no_grad():
        found = nn.DataParallel(net)(x)
        assert not found.requires_grad
        close(found, net(x))


# -- modules ----------------------------------------------------------------------------------------------------


class Seen(nn.Module):
    """Notes what it is given; has a buffer, a parameter that learns nothing, and lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("none", None)
        self.register_buffer("learned", torch.ones(2).requires_grad_())
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.rows = nn.ParameterList([torch.ones(2), torch.full((2,), 2.0)])
        self.named = nn.ParameterDict({"a": torch.full((2,), 3.0)})
        self.shared = self.rows
        self.calls = 0

    def forward(self, x: Any, *, scale: Any = None, note: Any = None) -> Any:
        self.calls += 1
        self.count.add_(len(x))
        own = self.frozen * self.rows[0] * self.shared[1] * self.named["a"] * self.learned
        assert {t.device for t in (own, self.count)} == {x.device}
        return {
            "out": x * own if scale is None else x * own * scale,
            "notes": (x.sum(0, keepdim=True), [None]),
        }


def test_containers_keywords_and_state() -> None:
    module = Seen().cuda()
    module.learned = torch.ones(2, device="cuda", requires_grad=True)
    model = nn.DataParallel(module, [0, 1, 2])
    x, scale = torch.ones(7, 2, device="cuda"), torch.arange(7.0, device="cuda").reshape(7, 1)
    found = model(x, scale=scale, note="the same")
    assert found["out"].tolist() == [[6.0 * i] * 2 for i in range(7)]
    assert found["notes"][0].tolist() == [[3, 3], [3, 3], [1, 1]] and found["notes"][1] == [None]
    assert module.calls == 0, "what replicas change is lost"
    assert module.count.tolist() == [3], "but for what changes in place on the first device"
    found["out"].sum().backward()
    assert module.frozen.grad is None
    assert module.learned.grad.tolist() == [126, 126]
    assert [p.grad.tolist() for p in module.rows] == [[126, 126], [63, 63]]


def test_batchnorm_takes_the_first_part() -> None:
    net = nn.BatchNorm1d(5).cuda()
    x = a_batch(9)
    one = copy.deepcopy(net)
    one(x[:5])
    nn.DataParallel(net, [0, 1])(x)
    close(net.running_mean, one.running_mean)
    close(net.running_var, one.running_var)
    assert net.num_batches_tracked.item() == 1


def test_a_module_without_parameters_and_one_without_arguments() -> None:
    x = a_batch()
    close(nn.DataParallel(nn.ReLU())(x), x.relu())

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self) -> Any:
            return self.w * 2

    module = Constant().cuda()
    assert nn.DataParallel(module)().tolist() == data_parallel(module, None).tolist() == [2, 2, 2]


def test_recurrent_layers_and_hooks_run_on_each_device() -> None:
    net = nn.LSTM(5, 4, batch_first=True).cuda()
    devices = []
    net.register_forward_pre_hook(lambda module, args: devices.append(args[0].get_device()))
    x = torch.randn(6, 3, 5, device="cuda")
    found, _ = nn.DataParallel(net, [0, 1, 3], dim=0)(x)
    assert devices == [0, 1, 3]
    close(found, net(x)[0])


def tied() -> Any:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        tied,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval(),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        lambda: nn.utils.spectral_norm(nn.Linear(4, 4)).eval(),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        lambda: nn.Linear(4, 4, dtype=torch.float64),
        lambda: nn.Linear(4, 4, dtype=torch.complex64),
    ],
    ids=["tied", "weight_norm", "spectral_norm", "orthogonal", "hook", "attention", "double", "complex"],
)
def test_parameters_of_every_kind(make: Any, recording: bool) -> None:
    torch.manual_seed(0)
    net = make().cuda()
    like = next(net.parameters())
    x = torch.randn(3, 6, 4).to(like)
    with torch.set_grad_enabled(recording):
        expected, found = net(x), nn.DataParallel(net, [0, 1, 2], dim=1)(x)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)  # TF32
    if recording:
        grads = [
            torch.autograd.grad(y.abs().square().sum(), list(net.parameters())) for y in (found, expected)
        ]
        for mine, its in zip(*grads, strict=True):
            assert torch.allclose(mine, its, rtol=1e-2, atol=1e-2)


class Scaled(nn.Module):
    """A module with a buffer that requires gradients and one that does not."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale, self.shift = nn.Buffer(scale), nn.Buffer(scale.clone().detach())

    def forward(self, x: Any) -> Any:
        return x * self.scale + self.shift


def test_gradients_reach_buffers_that_require_them() -> None:
    net = Scaled(torch.randn(5, device="cuda", dtype=torch.float64, requires_grad=True))
    parallel, x = nn.DataParallel(net, [0, 1]), torch.randn(2, 5, device="cuda", dtype=torch.float64)
    for fast in (False, True):
        assert torch.autograd.gradcheck(lambda scale: parallel(x), (net.scale,), fast_mode=fast)


class Reader(nn.Module):
    """A module that reports the parameters that a replica sees."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.data: Any = data

    def forward(self, x: Any) -> Any:
        values = self.data.values() if isinstance(self.data, nn.ParameterDict) else self.data
        seen = list(values)
        assert len(self.data) == len(seen) == 2
        assert all(p.requires_grad and p.grad_fn is not None and p.device == x.device for p in seen)
        return x * sum(seen)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_replicas_of_parameter_containers_hold_copies_and_warn_of_nothing(kind: str) -> None:
    one, two = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))
    data: Any = nn.ParameterList([one, two]) if kind == "list" else nn.ParameterDict({"a": one, "b": two})
    net = Reader(data).cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.DataParallel(net, [0, 1])(torch.ones(4, 3, device="cuda")).sum().backward()
    assert [p.grad.tolist() for p in net.parameters()] == [[4.0] * 3] * 2


def test_scalars_become_a_vector() -> None:
    needs(2)

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean()

    with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze"):
        assert nn.DataParallel(Mean(), [0, 1])(torch.tensor([1.0, 3.0, 5.0])).tolist() == [2, 5]


def test_state_copies_and_repr() -> None:
    net = a_net()
    model = nn.DataParallel(net, [0, 1])
    assert list(model.state_dict()) == [f"module.{name}" for name in net.state_dict()]
    assert repr(model).startswith("DataParallel(\n  (module): Sequential(")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(other(a_batch()), model(a_batch()))
    assert nn.DataParallel is nn.parallel.DataParallel
    assert nn.DataParallel[nn.Linear]


def test_replicas_share_memory_at_home_and_warn_of_zero_grad() -> None:
    net = a_net()
    here, there = replicate(net, ["cuda:0", torch.device("cuda:1")])
    assert here[0].weight.data_ptr() == net[0].weight.data_ptr()
    assert there[0].weight.device == torch.device("cuda:1") and not there[0].weight.is_leaf
    assert list(there.parameters()) == []
    with pytest.warns(UserWarning, match="created with nn.DataParallel"):
        there.zero_grad()
    detached = replicate(net, [0, 1], detach=True)
    assert not any(r[0].weight.grad_fn for r in detached) and detached[0][0].weight is net[0].weight
    assert replicate(net, []) == []


def test_half_precision_inside_autocast() -> None:
    net, x = a_net(), a_batch()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found, expected = nn.DataParallel(net)(x), net(x)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), expected.float(), atol=0.05)


# -- parts ------------------------------------------------------------------------------------------------------


def test_scatter_goes_through_containers() -> None:
    x = torch.arange(5.0)
    assert [t.tolist() for t in scatter(x, [0, 1])] == [[0, 1, 2], [3, 4]]
    given = OrderedDict(pair=Pair(x, "text"), empty=[], more=[x, (x, None)])
    first, second = scatter(given, [1, 3])
    assert type(first) is OrderedDict and type(first["pair"]) is Pair and second["pair"].right == "text"
    assert first["empty"] is given["empty"] and second["more"][1][0].tolist() == [3, 4]
    assert second["more"][0].get_device() == 3 and type(second["more"][1]) is tuple
    assert len(scatter([x[:2], x], [0, 1, 2, 3])) == 2


def test_scatter_kwargs_pairs_arguments_with_keywords() -> None:
    x = torch.ones(4)
    parts, keywords = scatter_kwargs((x,), None, [0, 1])
    assert len(parts) == 2 and keywords == ({}, {})
    parts, keywords = scatter_kwargs((), {"x": x}, [0, 1])
    assert parts == ((), ()) and [k["x"].get_device() for k in keywords] == [0, 1]
    assert scatter_kwargs((), {}, [0, 1]) == ((), ())


def test_gather_undoes_scatter_and_refuses_what_it_cannot() -> None:
    x = torch.arange(5.0)
    found = gather(scatter({"a": Pair(x, [x])}, [0, 1]), 1)
    assert type(found["a"]) is Pair and found["a"].right[0].tolist() == x.tolist()
    assert gather([x.cuda(0), x.cuda(1)], "cpu").device.type == "cpu"
    with pytest.raises(ValueError, match="All dicts must have the same number of keys"):
        gather([{"a": None}, {}], 0)
    with pytest.raises(ValueError, match="shorter"):
        gather([[None, None], [None]], 0)
    for wrong in (1, "text"):
        with pytest.raises(TypeError, match=f"but got {type(wrong).__name__}"):
            gather([wrong, wrong], 0)


def test_parallel_apply_selects_each_device_and_puts_all_back() -> None:
    def selected(_: Any) -> int:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return torch.cuda.current_device()

    assert parallel_apply([selected] * 3, [1, 2, 3], devices=[2, "cuda:1", None]) == [2, 1, 0]
    assert torch.is_grad_enabled() and torch.cuda.current_device() == 0
    side = torch.cuda.Stream(1)
    with torch.cuda.stream(side), torch.cuda.device(0):
        (stream,) = parallel_apply([lambda _: torch.cuda.current_stream()], [0], devices=[1])
    assert stream == side
    for rest in ({"inputs": [1]}, {"kwargs_tup": [{}]}, {"devices": [0]}):
        call = {"inputs": [1, 2], "kwargs_tup": [{}] * 2, "devices": [0, 1], **rest}
        with pytest.raises(AssertionError, match=f"not equal to the number of {next(iter(rest))} 1"):
            parallel_apply([selected] * 2, **call)


# -- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, KeyError, torch.cuda.OutOfMemoryError])
def test_what_a_replica_raises_names_its_device(kind: type[Exception]) -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            if x.get_device() == 3:
                raise kind("too much")
            return x

    with pytest.raises(
        kind, match=f"Caught {kind.__name__} in replica 1 on device 3.\nOriginal Traceback"
    ) as found:
        nn.DataParallel(Failing(), [0, 3])(torch.ones(2))
    assert "too much" in str(found.value)
    assert torch.cuda.current_device() == 0


def test_the_module_must_be_on_the_first_device() -> None:
    net = a_net()
    text = r"on device cuda:1 \(device_ids\[0\]\) but found one of them on device: "
    with pytest.raises(RuntimeError, match=text + "cuda:0"):
        nn.DataParallel(net, [1, 0])(a_batch())
    net.cpu()
    with pytest.raises(RuntimeError, match=text + "cpu"):
        data_parallel(net, a_batch(), [1, 0])
    assert nn.DataParallel(net, [2]).module[0].weight.device == torch.device("cuda:2"), "one device: moved"


def test_lazy_modules_must_have_run() -> None:
    needs(2)
    with pytest.raises(RuntimeError, match="Modules with uninitialized parameters can't be used"):
        nn.DataParallel(nn.LazyLinear(2).cuda())(a_batch())


def test_devices_that_are_none() -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        nn.DataParallel(nn.ReLU(), [0, 9])
    with pytest.raises(ValueError, match="cpu"):
        nn.DataParallel(nn.ReLU(), ["cpu"])


@simulated
def test_without_gpus_it_is_the_module() -> None:
    with torch.virtual(devices=0):
        model = nn.DataParallel(nn.Linear(2, 2))
        assert model.device_ids == [] and model(torch.ones(3, 2)).shape == (3, 2)
        with pytest.raises(RuntimeError, match="device type could not be determined"):
            data_parallel(nn.ReLU(), torch.ones(2))
        with pytest.raises(AssertionError, match="No available accelerator found"):
            parallel_apply([nn.ReLU()], [torch.ones(2)])


@simulated
@pytest.mark.parametrize(
    ("memory", "processors", "expected"),
    [
        ((80, 80), (100, 100), None),
        ((80, 60), (1, 1), None),
        ((80, 59), (1, 1), (1, 0)),
        ((4, 4), (1, 2), (0, 1)),
    ],
)
def test_warns_of_an_imbalance(
    monkeypatch: pytest.MonkeyPatch, memory: Any, processors: Any, expected: Any
) -> None:
    driver = system.accelerator()

    def properties(index: int) -> Any:
        return SimpleNamespace(total_memory=memory[index], multi_processor_count=processors[index])

    torch.cuda.init()
    monkeypatch.setattr(type(driver), "device_properties", lambda self, index: properties(index))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        nn.DataParallel(nn.ReLU(), [0, 1])
    texts = [str(w.message) for w in found]
    if expected is None:
        assert texts == []
    else:
        assert (
            len(texts) == 1
            and "exclude GPU {} which has less than 75% of the memory or cores of GPU {}".format(*expected)
            in texts[0]
        )
        assert found[0].filename == __file__


# -- at the same time -------------------------------------------------------------------------------------------


@simulated
@pytest.mark.parametrize("schedule", ["random:1", "adversarial:2", "pct:3:3"])
def test_any_order_gives_the_same_and_no_race(schedule: str) -> None:
    def step() -> Any:
        net = a_net()
        loss = nn.DataParallel(net)(a_batch().cpu()).square().sum()
        loss.backward()
        return [loss.tolist(), *[p.grad.tolist() for p in net.parameters()]]

    with torch.virtual(devices=4, schedule="earliest", races="error"):
        expected = step()
    with torch.virtual(devices=4, schedule=schedule, races="error"):
        assert step() == expected


@simulated
def test_l02_one_thread_keeps_several_devices_busy() -> None:
    def duration(devices: int) -> float:
        """Of a step, in simulated milliseconds."""
        with torch.virtual(devices=devices, data=False):
            net = nn.Sequential(nn.Linear(8, 256), *[nn.Linear(256, 256) for _ in range(3)]).cuda()
            model, x = nn.DataParallel(net), torch.randn(1 << 20, 8, device="cuda")
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for event in (start, end):  # the first step opens devices and memory
                model(x).mean().backward()
                for index in range(devices):
                    torch.cuda.synchronize(index)
                event.record()
            end.synchronize()
            return start.elapsed_time(end)

    assert duration(2) < 0.75 * duration(1)


@simulated
def test_l03_more_than_eight_devices() -> None:
    with torch.virtual(devices=9, races="error"):
        net, x = a_net(), a_batch(20)
        found = nn.DataParallel(net)(x)
        close(found, net(x))
        found.sum().backward()
        assert all(p.grad is not None for p in net.parameters())
