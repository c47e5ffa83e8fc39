"""`mode="reduce-overhead"`: replays equal eager calls, guards find what changed, what cannot be captured runs eagerly."""

from __future__ import annotations

import itertools
import queue
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from random_programs import observed
from seeds import EXHAUSTIVE, session_seed
from step_programs import Steps, collect, observed_steps

import flambeau as torch
from flambeau.nn.replay.replayed_function import ReplayedFunction
from flambeau.tensor.fusion import collecting

COUNT = 1000 if EXHAUSTIVE else 4


@pytest.fixture
def gpu() -> Iterator[Any]:
    with torch.virtual(devices=2, races="error", poison=True) as machine:
        yield machine
        torch.compiler.reset()


def replayed(function: Any, **arguments: Any) -> Any:
    """Return a compiled function."""
    return torch.compile(function, **{"mode": "reduce-overhead"} | arguments)


def counts(compiled: Any) -> ReplayedFunction:
    """Return the captured calls of a compiled function, and its counts."""
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__, strict=True))
    return cells["replayed"].cell_contents


def fresh(*shape: int) -> Any:
    return torch.randn(shape or (4, 6), device="cuda")


# -- random programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(10), *[f"{session_seed()} {k}" for k in range(COUNT)]])
def test_replayed_steps_equal_eager_steps(seed: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log, races = observed_steps(str(seed), lambda function: function)
        replayed_log, replayed_races = observed_steps(str(seed), replayed)
    for number, (eager, compiled) in enumerate(zip(log, replayed_log, strict=True)):
        assert eager == compiled, f"seed {seed}: observation {number}"
    assert replayed_races == races == ""


def test_most_random_steps_are_replayed(gpu: Any) -> None:
    functions = []

    def wrap(function: Any) -> Any:
        functions.append(replayed(function))
        return functions[-1]

    for seed in range(6):
        Steps(str(seed), wrap).run(8)
    assert sum([counts(function).replays for function in functions]) >= 16


@pytest.mark.parametrize("seed", [*range(3), *[f"{session_seed()} {k}" for k in range(COUNT // 2)]])
def test_programs_with_side_effects_equal_eager_ones(seed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_LEAST_ROW", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log, _, races = observed(str(seed), lambda function: function)
        replayed_log, _, replayed_races = observed(str(seed), replayed)
    for number, (eager, compiled) in enumerate(zip(log, replayed_log, strict=True)):
        assert eager == compiled, f"seed {seed}: observation {number}"
    assert replayed_races == races == ""


# -- whole steps ------------------------------------------------------------------------------------------


def train(wrap: Callable[[Any], Any], make_optimizer: Callable[[Any], Any]) -> tuple[list[Any], Any]:
    """Train a network, and return everything that can be observed."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 4),
    ).cuda()
    optimizer = make_optimizer(net.parameters())

    def step(x: Any, wanted: Any) -> Any:
        optimizer.zero_grad()
        loss = (net(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    function = wrap(step)
    log: list[Any] = [function(fresh(5, 8), fresh(5, 4)).item() for _ in range(6)]
    state = optimizer.state_dict()["state"]
    log += [(p.tolist(), p.grad.tolist(), p._version) for p in net.parameters()]
    log += [b.tolist() for b in net.buffers()]
    log += [{name: value.tolist() for name, value in of.items()} for of in state.values()]
    return [*log, torch.cuda.get_rng_state().tolist()], function


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01, device="cuda"), capturable=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    ],
)
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_whole_step_equals_eager_step(gpu: Any, make_optimizer: Any, mode: str) -> None:
    eager, _ = train(lambda function: function, make_optimizer)
    log, function = train(lambda function: replayed(function, mode=mode), make_optimizer)
    assert log == eager
    assert (counts(function).captures, counts(function).replays, counts(function).breaks) == (1, 4, [])


def test_accumulated_gradients_equal_eager_ones(gpu: Any) -> None:
    def run(wrap: Any) -> list[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 6).cuda()

        def backward(x: Any) -> None:
            layer(x).square().sum().backward()

        function, log = wrap(backward), []
        for k in range(12):
            if k % 3 == 0:
                layer.zero_grad()
            function(fresh())
            log.append([p.grad.tolist() for p in layer.parameters()])
        return log

    assert run(replayed) == run(lambda function: function)


# -- guards -----------------------------------------------------------------------------------------------


class Model:
    """The state that the guarded function reads."""

    unit = 1.0

    def __init__(self) -> None:
        self.scale, self.names, self.table = 2.0, ["a", "b"], {"bias": 0.5}
        self.layer = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)).cuda()
        self.buffer, self.square = fresh(), fresh(6, 6)
        self.steps = 0  # which the function does not read


GLOBAL = [1.0]


def guarded(model: Model, shift: float) -> Callable[[Any], Any]:
    def function(x: Any, factor: float = 3.0) -> Any:
        y = model.layer(x) * model.scale * model.unit + model.table["bias"] + shift + GLOBAL[0]
        y = (y + model.buffer * len(model.names) * factor) @ model.square
        if torch.is_grad_enabled():
            y.sum().backward()
        return y.detach() + torch.zeros(6, device="cuda")

    return function


def set_cell(function: Any, name: str, value: Any) -> None:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    cells[name].cell_contents = value


def add_hook(model: Model, function: Any) -> None:
    model.layer[0].register_forward_hook(lambda module, args, output: output * 2)


def add_tensor_hook(model: Model, function: Any) -> None:
    model.layer[0].weight.register_hook(lambda grad: grad * 2)


def use_tf32(model: Model, function: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32


MUTATIONS: dict[str, Callable[[Model, Any], Any]] = {
    "attribute": lambda m, f: setattr(m, "scale", 3.0),
    "class attribute": lambda m, f: setattr(Model, "unit", Model.unit + 1),
    "list": lambda m, f: m.names.append("c"),
    "dict": lambda m, f: m.table.update(bias=1.5),
    "closure": lambda m, f: set_cell(f, "shift", 9.0),
    "global": lambda m, f: GLOBAL.__setitem__(0, GLOBAL[0] + 1),
    "default": lambda m, f: setattr(f, "__defaults__", (4.0,)),
    "training": lambda m, f: m.layer.eval(),
    "parameter": lambda m, f: setattr(m.layer[0], "bias", torch.nn.Parameter(fresh(6))),
    "data": lambda m, f: setattr(m.layer[0].weight, "data", fresh(6, 6)),
    "buffer": lambda m, f: setattr(m, "buffer", fresh()),
    "layout": lambda m, f: setattr(m, "buffer", fresh(6, 4).t()),
    "layout in place": lambda m, f: m.square.t_(),
    "requires_grad": lambda m, f: m.layer[0].bias.requires_grad_(False),
    "submodule": lambda m, f: m.layer.__setitem__(1, torch.nn.Identity()),
    "hook": add_hook,
    "hook of a tensor": add_tensor_hook,
    "flag": use_tf32,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_guard_finds_change(gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(wrap: Any) -> tuple[list[Any], Any]:
        monkeypatch.setattr(Model, "unit", 1.0)
        monkeypatch.setitem(globals(), "GLOBAL", [1.0])
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
        torch.manual_seed(0)
        model = Model()
        function = guarded(model, 0.25)
        called, log = wrap(function), []
        for k in range(8):
            model.steps += 1
            if k == 5:
                MUTATIONS[name](model, function)
            log.append(called(fresh()).tolist())
            log.append([None if p.grad is None else p.grad.tolist() for p in model.layer.parameters()])
            model.layer.zero_grad()
        return log, called

    eager, _ = run(lambda function: function)
    log, called = run(replayed)
    assert log == eager
    assert counts(called).captures == (3 if "hook" in name else 2), counts(called).breaks
    assert counts(called).replays >= 3


@pytest.mark.parametrize(
    "name", ["grad mode", "autocast", "default dtype", "stream", "shape", "dtype", "number", "stride"]
)
def test_key_of_call_finds_change(gpu: Any, name: str) -> None:
    weight = fresh(6, 6)

    def function(x: Any, factor: float) -> Any:
        return (x @ weight) * factor + torch.full((6,), 1.5, device="cuda") * torch.is_grad_enabled()

    called, x = replayed(function), fresh()
    for _ in range(4):
        assert torch.equal(called(x, 2.0), function(x, 2.0))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    other = {"shape": fresh(3, 6), "stride": fresh(6, 4).t()}.get(name, x)
    with {
        "grad mode": torch.no_grad(), "autocast": torch.autocast("cuda", dtype=torch.bfloat16), "stream": stream,
        "dtype": torch.autocast("cuda", dtype=torch.float16),
    }.get(name, torch.enable_grad()):  # fmt: skip
        if name == "default dtype":
            torch.set_default_dtype(torch.float64)
        try:
            for _ in range(4):
                want, got = [f(other, 3.0 if name == "number" else 2.0) for f in (function, called)]
                assert got.dtype is want.dtype
                assert torch.equal(got, want)
        finally:
            torch.set_default_dtype(torch.float32)
    torch.cuda.synchronize()
    assert counts(called).captures == 2


def test_values_of_tensors_are_not_guarded(gpu: Any) -> None:
    weight = fresh(6, 6)
    called = replayed(lambda x: x @ weight)
    for _ in range(6):
        weight.normal_()
        x = fresh()
        assert torch.equal(called(x), x @ weight)
    assert (counts(called).captures, counts(called).replays) == (1, 4)


# -- results ----------------------------------------------------------------------------------------------

OVERWRITTEN = "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run"


@pytest.mark.parametrize(
    "use", [lambda t: t.tolist(), lambda t: t + 1, lambda t: t[0], str, lambda t: t.data_ptr()]
)
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[1:], lambda t: t.t().detach()])
def test_result_of_earlier_run_raises(gpu: Any, use: Any, view: Any) -> None:
    called, x = replayed(lambda x: (x * 2, x + 1)), fresh()
    first = called(x)
    called(x)
    kept = [view(t) for t in called(x)]
    copied = kept[0].clone()
    latest = called(x)
    for t in kept:
        with pytest.raises(RuntimeError, match=OVERWRITTEN):
            use(t)
    assert copied.shape == kept[0].shape
    for a, b in zip(latest, first, strict=True):  # the warm-up's results are ordinary tensors
        assert torch.equal(a, b)


def test_saved_result_of_earlier_run_raises(gpu: Any) -> None:
    called, x = replayed(lambda x: x * 2), fresh()
    weight = fresh().requires_grad_()
    losses = [(called(x) * weight).sum() for _ in range(4)]
    losses[-1].backward()
    with pytest.raises(RuntimeError, match=OVERWRITTEN):
        losses[-2].backward()


def test_results_of_one_marked_step_stay_valid(gpu: Any) -> None:
    called, x = replayed(lambda x: x * 2 + 1), fresh()
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        first, second = called(x), called(x + 1)
        assert torch.equal(first, x * 2 + 1)
        assert torch.equal(second, (x + 1) * 2 + 1)
    torch.compiler.cudagraph_mark_step_begin()
    called(x)
    with pytest.raises(RuntimeError, match=OVERWRITTEN):
        first.sum()


def test_result_on_other_stream_is_awaited_by_next_run(gpu: Any) -> None:
    called, side = replayed(lambda x: x * 2), torch.cuda.Stream()
    for _ in range(5):
        x = fresh()
        y = called(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        y.record_stream(side)
    torch.cuda.synchronize()
    assert torch.equal(z, x * 2 + 1)


def test_results_outlive_the_function(gpu: Any) -> None:
    called, x = replayed(lambda x: x * 2), fresh()
    for _ in range(4):
        y = called(x)
    del called
    others = [fresh() for _ in range(8)]
    assert torch.equal(y, x * 2)
    assert len(others) == 8


def test_arguments_and_views_are_returned_themselves(gpu: Any) -> None:
    called = replayed(lambda x: (x, x[1:], x.t(), 3, None, {"a": x * 2}))
    for _ in range(5):
        x = fresh()
        itself, part, turned, three, none, named = called(x)
        assert itself is x
        assert (three, none) == (3, None)
        part.zero_()
        assert part.data_ptr() == x[1:].data_ptr()
        assert turned.stride() == x.t().stride()
        assert x[1:].count_nonzero() == 0
        assert x._version == 1
        assert named["a"].shape == x.shape


def test_memory_stays_flat(gpu: Any) -> None:
    called, sizes = replayed(lambda x: (x @ x.t()).relu().sum(0)), []
    for _ in range(12):
        called(fresh(64, 64))
        sizes.append(torch.cuda.memory_allocated())
    assert len(set(sizes[3:])) == 1
    torch.compiler.reset()
    assert torch.cuda.memory_allocated() < sizes[-1]


# -- results that require grad ----------------------------------------------------------------------------


def graph_names(t: Any) -> list[str]:
    """Return the names of a result's nodes, in the order of a walk."""
    nodes = [t.grad_fn]
    for node in nodes:
        nodes += [each for each, _ in node.next_functions if each is not None]
    return [node.name() for node in nodes]


def error_of_backward(t: Any) -> str:
    with pytest.raises(RuntimeError) as error:
        t.sum().backward()
    return str(error.value)


RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "loss": lambda output, loss: loss,
    "several": lambda output, loss: (loss, output, loss),
    "views": lambda output, loss: {"row": output[0], "turned": output.t()[1:], "loss": loss.view(1)},
    "parts": lambda output, loss: (*output.chunk(2), loss),
    "without grad": lambda output, loss: (loss.detach(), output.detach()[1:], loss),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_freed_graphs_are_replayed(gpu: Any, name: str) -> None:
    def run(wrap: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            output = net(x)
            loss = torch.nn.functional.cross_entropy(output, torch.arange(4, device="cuda"))
            loss.backward()
            optimizer.step()
            return RESULTS[name](output, loss)

        called, log = wrap(step), []
        for x in [fresh() for _ in range(6)]:  # at different addresses
            results: list[Any] = []
            collect(called(x), results)
            log += [[t.tolist(), t._version, t.requires_grad, t.is_leaf, t.output_nr] for t in results]
            for t in [t for t in results if t.requires_grad]:
                base = t._base
                log += [graph_names(t), error_of_backward(t), base is not None and base.tolist()]
                t.retain_grad()  # later calls have other nodes
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    torch.autograd.grad(t.sum(), list(net.parameters()))
            log.append([p.grad.tolist() for p in net.parameters()])
        return log, called

    eager, _ = run(lambda function: function)
    log, called = run(replayed)
    assert log == eager
    assert (counts(called).captures, counts(called).replays, counts(called).breaks) == (1, 4, [])


def test_graphs_without_saved_tensors_are_differentiated_outside(gpu: Any) -> None:
    def run(wrap: Any) -> list[Any]:
        torch.manual_seed(0)
        weight, scale = fresh().requires_grad_(), fresh()
        called, log = wrap(lambda x: ((weight[1:] + x[1:]).t(), weight[0], scale * 2)), []
        for x in [fresh() for _ in range(5)]:
            shifted, row, doubled = called(x)
            ((shifted * doubled[1:].t()).sum() + row.square().sum()).backward()
            log += [weight.grad.tolist(), row._base is weight, graph_names(shifted), graph_names(row)]
        if wrap is replayed:
            assert counts(called).replays == 3
        return log

    assert run(replayed) == run(lambda function: function)


def test_result_that_can_be_differentiated_is_not_replayed(gpu: Any) -> None:
    weight = fresh(6, 6).requires_grad_()

    def function(x: Any) -> Any:
        loss = (x @ weight).square().mean()
        loss.backward()
        return {"loss": loss, "more": [(x @ weight).tanh()]}

    called = replayed(function)
    for _ in range(4):
        weight.grad = None
        result = called(fresh())
        error_of_backward(result["loss"])
        before = weight.grad.clone()
        result["more"][0].sum().backward()
        assert not torch.equal(weight.grad, before)
    assert counts(called).replays == 0
    (refusal,) = counts(called).breaks
    assert str(refusal).startswith(
        "its result['more'][0] requires grad: it can still be differentiated, because "
    )


def test_hooks_and_functions_in_the_graph_are_not_replayed(gpu: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    weight = fresh().requires_grad_()

    def hooked(x: Any) -> Any:
        loss = (weight * x).sum()
        loss.register_hook(lambda grad: grad * 2)
        loss.backward()
        return loss

    def custom(x: Any) -> Any:
        loss = Double.apply(weight * x).sum()
        loss.backward()
        return loss

    for function, reason in (
        (hooked, "its graph has hooks at SumBackward0"),
        (custom, "the node DoubleBackward"),
    ):
        weight.grad, called = None, replayed(function)
        for _ in range(4):
            x = fresh()
            weight.grad = None
            called(x)
            assert torch.equal(weight.grad, x * 2)
        assert reason in str(counts(called).breaks[0])


def test_nodes_of_a_replay_belong_to_its_stream(gpu: Any) -> None:
    weight, log = fresh().requires_grad_(), []
    for called in (replayed(lambda x: weight + x), lambda x: weight + x):
        for _ in range(4):
            weight.grad, side, x = None, torch.cuda.Stream(), fresh()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = called(x)
            x.record_stream(side)
            y.backward(torch.ones_like(weight))
            torch.cuda.current_stream().wait_stream(side)
            log.append(weight.grad.tolist())
    assert log[:4] == log[4:]


def test_state_that_results_share_is_guarded(gpu: Any) -> None:
    state = {"kept": fresh()}
    called, x = replayed(lambda x: (state["kept"], state["kept"][1:], x * 2)), fresh()
    for k in range(8):
        if k == 4:
            state["kept"] = fresh()
        kept, part, _ = called(x)
        assert torch.equal(kept, state["kept"])
        assert torch.equal(part, state["kept"][1:])
    assert counts(called).captures == 2


def test_argument_that_becomes_part_of_a_graph_is_not_replayed(gpu: Any) -> None:
    weight = fresh().requires_grad_()
    called = replayed(lambda x: x.add_(weight).detach())
    for _ in range(4):
        x = fresh()
        called(x)
        x.sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 4))
    assert "in a way that autograd records" in str(counts(called).breaks[0])


# -- what is not captured ---------------------------------------------------------------------------------


def read_value(x: Any) -> Any:
    y = x * 2
    return y + 1 if y.sum().item() > 0 else y - 1


def wait(x: Any) -> Any:
    y = x + 1
    torch.cuda.synchronize()
    return y * 2


def use_cpu(x: Any) -> Any:
    y = x * 3
    return y + torch.ones(6).cuda()


def use_cpu_number(x: Any) -> Any:
    y = x * 3
    return y * CPU_NUMBER


def record_event(x: Any) -> Any:
    y = x * 3
    torch.cuda.Event().record()
    return y + 1


def use_stream(x: Any) -> Any:
    y, side = x * 3, torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y + 1
    torch.cuda.current_stream().wait_stream(side)
    return z


def depend_on_data(x: Any) -> Any:
    y = x * 2
    return y[y > 0]


def seed(x: Any) -> Any:
    y = x * 2
    torch.cuda.manual_seed(5)
    return torch.rand_like(y) + y


def show(x: Any) -> Any:
    y = x * 2
    str(y)
    return y


def other_device(x: Any) -> Any:
    return (x * 2).to("cuda:1").cuda(0) + 1


CPU_NUMBER = torch.tensor(2.0)
UNCAPTURED = {
    read_value: "the host reads a result", wait: "the host waits for the device", use_cpu: "a CPU tensor",
    use_cpu_number: "a CPU tensor", record_event: "an event is recorded", use_stream: "an event is recorded",
    depend_on_data: "the host reads", seed: "a generator is seeded", show: "the host", other_device: "event",
}  # fmt: skip


@pytest.mark.parametrize("function", UNCAPTURED, ids=lambda function: function.__name__)
def test_what_cannot_be_captured_runs_eagerly(gpu: Any, function: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    torch.manual_seed(1)
    xs = [fresh() for _ in range(5)]
    want = [function(x) for x in xs]
    called = replayed(function)
    for x, eager in zip(xs, want, strict=True):
        assert torch.equal(called(x), eager)
    (refusal,) = counts(called).breaks
    assert UNCAPTURED[function] in refusal.why
    assert refusal.site is not None
    assert refusal.site[0] is function.__code__
    assert counts(called).replays == 0
    assert f"not replayed: {refusal}" in capsys.readouterr().err
    explained = torch._dynamo.explain(called)(xs[0])
    assert (explained.graph_count, explained.graph_break_count) == (0, 1)
    assert UNCAPTURED[function] in str(explained)
    assert explained.break_reasons[0].user_stack[0].name == function.__name__


def test_side_effects_happen_once_for_each_call_that_runs(gpu: Any) -> None:
    seen: list[int] = []

    def function(x: Any) -> Any:
        seen.append(1)
        return x * 2

    called = replayed(function)
    for k in range(12):
        called(fresh())
        assert len(seen) == k + 1  # the guards see that the list changes
    assert counts(called).captures == 8
    assert "changes" in counts(called).breaks[0].why


def test_error_leaves_the_capture(gpu: Any) -> None:
    target, fails = fresh(), [False]

    def function(x: Any) -> Any:
        target.add_(x)
        if fails[0]:
            raise ValueError("stop")
        return x + 1

    called, x = replayed(function), fresh()
    called(x)
    before, fails[0] = target.clone(), True
    for _ in range(3):
        with pytest.raises(ValueError, match="stop"):
            called(x)
    assert torch.equal(target, before + x + x + x)
    assert not torch.cuda.is_current_stream_capturing()
    fails[0] = False
    assert torch.equal(called(x), x + 1)


def test_captures_are_limited(gpu: Any) -> None:
    def function(x: Any, k: int) -> Any:
        return x * k

    called, x = replayed(function, recompile_limit=3), fresh()
    for k in range(6):
        for _ in range(3):
            assert torch.equal(called(x, k), x * k)
    assert counts(called).captures == 3
    assert counts(called).replays == 3


# -- verification -----------------------------------------------------------------------------------------


def test_verification_finds_state_that_no_guard_reaches(gpu: Any) -> None:
    values = iter([False] * 3 + [True] * 20)  # the contents of an iterator are not guarded

    def function(x: Any) -> Any:
        y = x * 2
        return y - 1 if next(values) else y + 1

    called = torch.compile(function, options={"triton.cudagraphs": True, "verify_every": 2})
    x = fresh()
    for _ in range(5):
        called(x)
    with pytest.raises(
        RuntimeError, match=r"verify_every=2.*sub.* at .*test_replayed_functions.py:\d+.*graph has"
    ):
        called(x)
    assert torch.equal(called(x), x * 2 - 1)  # the graph was dropped


def test_verified_replays_equal_eager_calls(gpu: Any) -> None:
    def run(wrap: Any) -> list[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 6).cuda()

        def step(x: Any) -> Any:
            layer.zero_grad()
            loss = torch.nn.functional.dropout(layer(x)).square().sum()
            loss.backward()
            with torch.no_grad():
                for p in layer.parameters():
                    p.sub_(p.grad * 0.01)
            return loss.detach()

        called = wrap(step)
        log = [called(fresh()).item() for _ in range(9)]
        return log + [(p.tolist(), p.grad.tolist(), p._version) for p in layer.parameters()]

    options = {"triton.cudagraphs": True, "verify_every": 2}
    assert run(lambda f: torch.compile(f, options=options)) == run(lambda f: f)


def test_wrong_option_is_refused() -> None:
    with pytest.raises(RuntimeError, match="verify_every, got str should be int"):
        torch.compile(random.random, options={"verify_every": "2"})
    with pytest.raises(RuntimeError, match="verify_every must not be negative, got -1"):
        torch.compile(random.random, options={"verify_every": -1})


# -- memory that guards do not reach ----------------------------------------------------------------------


def test_tensor_beyond_the_guards_is_not_captured(gpu: Any) -> None:
    hidden = itertools.repeat(fresh())  # whose contents no guard reaches

    def function(x: Any) -> Any:
        return x + next(hidden)

    called = replayed(function)
    for _ in range(5):
        x = fresh()
        assert torch.equal(called(x), function(x))
    assert counts(called).replays == 0
    assert "accesses a tensor that no guard reaches" in counts(called).breaks[0].why


def test_result_that_escapes_keeps_its_value(gpu: Any) -> None:
    stored: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def function(x: Any) -> Any:
        y = x * 2
        stored.put(y)
        return y + 1

    called, xs = replayed(function), [fresh() for _ in range(6)]
    for x in xs:
        assert torch.equal(called(x), x * 2 + 1)
    for x in xs:
        assert torch.equal(stored.get(), x * 2)
    assert "stores a tensor where no guard reaches" in counts(called).breaks[0].why


def test_argument_that_is_written_is_copied_back(gpu: Any) -> None:
    called = replayed(lambda x, y: x.add_(y).mul_(2))
    for _ in range(6):
        x, y = fresh(), fresh()
        want = (x + y) * 2
        assert called(x, y) is x
        assert torch.equal(x, want)
        assert x._version == 2
    assert counts(called).replays == 4
