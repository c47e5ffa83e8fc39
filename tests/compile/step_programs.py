"""Random functions of tensors, modules and optimizers, called often while the program changes what they read.

The functions have no side effects but on tensors, so that a graph may stand for a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from random_programs import bits

import flambeau as torch

SHAPE = (4, 6)
OPERATORS = (
    "add", "mul", "relu", "tanh", "matmul", "sum", "view", "transpose", "add_", "copy_", "slice_", "dropout", "scale",
    "buffer", "layer", "norm", "cast", "where", "noise", "out",
)  # fmt: skip


class State:
    """The state that a function reads in addition to its arguments."""

    def __init__(self) -> None:
        self.scale = 0.5
        self.buffer = torch.randn(SHAPE, device="cuda")
        self.options = {"slope": 0.25, "keep": [1.0, 2.0]}
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.25)
        ).cuda()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.01, momentum=0.9)


class Steps:
    """One run of a random function. Two runs with equal seeds differ only in how the function is called.

    Args:
        seed: Decides everything.
        wrap: Makes the function that is called of the one that is written.
    """

    def __init__(self, seed: str, wrap: Callable[[Any], Any]) -> None:
        self.choice = random.Random(seed)
        torch.manual_seed(self.choice.randrange(1 << 30))
        self.state = State()
        self.plan = [
            (self.choice.choice(OPERATORS), self.choice.random(), self.choice.random())
            for _ in range(self.choice.randint(1, 8))
        ]
        self.trains = self.choice.random() < 0.4
        self.returns = self.choice.choice(["last", "all", "nested", "argument", "view"])
        self.detaches = self.choice.random() < 0.6
        self.function = wrap(self.write())
        self.log: list[Any] = []
        self.kept: list[Any] = []  # the latest results, with their graphs

    def write(self) -> Callable[[Any, Any], Any]:
        """Return the function."""
        state, plan, trains, returns = self.state, self.plan, self.trains, self.returns
        detaches = self.detaches

        def run(x: Any, y: Any) -> Any:
            values = [x, y]
            for name, first, second in plan:
                a, b = values[int(first * len(values))], values[int(second * len(values))]
                values.append(apply(name, a, b, state))
            last = values[-1]
            if trains and torch.is_grad_enabled():
                state.optimizer.zero_grad()
                output = state.layer(last.float())
                loss = output.square().mean()
                loss.backward()
                state.optimizer.step()
                if detaches:
                    last = last + loss.detach()
                else:
                    last, values = loss.view(1, 1), [x, y, output, *values[2:], output[1:].t(), loss]
            results = [t.detach() if detaches else t for t in (last, *values[2:])]
            return {
                "last": results[0], "all": tuple(results), "nested": {"a": [results[0], 3], "b": (None, results[-1])},
                "argument": (x, results[0]), "view": (x[1:], results[0][:, 2:]),
            }[returns]  # fmt: skip

        return run

    # -- what the program does ------------------------------------------------------------------------
    def run(self, calls: int) -> list[Any]:
        """Call the function, with changes between the calls. Return what the program observes."""
        x, y = self.fresh(), self.fresh()
        for _ in range(calls):
            for _ in range(self.choice.choice([0, 1, 1])):
                x, y = self.change(x, y)
            self.call(x, y)
        return self.log

    def fresh(self) -> Any:
        t = torch.randn(SHAPE, device="cuda")
        if self.choice.random() < 0.3:
            t = torch.randn(SHAPE[::-1], device="cuda").t()
        return t

    def call(self, x: Any, y: Any) -> None:
        self.log.append(self.choice.random())
        try:
            with torch.set_grad_enabled(self.choice.random() < 0.8):
                result = self.function(x, y)
        except (RuntimeError, ValueError) as error:
            self.log.append((type(error).__name__, str(error)))
            return
        shown: list[Any] = []
        collect(result, shown)
        self.kept = shown
        self.log += [bits(t) for t in shown]
        self.log += [
            (t._version, [t is other for other in shown], describe_graph(t, self.state)) for t in shown
        ]
        for t in shown:
            if t.requires_grad and self.choice.random() < 0.3:
                self.log.append(differentiate(t))
        self.log += [(bits(t), t._version, t.requires_grad) for t in (x, y, self.state.buffer)]
        for t in (*self.state.layer.parameters(), *self.state.layer.buffers()):
            self.log += [bits(t), t._version, None if t.grad is None else bits(t.grad)]
        self.log.append(torch.cuda.get_rng_state().tolist())

    def change(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Change arguments or state, and return the arguments of the next call."""
        state, kind = self.state, self.choice.randrange(16)
        if kind < 5:
            return self.fresh(), self.choice.choice([y, self.fresh()])
        if kind == 5:
            return x, self.choice.choice([x, x[:], x.clone()])
        if kind == 6:
            return torch.stack([self.fresh(), self.fresh()])[1], y
        if kind == 7:
            x.add_(1)
        elif kind == 8:
            state.scale = self.choice.choice([0.5, 2, 0.25])
        elif kind == 9:
            state.options["keep"][0] += 1
        elif kind == 10:
            state.layer.train(not state.layer.training)
        elif kind == 11:
            state.buffer = self.choice.choice([state.buffer * 2, state.buffer])
        elif kind == 12:
            with torch.no_grad():
                state.layer[0].weight.mul_(0.9)
        elif kind == 13:
            state.optimizer.param_groups[0]["lr"] = self.choice.choice([0.01, 0.1])
        elif kind == 14:
            state.layer.zero_grad(set_to_none=self.choice.random() < 0.5)
        else:
            state.layer[0].weight.data = state.layer[0].weight.data.clone()
        return x, y


def describe_graph(t: Any, state: State) -> list[Any]:
    """Return the names of a result's nodes, with the numbers of the nodes and leaves that their edges lead to."""
    if not t.requires_grad:
        return []
    leaves = {id(p): k for k, p in enumerate(state.layer.parameters())}
    nodes, found = [t.grad_fn], [t.is_leaf, t.output_nr, t._base is None]
    numbers = {t.grad_fn: 0}
    for node in nodes:
        for each, _ in () if node is None else node.next_functions:
            if each is not None and each not in numbers:
                numbers[each] = len(nodes)
                nodes.append(each)
        if node is not None:
            of = getattr(node, "variable", None)
            edges = [(numbers.get(each), index) for each, index in node.next_functions]
            found.append((node.name(), edges, None if of is None else leaves.get(id(of), -1)))
    return found


def differentiate(t: Any) -> Any:
    """Run backward from a result, and return its error."""
    try:
        t.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def collect(value: Any, into: list[Any]) -> None:
    """Append the tensors of a nested value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            collect(each, into)
    elif isinstance(value, torch.Tensor):
        into.append(value)


def apply(name: str, a: Any, b: Any, state: State) -> Any:
    """Run an operator of a random function. Its result has the shape `SHAPE`."""
    if name == "slice_":
        a[:, 1:4] = b[:, :3] * state.scale
        return a
    if name == "out":
        return torch.add(a, b, out=torch.empty_like(a))
    return {
        "add": lambda: a + b, "mul": lambda: a * b, "relu": lambda: (a - b).relu(), "tanh": a.tanh,
        "matmul": lambda: (a @ b.t()) @ b, "sum": lambda: a - b.sum(0, keepdim=True), "view": lambda: a.view(SHAPE),
        "transpose": lambda: a.t().contiguous().t(), "add_": lambda: a.add_(b, alpha=state.options["slope"]),
        "copy_": lambda: a.copy_(b * 2), "dropout": lambda: torch.nn.functional.dropout(a, 0.5),
        "scale": lambda: a * state.scale + state.options["keep"][0], "buffer": lambda: state.buffer.add_(a).clone(),
        "layer": lambda: state.layer(a), "norm": lambda: (a - a.mean(-1, keepdim=True)) / (a.std() + 1),
        "cast": lambda: a.to(torch.bfloat16).float(), "where": lambda: torch.where(a > b, a, b),
        "noise": lambda: a + torch.randn_like(b),
    }[name]()  # fmt: skip


def observed_steps(seed: str, wrap: Callable[[Any], Any], calls: int = 12) -> tuple[list[Any], str]:
    """Return the log of a run on a new virtual GPU, and its report of races."""
    with torch.virtual(races="warn", poison=True) as machine:
        log = Steps(seed, wrap).run(calls)
        torch.cuda.synchronize()
        races = [str(race) for race in machine._machine.driver.detector.races]
    return log, "\n".join(races)
