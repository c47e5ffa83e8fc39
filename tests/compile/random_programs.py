"""Random programs of tensor operations, which log everything that they can observe: for runs in two modes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import alias_actions
import numpy as np

import flambeau as torch

SHAPES = ((4, 6), (6,), (1, 6), (4, 1), (), (2, 4, 6))
LONG_SHAPES = ((40, 60), (60,), (40, 1), (2, 40, 60), ())  # of which memory shows what the allocator gives
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16", "int64", "float64")
UNARY = ("neg", "abs", "relu", "sin", "tanh", "sigmoid", "square", "sign", "exp", "isnan", "clone")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2", "lt", "ge", "eq", "div", "pow", "fmod")
IN_PLACE = ("add_", "mul_", "sub_", "copy_", "clamp_", "fill_", "zero_", "masked_fill_", "neg_", "relu_")
VIEWS = ("row", "step", "t", "expand", "reshape", "detach", "unsqueeze", "alias", "chunk", "real")


def bits(t: Any) -> Any:
    """Return what a tensor shows: dtype, layout and the bits of its elements. A NaN's sign and payload do not count."""
    meta = (str(t.dtype), tuple(t.shape), t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf)
    host = t.detach().cpu()
    host = (
        torch.where(host == host, host, host.new_full((), float("nan"))) if host.is_floating_point() else host
    )
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.view(torch.int16)
    return (*meta, np.ascontiguousarray(host.numpy()).tobytes())


class Walk(alias_actions.AliasActions):
    """One run of a random program. Its decisions depend on the seed and on what it observes, and on nothing else.

    Attributes:
        choice: The source of decisions.
        log: What the program observed.
        values: The tensors of the program.
        wrap: Wraps functions as the run's mode says: `torch.compile` or nothing.
    """

    def __init__(self, seed: str, wrap: Callable[[Any], Any]) -> None:
        self.choice = random.Random(seed)
        self.shapes = LONG_SHAPES if self.choice.random() < 0.2 else SHAPES
        self.wrap = wrap
        self.log: list[Any] = []
        torch.manual_seed(self.choice.randrange(1 << 30))
        self.values = [self.fresh() for _ in range(4)]
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.depth = 0

    def fresh(self) -> Any:
        shape, kind = self.choice.choice(self.shapes), getattr(torch, self.choice.choice(DTYPES))
        if kind is torch.int64:
            return torch.randint(-5, 5, shape, device="cuda")
        t = torch.randn(shape, device="cuda").to(kind)
        return t.requires_grad_() if self.choice.random() < 0.3 else t

    # -- running --------------------------------------------------------------------------------------
    def run(self, rounds: int, steps: int) -> list[Any]:
        """Run compiled functions of random steps, with steps between them. Returns the log."""
        for _ in range(rounds):
            function = self.wrap(self.body)
            for _ in range(self.choice.randint(1, 2)):
                self.attempt(lambda function=function: function(self.choice.randint(1, steps)))
            self.step()
            self.observe()
        self.attempt(lambda: self.values.extend(self.gradients()))
        self.observe(everything=True)
        return self.log

    def body(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        action = self.choice.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.attempt(lambda: getattr(self, action)())

    def attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except (RuntimeError, TypeError, IndexError, NotImplementedError, ValueError) as error:
            self.log.append((type(error).__name__, str(error)))

    def any(self) -> Any:
        return self.choice.choice(self.values)

    def keep(self, t: Any) -> None:
        """Store a tensor in place of another one, which often dies by that."""
        if len(self.values) < 8 and self.choice.random() < 0.3:
            self.values.append(t)
        else:
            self.values[self.choice.randrange(len(self.values))] = t

    def gradients(self) -> list[Any]:
        return [t.grad for t in self.values if t.is_leaf and t.grad is not None]

    def observe(self, everything: bool = False) -> None:
        shown = self.values if everything else [self.any()]
        for t in shown:
            self.attempt(lambda t=t: self.log.append((bits(t), t._version)))

    # -- pointwise ------------------------------------------------------------------------------------
    def unary(self) -> None:
        self.keep(getattr(torch, self.choice.choice(UNARY))(self.any()))

    def binary(self) -> None:
        other = self.choice.choice([self.any(), self.any(), 2, -0.5, True, torch.tensor(1.5)])
        self.keep(getattr(torch, self.choice.choice(BINARY))(self.any(), other))

    def scalar_first(self) -> None:
        self.keep(self.choice.choice([3.0, -1, 0.1]) - self.any() * self.choice.choice([2, 0.3]))

    def where(self) -> None:
        self.keep(torch.where(self.any() > self.any(), self.any(), self.any()))

    def chain(self) -> None:
        """A chain whose intermediates die."""
        x = self.any()
        for _ in range(self.choice.randint(2, 5)):
            x = getattr(torch, self.choice.choice(BINARY[:5]))(x, self.choice.choice([x, self.any(), 0.7]))
        self.keep(x)

    def long_chain(self) -> None:
        x = self.any()
        for k in range(40):
            x = x * 0.9 + k
        self.keep(x)

    def cast(self) -> None:
        self.keep(self.any().to(getattr(torch, self.choice.choice(DTYPES))))

    def addcmul(self) -> None:
        self.keep(torch.addcmul(self.any(), self.any(), self.any(), value=0.5))

    def gelu(self) -> None:
        self.keep(torch.nn.functional.gelu(self.any(), approximate=self.choice.choice(["none", "tanh"])))

    # -- views and writes -----------------------------------------------------------------------------
    def view(self) -> None:
        t, kind = self.any(), self.choice.choice(VIEWS)
        made = {
            "row": lambda: t[0], "step": lambda: t[..., ::2], "t": lambda: t.transpose(0, -1),
            "expand": lambda: t.expand(2, *t.shape), "reshape": lambda: t.reshape(-1), "detach": t.detach,
            "unsqueeze": lambda: t.unsqueeze(0), "alias": lambda: t.view(t.shape), "chunk": lambda: t.chunk(2)[-1],
            "real": lambda: t.real,
        }[kind]()  # fmt: skip
        self.keep(made)

    def in_place(self) -> None:
        name, t = self.choice.choice(IN_PLACE), self.any()
        arguments = {
            "clamp_": lambda: (-1, 1), "fill_": lambda: (self.choice.choice([2, 0.5, self.any()]),), "zero_": tuple,
            "masked_fill_": lambda: (self.any() > 0, 3), "neg_": tuple, "relu_": tuple,
        }.get(name, lambda: (self.choice.choice([self.any(), self.any(), 0.5]),))()  # fmt: skip
        self.keep(getattr(t, name)(*arguments))

    def write_after_read(self) -> None:
        """A result that is pending while its input changes."""
        t = self.any()
        result = t * 3 + 1
        with torch.no_grad():
            t.detach().mul_(-1)
        self.keep(result - t)

    def out(self) -> None:
        target, a, b = self.any(), self.any(), self.any()
        if a.shape != b.shape and (target is a or target is b):
            return  # a resize would let the operator read what it writes
        try:
            torch.add(a, b, out=target)
        except RuntimeError:
            target.detach().zero_()  # it may be resized, and show memory that nothing has set
            raise

    def halves(self) -> None:
        """Rotate the halves of rows, as rotary embeddings do, and interleave them."""
        x = self.any() * 0.5
        a, b = x.chunk(2, -1)
        if self.choice.random() < 0.5:
            self.keep(torch.cat((-b, a * self.any()), self.choice.choice([-1, 0])) + self.any())
        else:
            self.keep(torch.stack((a + self.any(), b), -1).flatten(-2))

    def soften(self) -> None:
        """Compute a softmax of a masked result, and more from it."""
        x, soft = self.any().float() * 0.5, self.choice.choice([torch.softmax, torch.log_softmax])
        y = soft(x.masked_fill(self.any() > 1, -1e9), self.choice.choice([-1, -1, 0]))
        self.keep(self.choice.choice([y * 0.9, y + x, y[..., 1:] * 2, torch.nn.functional.dropout(y, 0.4)]))
        if self.choice.random() < 0.2:
            self.keep(self.choice.choice([x, y]))

    def normalize(self) -> None:
        """Normalize rows of a sum, and compute with the result."""
        x = self.any().float() + self.any()
        if not x.ndim:
            return
        weight, functional = torch.ones(x.shape[-1], device="cuda") * 0.5, torch.nn.functional
        if self.choice.random() < 0.5:
            y = functional.layer_norm(x, x.shape[-1:], weight, self.choice.choice([None, weight + 1]))
        else:
            y = functional.rms_norm(x, x.shape[-1:], self.choice.choice([None, weight]))
        self.keep(self.choice.choice([y * 0.9, y + x, y[..., 1:] * 2, y.half()]))
        if self.choice.random() < 0.2:
            self.keep(self.choice.choice([x, y]))

    def classify(self) -> None:
        """Compute the loss of classes, and its gradient."""
        w = torch.randn(4, 6, device="cuda", requires_grad=True)
        scores = w * self.any().detach().float()
        if scores.shape != w.shape:
            return
        target, functional = torch.tensor([0, 5, 2, -100], device="cuda"), torch.nn.functional
        loss = functional.cross_entropy(scores, target, label_smoothing=self.choice.choice([0.0, 0.1]))
        loss.backward()
        self.keep(self.choice.choice([loss.detach(), w.grad]))

    def turned(self) -> None:
        """Read views of a result that dies, or that lives on."""
        x = self.any() + self.any()
        y = self.choice.choice(
            [lambda: x.transpose(0, -1), lambda: x[..., 1:], lambda: x.reshape(-1), lambda: x[None]]
        )()
        z = torch.relu(y) * self.choice.choice([y, 2, x.mT if x.ndim > 1 else x])
        self.keep(self.choice.choice([z, z[..., ::2].contiguous(), z.reshape(-1) - 1]))
        if self.choice.random() < 0.3:
            self.keep(self.choice.choice([x, y]))
        if self.choice.random() < 0.3:
            self.choice.choice([x, y]).mul_(self.any())

    def put(self) -> None:
        self.any()[..., 0] = self.choice.choice([5, self.any()])

    def swap_data(self) -> None:
        t, other = self.any(), self.any()
        t.data = (other * 2).detach()

    def resize(self) -> None:
        t = self.any().detach() + 1
        t.resize_(3, 3).fill_(2)
        self.keep(t)

    # -- rows -----------------------------------------------------------------------------------------
    def rows(self) -> None:
        """Combine elements with reductions of their rows."""
        x = self.any()
        for _ in range(self.choice.randint(1, 3)):
            dims = self.choice.choice([-1, -1, (-1, -2), 0])
            fold = getattr(x, self.choice.choice(["sum", "mean", "amax", "amin"]))(
                dims, self.choice.random() < 0.8
            )
            x = getattr(torch, self.choice.choice(BINARY[:5]))(x * 0.5, fold + 1)
            if self.choice.random() < 0.2:
                self.keep(fold)
        self.keep(x)

    def center(self) -> None:
        """Change rows in place by the results of their reduction."""
        x = self.any()
        self.keep(x.sub_(x.mean(-1, keepdim=True)).mul_(self.any().amax(-1, keepdim=True)))

    # -- what cannot be fused -------------------------------------------------------------------------
    def reduce(self) -> None:
        t = self.any()
        self.keep(self.choice.choice([t.sum, lambda: t.amax(-1, keepdim=True), lambda: t.cumsum(0)])())

    def norm(self) -> None:
        x = self.any().float()
        self.keep((x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-3).sqrt())

    def product(self) -> None:
        x = self.any().float()
        self.keep((x @ x.transpose(-1, -2)).relu() * 0.1)

    def branch(self) -> None:
        t = self.any() * 2 - 1
        if t.float().sum().item() > 0:
            self.keep(t + 1)
        elif bool((t > 0).any()):
            self.keep(-t)

    def show(self) -> None:
        self.log.append(str(self.any() * 2))

    def address(self) -> None:
        t = self.any() + 1
        self.log.append(
            (t.data_ptr() % 16, t.untyped_storage().nbytes(), (t.view(-1).data_ptr() == t.data_ptr()))
        )

    def wrong(self) -> None:
        x = self.any() + 1
        try:
            torch.ones(5, 7, device="cuda") + x
        finally:
            self.keep(x * 2)

    def stop(self) -> None:
        """An exception that leaves the compiled function."""
        self.keep(self.any() * 0.5 + 1)
        raise ValueError("stop")

    def random(self) -> None:
        t = self.any()
        noise = torch.rand(t.shape, device="cuda") * 2 - 1
        self.keep(torch.nn.functional.dropout(t * noise, 0.3, training=True) + 1)

    def host(self) -> None:
        self.keep((self.any() * 2).cpu().cuda() + 1)

    def devices(self) -> None:
        t = self.any() + 1
        other = t.to("cuda:1") * 2 + 1
        self.keep(t * other.to("cuda:0"))

    def stream(self) -> None:
        stream, current = self.choice.choice(self.streams), torch.cuda.current_stream()
        t = self.any() * 2
        self.lend(stream, t)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                t = t + self.any() * 3
                self.chain()
        finally:
            current.wait_stream(stream)
            self.lend(current, t)
        self.keep(t - 1)

    def event(self) -> None:
        t = self.any() * 2 + 1
        event = torch.cuda.Event()
        event.record()
        self.lend(self.streams[0], t)
        with torch.cuda.stream(self.streams[0]):
            self.streams[0].wait_event(event)
            t = t.float() * t
        self.lend(torch.cuda.current_stream(), t)
        torch.cuda.current_stream().wait_stream(self.streams[0])
        self.keep(t + 1)

    def lend(self, stream: Any, *more: Any) -> None:
        """Let a stream use all tensors, which may be freed before it is done."""
        for t in (*self.values, *more):
            t.record_stream(stream)

    # -- modes ----------------------------------------------------------------------------------------
    def nested(self, run: Callable[[], None] | None = None) -> None:
        if self.depth < 2:
            self.depth += 1
            try:
                (run or self.wrap(lambda: self.body(3)))()
            finally:
                self.depth -= 1

    def disabled(self) -> None:
        self.nested(torch.compiler.disable(lambda: self.body(2)))

    def within(self, manager: Any) -> None:
        def run() -> None:
            with manager:
                self.body(3)

        self.nested(run)

    def autocast(self) -> None:
        self.within(torch.autocast("cuda", dtype=self.choice.choice([torch.float16, torch.bfloat16])))

    def no_grad(self) -> None:
        self.within(torch.no_grad())

    # -- gradients ------------------------------------------------------------------------------------
    def backward(self) -> None:
        t = self.any()
        loss = (t.float() * t.float()).tanh().mean()
        loss.backward(retain_graph=self.choice.random() < 0.3)
        self.log += [bits(g) for g in self.gradients()]

    def grad(self) -> None:
        w = torch.randn(4, 6, device="cuda", requires_grad=True)
        y = (w * self.any().detach().float()).sin() * 2
        y = self.choice.choice(
            [y, y.softmax(-1), torch.log_softmax(y, -1) - 1, torch.nn.functional.rms_norm(y, (6,))]
        )
        if self.choice.random() < 0.5:
            y.register_hook(lambda g: g * 2 + 1)
        if self.choice.random() < 0.3:
            (w.detach() if self.choice.random() < 0.5 else y).mul_(2)  # may make the backward raise
        (g,) = torch.autograd.grad(y.sum(), w, create_graph=self.choice.random() < 0.3)
        self.keep(g * 2)

    def packed(self) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda()):
            w = torch.randn(4, 6, device="cuda", requires_grad=True)
            y = (w * 2).exp() * w
        y.sum().backward()
        self.keep(w.grad)

    def optimizer(self) -> None:
        w = torch.nn.Parameter(torch.randn(4, 6, device="cuda"))
        optimizer = self.choice.choice([torch.optim.SGD, torch.optim.Adam])([w], lr=0.1)
        for _ in range(2):
            ((w * w + 1) * 0.5).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        self.keep(w.detach())


ACTIONS = {
    "unary": 8, "binary": 10, "scalar_first": 4, "where": 3, "chain": 6, "long_chain": 0.5, "cast": 2, "addcmul": 2, "gelu": 1,
    "view": 6, "in_place": 6, "write_after_read": 2, "out": 2, "put": 2, "halves": 3, "turned": 4, "soften": 3, "normalize": 2, "classify": 1, "swap_data": 1, "resize": 1,
    "rows": 4, "center": 2, "reduce": 2, "norm": 2, "product": 1, "branch": 2, "show": 1, "address": 1, "wrong": 1, "stop": 0.5, "random": 1,
    "host": 1, "devices": 1, "stream": 2, "event": 1, "nested": 0.5, "disabled": 0.5, "autocast": 1, "no_grad": 1,
    "backward": 2, "grad": 2, "packed": 1, "optimizer": 0.5, **alias_actions.ACTIONS,
}  # fmt: skip


def observed(
    seed: str, wrap: Callable[[Any], Any], rounds: int = 4, steps: int = 8
) -> tuple[list[Any], int, str]:
    """Return the log of a program on new virtual GPUs, its peak of memory, and its report of races."""
    with torch.virtual(devices=2, races="warn") as machine:
        log = Walk(seed, wrap).run(rounds, steps)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        races = [str(race) for race in machine._machine.driver.detector.races]
    return log, peak, "\n".join(races)
