"""Random programs over tensors with gradients, run by PyTorch and by Flambeau: what `test_tape_programs.py` compares.

A program is a list of steps; each names tensors of a growing pool by number. `Machine(torch).run(program)` runs it
with one library and notes after each step what a program can see of every tensor, or the type of the error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

Step = tuple[Any, ...]

UNARY = ["sin", "tanh", "neg", "abs", "sigmoid", "square", "clone", "detach", "exp", "relu", "contiguous"]
BINARY = ["add", "sub", "mul", "div", "maximum", "atan2"]
IN_PLACE = ["sin_", "tanh_", "neg_", "zero_", "sigmoid_", "relu_", "exp_", "detach_", "t_", "square_"]
IN_PLACE_2 = ["add_", "sub_", "mul_", "copy_"]
VIEWS: dict[str, Callable[[Any], Any]] = {
    "first": lambda t: t[0],
    "last": lambda t: t[-1],
    "tail": lambda t: t[1:],
    "steps": lambda t: t[..., ::2],
    "t": lambda t: t.t(),
    "flat": lambda t: t.view(-1),
    "reshape": lambda t: t.t().reshape(-1),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "squeeze": lambda t: t.squeeze(),
    "expand": lambda t: t.expand(2, *t.shape),
    "diagonal": lambda t: t.diagonal(),
    "narrow": lambda t: t.narrow(-1, 0, 2),
    "alias": lambda t: t[:],
    "permute": lambda t: t.permute(1, 0),
    "as_strided": lambda t: t.as_strided((2,), (1,)),
    "unfold": lambda t: t.unfold(-1, 2, 2),
    "view_as": lambda t: t.view_as(t),
}
PLACES: dict[str, Any] = {"row": 0, "rest": slice(1, None), "list": [0, 1], "dots": Ellipsis, "last": -1}
SEVERAL: dict[str, Callable[[Any], Any]] = {
    "split": lambda t: t.split(1),
    "unbind": lambda t: t.unbind(0),
    "chunk": lambda t: t.chunk(2, -1),
    "sort": lambda t: t.sort(-1)[:1],
    "max": lambda t: t.max(0)[:1],
    "tensor_split": lambda t: t.tensor_split(2),
}
REDUCE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda t: t.sum(),
    "rows": lambda t: t.sum(0),
    "mean": lambda t: t.mean(-1, keepdim=True),
    "cumsum": lambda t: t.cumsum(0),
    "softmax": lambda t: t.softmax(-1),
    "prod": lambda t: t.prod(),
    "index": lambda t: t[[0, 0]],
    "mask": lambda t: t[t > 0],
    "amax": lambda t: t.amax(0),
    "pad": lambda t: t.new_zeros(4, 5).index_add(0, t.new_ones(2).long(), t.new_ones(2, 5)) + t.sum(),
}


class Machine:
    """One library running a program."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        new = lib.tensor
        self.pool = [
            new([[0.5, -1.25, 2.0], [0.75, 0.1, -0.3]], dtype=lib.float64, requires_grad=True),
            new([[1.5, 0.25, -0.5], [-0.125, 0.4, 0.9]], dtype=lib.float64, requires_grad=True),
            new([0.3, -0.6, 0.2], dtype=lib.float64),
            new(0.7, dtype=lib.float64, requires_grad=True),
        ]
        self.born: list[int] = []
        self.recording = True
        self.calls: list[Any] = []

    def run(self, program: list[Step]) -> list[Any]:
        """What can be seen after each step; ends with a walk that fails, which may leave anything behind."""
        notes: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in program:
                before = len(self.pool)
                try:
                    with self.lib.set_grad_enabled(self.recording):
                        getattr(self, step[0])(*step[1:])
                    outcome: Any = "ok"
                except Exception as error:
                    del self.pool[before:]
                    del self.born[before:]
                    outcome = type(error).__name__, str(error)
                self.born += [t._version for t in self.pool[len(self.born) :]]
                seen = [self.seen(t, born) for t, born in zip(self.pool, self.born, strict=True)]
                notes.append((step, outcome, seen, list(self.calls)))
                if outcome != "ok" and step[0] in ("backward", "grad"):
                    break
        return notes

    def t(self, i: int) -> Any:
        return self.pool[i % len(self.pool)]

    def seen(self, t: Any, born: int) -> dict[str, Any]:
        """What a program can see of a tensor. Its version counts from its birth: PyTorch may have written it twice."""
        found: dict[str, Any] = {
            "version": t._version - born,
            "values": t.detach().tolist(),
            "shape": tuple(t.shape),
        }
        try:
            found["requires_grad"] = t.requires_grad
            found["is_leaf"] = t.is_leaf
            found["grad_fn"] = None if t.grad_fn is None else type(t.grad_fn).__name__
            found["grad"] = None if t.grad is None else t.grad.detach().tolist()
            found["grad_tracked"] = t.grad is not None and t.grad.requires_grad
            found["output_nr"] = t.output_nr
            found["retains"] = t.retains_grad
            found["is_view"] = t._is_view()
        except RuntimeError as error:
            found["error"] = str(error)[:40]
        return found

    # -- steps --------------------------------------------------------------------------------------------

    def unary(self, i: int, name: str) -> None:
        self.pool.append(getattr(self.t(i), name)())

    def binary(self, i: int, j: int, name: str) -> None:
        self.pool.append(getattr(self.lib, name)(self.t(i), self.t(j)))

    def scalar(self, i: int, name: str) -> None:
        self.pool.append(getattr(self.t(i), name)(1.5))

    def in_place(self, i: int, name: str) -> None:
        getattr(self.t(i), name)()

    def in_place_2(self, i: int, j: int, name: str) -> None:
        getattr(self.t(i), name)(self.t(j))

    def in_place_scalar(self, i: int, name: str) -> None:
        getattr(self.t(i), name)(1.5)

    def view(self, i: int, name: str) -> None:
        self.pool.append(VIEWS[name](self.t(i)))

    def several(self, i: int, name: str) -> None:
        self.pool.extend(SEVERAL[name](self.t(i)))

    def reduce(self, i: int, name: str) -> None:
        self.pool.append(REDUCE[name](self.t(i)))

    def set_item(self, i: int, place: str, j: int) -> None:
        self.t(i)[PLACES[place]] = self.t(j)

    def set_scalar(self, i: int, place: str) -> None:
        self.t(i)[PLACES[place]] = 0.5

    def join(self, i: int, j: int, name: str) -> None:
        self.pool.append(getattr(self.lib, name)([self.t(i), self.t(j)]))

    def where(self, i: int, j: int) -> None:
        self.pool.append(self.lib.where(self.t(i) > 0, self.t(i), self.t(j)))

    def matmul(self, i: int, j: int) -> None:
        self.pool.append(self.t(i) @ self.t(j))

    def record(self, on: bool) -> None:
        self.recording = on

    def require(self, i: int, on: bool) -> None:
        self.t(i).requires_grad_(on)

    def hook(self, i: int, factor: float) -> None:
        def scale(grad: Any) -> Any:
            self.calls.append((factor, tuple(grad.shape)))
            return grad * factor if factor != 1 else None

        self.t(i).register_hook(scale)

    def post_hook(self, i: int) -> None:
        self.t(i).register_post_accumulate_grad_hook(lambda t: self.calls.append(tuple(t.grad.shape)))

    def retain(self, i: int) -> None:
        self.t(i).retain_grad()

    def clear(self, i: int) -> None:
        self.t(i).grad = None

    def data(self, i: int) -> None:
        self.t(i).data.mul_(2)

    def bump(self, i: int) -> None:
        self.lib.autograd.graph.increment_version(self.t(i))

    def seed(self, t: Any) -> Any:
        return None if t.dim() == 0 else self.lib.ones_like(t) * 0.5

    def backward(self, i: int, retain: bool, create: bool) -> None:
        self.t(i).backward(self.seed(self.t(i)), retain_graph=retain, create_graph=create)

    def grad(self, i: int, j: int, create: bool) -> None:
        (found,) = self.lib.autograd.grad(
            self.t(i), self.t(j), self.seed(self.t(i)), create_graph=create, retain_graph=True
        )
        self.pool.append(found)

    def backward_into(self, i: int, j: int) -> None:
        self.t(i).backward(self.seed(self.t(i)), retain_graph=True, inputs=[self.t(j)])
