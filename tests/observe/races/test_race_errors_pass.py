"""A RaceError reaches the program wherever it is raised: no library code of ours keeps it."""

from __future__ import annotations

import ast
import copy
import io
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
import flambeau.distributed as dist
import flambeau.nn.functional as F
from flambeau import nn
from flambeau.core.errors import RaceError
from flambeau.futures import Future
from flambeau.observe.faults import FaultDriver
from flambeau.runtime import system
from flambeau.utils.checkpoint import checkpoint
from flambeau.utils.data import DataLoader, TensorDataset

PACKAGE = Path(torch.__file__).parent
BROAD = {"Exception", "BaseException", "RuntimeError"}

# -- by reading: every handler that could catch one -----------------------------------------------------------

# fmt: off
KEPT = {  # by file and function: what becomes of a race there
    "_library/infer_schema.py _evaluate": "reads an annotation: uses no device",
    "_library/user_operators.py __call__": "compares arguments with a schema: uses no device",
    "distributions/lowrank_multivariate_normal.py __init__": "compares shapes: uses no device",
    "autograd/grad_mode.py wrapper": "thrown into the program's generator",
    "cli/plugin.py _install": "no device is in use yet",
    "cli/run.py _outcome_of": "the program has ended by it: shown, and its status is 3",
    "core/host/turn_scheduler.py _body": "kept for the thread that runs the ranks, which raises it",
    "core/host/turn_scheduler.py _switch": "kept for the thread that runs the ranks, which raises it",
    "core/ipc/exception_wrapper.py reraise": "the constructor of an exception uses no device",
    "core/tracing/plan_tree.py learn": "plans a call: uses no device",
    "core/ipc/pickle_reader.py opcodes": "reads bytes: uses no device",
    "data/pin.py _run": "raised again where the batch is asked for",
    "data/pin.py pin_result": "raised again where the batch is asked for",
    "data/worker.py _send": "raised again where the batch is asked for",
    "data/worker.py _serve": "raised again where the batch is asked for",
    "data/worker.py _set_up": "raised again where the batch is asked for",
    "distributed/backends/nccl_backend.py leave": "raised once all communicators are closed",
    "distributed/future.py _run": "raised, and kept for those who wait for the child",
    "distributed/backends/comm_init.py attempt": "raised by the thread that started this one",
    "distributed/backends/mpi_world.py _module": "an import",
    "distributed/backends/mpi_world.py available": "an import",
    "distributed/backends/mpi_world.py _refusal": "an import",
    "distributed/backends/tcp_backend.py advance": "reductions of host memory: raised by those who wait for the work",
    "distributed/backends/mpi_world.py dead": "stores use no device",
    "distributed/backends/mpi_world.py end": "stores use no device",
    "distributed/backends/rank_server.py _outlast": "a wait: nothing is accessed",
    "distributed/stores/store.py await_keys": "stores use no device",
    "distributed/stores/store.py turn": "stores use no device",
    "distributed/stores/store_server.py _call_guarded": "stores use no device",
    "distributed/stores/store_server.py _serve_client": "stores use no device",
    "distributed/stores/store_server.py _run": "stores use no device",
    "distributed/backends/watchdog.py _fail": "aborts: nothing is accessed",
    "distributed/backends/watchdog.py before_close": "aborts: nothing is accessed",
    "distributed/backends/rank_progress.py __init__": "stores use no device",
    "distributed/backends/rank_progress.py _last_call_of": "stores use no device",
    "distributed/backends/rank_progress.py publish_progress": "stores use no device",
    "distributed/work.py wait": "raised some lines below",
    "distributed/world.py leave": "aborts: nothing is accessed",
    "driver/cuda/device/host_calls.py _run": "raised where the host waits",
    "driver/cuda/libraries/native_library.py load_library": "an import",
    "driver/cuda/probe.py cudnn_version": "an import",
    "driver/virtual/collective_calls.py _meet": "below the detector",
    "multiprocessing/spawn.py _wrap": "raised by the parent; the child's report has it, too",
    "nn/parallel/distributed.py _check_default_group": "asks for a group",
    "nn/parallel/parallel_apply.py _apply_module": "raised again where all replicas are done",
    "observe/indexed/place_map.py region_of": "places are computed on the host",
    "observe/tracing/gpu_timing.py records": "below the detector",
    "ops/pointwise/expression.py _slope": "formulas use no device",
    "ops/index/indexing.py _broadcast_values": "shapes use no device",
    "ops/index/indexing.py body": "shapes use no device",
    "ops/index/indexing.py index_places": "below the detector",
    "ops/pointwise/pointwise.py _common_dtype": "types use no device",
    "ops/pointwise/pointwise.py _accepts": "types use no device",
    "runtime/memory_reports/oom_message.py _stream": "a stream's name",
    "runtime/devices/machine.py _finish": "a wait at the end: nothing is accessed, and errors are shown",
    "runtime/memory_reports/snapshot.py stream": "a stream's name",
    "runtime/system.py close_quietly": "a wait at the end: nothing is accessed",
    "runtime/system.py is_available": "counts devices",
    "serialization/archive.py __init__": "reads a file: uses no device",
    "serialization/archive.py read_into": "reads a file into memory of the host: uses no device",
    "tensor/exchange/transfer.py is_contiguous": "shapes use no device",
    "tensor/functions/views.py unflatten": "shapes use no device",
    "testing/runs.py _outcome": "an outcome of the explored program",
    "testing/soundness/executor.py _run": "an outcome of the generated program",
}
# fmt: on


def handlers() -> list[tuple[str, ast.ExceptHandler | ast.Call]]:
    """Each handler that catches a RaceError and may keep it, by file and function."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        visit(ast.parse(path.read_text()), path.relative_to(PACKAGE).as_posix(), "", found)
    return found


def visit(node: ast.AST, file: str, function: str, found: list[Any]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Try):
            found += [(f"{file} {function}", handler) for handler in keeping(child)]
        suppresses = isinstance(child, ast.Call) and ast.unparse(child.func).endswith("suppress")
        if suppresses and {ast.unparse(arg) for arg in child.args} & BROAD:
            found.append((f"{file} {function}", child))
        visit(child, file, inner, found)


def keeping(block: ast.Try) -> list[ast.ExceptHandler]:
    """The broad handlers of a `try` that neither raise what they caught nor come after one that does."""
    found = []
    for handler in block.handlers:
        caught = names(handler)
        if "RaceError" in caught:
            return found if raises(handler) else [*found, handler]
        if caught & BROAD and not raises(handler):
            found.append(handler)
    return found


def names(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {"BaseException"}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(each) for each in types}


def raises(handler: ast.ExceptHandler) -> bool:
    """Whether it ends with a plain `raise`, and nothing leaves it before."""
    leaving = (ast.Return, ast.Continue, ast.Break)
    inside = [node for statement in handler.body for node in ast.walk(statement)]
    last = handler.body[-1]
    return (
        isinstance(last, ast.Raise)
        and last.exc is None
        and not any(isinstance(node, leaving) for node in inside)
    )


def test_every_broad_handler_lets_races_pass_or_is_known() -> None:
    places = {place for place, _ in handlers()}
    assert sorted(places - KEPT.keys()) == [], "let RaceError pass: `except RaceError: raise` before it"
    assert sorted(KEPT.keys() - places) == [], "these handlers are gone"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("try: f()\nexcept Exception: pass", 1),
        ("try: f()\nexcept: pass", 1),
        ("try: f()\nexcept (ValueError, RuntimeError) as e: g(e)", 1),
        ("try: f()\nexcept RuntimeError as e: raise ValueError from e", 1),
        ("try: f()\nexcept Exception:\n    if g(): raise", 1),
        ("try: f()\nexcept Exception:\n    for x in y:\n        return 1\n    raise", 1),
        ("with contextlib.suppress(OSError, Exception): f()", 1),
        ("try: f()\nexcept RaceError: pass\nexcept Exception: raise", 1),
        ("try: f()\nexcept RaceError: raise\nexcept Exception: pass", 0),
        ("try: f()\nexcept Exception:\n    g()\n    raise", 0),
        ("try: f()\nexcept (OSError, KeyError): pass", 0),
    ],
)
def test_the_reading_sees_what_keeps_a_race(code: str, count: int) -> None:
    found: list[Any] = []
    visit(ast.parse(code), "x.py", "", found)
    assert len(found) == count


# -- by injection: a race at each call of the driver ----------------------------------------------------------


class RacyDriver(FaultDriver):
    """Its n-th call that touches memory is a race."""

    def __init__(self, inner: Any, nth: int) -> None:
        super().__init__(inner, [])
        self.calls, self.nth = 0, nth

    def _may_fail(self, call: str, name: str = "") -> bool:
        self.calls += 1
        if self.calls == self.nth:
            raise RaceError(f"injected at {call} {name}")
        return False


@contextmanager
def racing(nth: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A virtual machine with a race at the n-th call after `begin()`; it gives the driver."""
    drivers = []

    class Watcher:
        def before_open(self, machine: Any) -> None:
            machine.driver = RacyDriver(machine.driver, 0)
            drivers.append(machine.driver)

        def after_open(self, machine: Any) -> None: ...
        def before_close(self, machine: Any) -> None: ...

    monkeypatch.setattr(system, "_watchers", [Watcher()])
    with torch.virtual(devices=2):
        torch.cuda.init()
        (driver,) = drivers

        def begin() -> None:
            driver.calls, driver.nth = 0, nth

        driver.begin = begin
        yield driver
        driver.nth = 0


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def load_state_dict(begin: Any) -> None:
    model, state = small().cuda(), small().state_dict()
    begin()
    model.load_state_dict(state)


def load_state_dict_of_the_device(begin: Any) -> None:
    model, state = small().cuda(), small().cuda().state_dict()
    begin()
    model.load_state_dict(state, strict=False)


def optimizer(begin: Any) -> None:
    model = small().cuda()
    adam = torch.optim.Adam(model.parameters())
    begin()
    F.mse_loss(model(torch.ones(3, 4, device="cuda")), torch.zeros(3, 2, device="cuda")).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    torch.optim.Adam(model.parameters()).load_state_dict(copy.deepcopy(adam.state_dict()))


def mixed_precision(begin: Any) -> None:
    model = small().cuda()
    sgd, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
    begin()
    with torch.autocast("cuda"):
        loss = model(torch.ones(3, 4, device="cuda")).sum()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()


def loader(begin: Any) -> None:
    data = DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2, pin_memory=True)
    begin()
    for (batch,) in data:
        batch.to("cuda", non_blocking=True).sum().item()


def data_parallel(begin: Any) -> None:
    model = nn.DataParallel(nn.Linear(4, 2).cuda())
    begin()
    model(torch.ones(4, 4, device="cuda")).sum().backward()


def checkpointed(begin: Any) -> None:
    model, x = small().cuda(), torch.ones(3, 4, device="cuda", requires_grad=True)
    begin()
    checkpoint(model, x, use_reentrant=False).sum().backward()


def always_called_hooks(begin: Any) -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("the module's own")

    model = Failing()
    model.register_forward_hook(lambda *_: torch.ones(2, device="cuda").sum().item(), always_call=True)
    begin()
    with pytest.raises(ValueError, match="own"):
        model(torch.ones(1))


def futures(begin: Any) -> None:
    future: Any = Future()
    future.add_done_callback(lambda _: torch.ones(2, device="cuda").add_(1))
    child = future.then(lambda f: f.value() + torch.ones(2, device="cuda"))
    begin()
    future.set_result(torch.zeros(2, device="cuda"))
    child.wait().sum().item()


def checkpoints(begin: Any) -> None:
    file, x = io.BytesIO(), {"x": torch.ones(5, device="cuda")}
    begin()
    torch.save(x, file)
    file.seek(0)
    torch.load(file)["x"].tolist()


def printing(begin: Any) -> None:
    x = torch.arange(2000.0, device="cuda")
    begin()
    repr(x)
    torch.testing.assert_close(x, x.clone())
    torch.distributions.Normal(x[:3], x[:3] + 1).log_prob(x[:3]).sum().item()


def gradients(begin: Any) -> None:
    x = torch.ones(3, dtype=torch.float64, device="cuda", requires_grad=True)
    begin()
    torch.autograd.gradcheck(lambda x: (x * x).sin(), (x,))
    torch.autograd.functional.jacobian(lambda x: x * x, x.detach())


def graphs(begin: Any) -> None:
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    begin()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    y.tolist()


def collectives(begin: Any) -> None:
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    try:
        begin()
        x = torch.ones(3, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        work.is_completed()
        work.wait()
        x.sum().item()
    finally:
        dist.destroy_process_group()


PROGRAMS = [
    load_state_dict, load_state_dict_of_the_device, optimizer, mixed_precision, loader, data_parallel, checkpointed,
    always_called_hooks, futures, checkpoints, printing, gradients, graphs, collectives,
]  # fmt: skip
MOST = 25  # calls of a program into which a race is put


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_race_at_any_call_reaches_the_program(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with racing(0, monkeypatch) as driver:
        program(driver.begin)
        count = driver.calls
    assert count > 1
    for nth in sorted({1 + i * (count - 1) // (MOST - 1) for i in range(MOST)}):
        with racing(nth, monkeypatch) as driver, pytest.raises(RaceError, match="injected at"):
            program(driver.begin)
