"""`Step`: one statement of a program, as data. `Operation`: the effect, the source and the random choices of a kind of
step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from flambeau.testing.soundness.model import Invalid, Model, ModelView

_T = TypeVar("_T")
SLOTS = ("x", "y", "z", "u", "v", "w")  # names of tensors on devices
INDEX_SLOTS = ("i", "j")
WEIGHT_SLOTS = ("p", "q")
GRAPH_SLOTS = ("graph0", "graph1")
HOST_SLOTS = ("h", "g")  # slots of pinned memory
ARRAY_SLOTS = ("a", "b")  # slots of NumPy arrays


class Step(NamedTuple):
    """One statement.

    Attributes:
        operation: The key of its `Operation`.
        arguments: The arguments of the operation; names and numbers.
        stream: The current stream of the statement; "" for any stream.
        host: The thread or rank that executes it.
        inner: The statements of its block.
    """

    operation: str
    arguments: tuple[Any, ...] = ()
    stream: str = ""
    host: int = 0
    inner: tuple[Step, ...] = ()


class Draw:
    """Random choices that fit a model's state. A choice from nothing raises Invalid."""

    def __init__(self, rng: random.Random, model: Model, features: frozenset[str]) -> None:
        self.rng, self.model, self.features = rng, model, features
        self.streams: Sequence[str] = ()  # the streams of the host for which steps are drawn
        self._last = 12

    def one(self, options: Sequence[_T]) -> _T:
        if not options:
            raise Invalid
        return options[int(self.rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def number(self) -> int:
        """Return a prime that no step had before: values of different orders hardly ever agree by chance."""
        self._last += 1
        while any(self._last % n == 0 for n in range(2, int(self._last**0.5) + 1)):
            self._last += 1
        return self._last

    def slot(self, slots: Sequence[str] = SLOTS) -> str:
        return self.one(slots)

    def tensor(self, fits: Callable[[ModelView], bool] = lambda view: True) -> str:
        """Return the name of a tensor on the current device."""
        return self.draw_name(
            lambda view: view.is_ordinary and view.device == self.model.device and fits(view)
        )

    def pinned_name(self, fits: Callable[[ModelView], bool] = lambda view: True) -> str:
        return self.draw_name(lambda view: view.device < 0 and view.kind == "tensor" and fits(view))

    def draw_name(self, fits: Callable[[ModelView], bool]) -> str:
        names = self.model.host.names
        return self.one([name for name in sorted(names) if fits(names[name])])

    def stream(self, device: int | None = None) -> str:
        of = self.model.device_of
        return self.one([name for name in self.streams if device is None or of[name] == device])


class Operation:
    """A kind of step.

    Attributes:
        weight: Its relative frequency.
        feature: The generator's switch that enables it.
        synchronizes: True if its purpose is to order others.
        on_stream: True if it enqueues work to the current stream.
    """

    weight: float = 1
    feature = ""
    synchronizes = False
    on_stream = True

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        """Return arguments. Raises Invalid where there are none."""
        raise NotImplementedError

    def apply(self, model: Model, *arguments: Any) -> None:
        """Change the model as the step does. Raises Invalid, before any change, where the step does not fit."""
        raise NotImplementedError

    def source(self, *arguments: Any) -> str:
        """Return the statement; of a block, its first line."""
        raise NotImplementedError

    def hosts(self, step: Step) -> tuple[int, ...]:
        """Return the hosts that execute a step."""
        return (step.host,)

    def source_of(self, host: int, *arguments: Any) -> str:
        """Return the statement for one step of this operation."""
        return self.source(*arguments)


class BlockOperation(Operation):
    """A kind of step with inner steps.

    Attributes:
        inner: The possible kinds of the inner steps.
        captures: True if the block captures a graph.
    """

    inner: tuple[str, ...] = ()
    captures = False

    def begin(self, model: Model, *arguments: Any) -> None:
        raise NotImplementedError

    def end(self, model: Model, *arguments: Any) -> None:
        """Check the state at the block's end. Raises Invalid if the inner steps leave an invalid one."""
        raise NotImplementedError


OPERATIONS: dict[str, Operation] = {}


def operation(kind: type[Operation]) -> type[Operation]:
    """Register a kind of step by its class's name: `WaitStream` becomes "wait_stream"."""
    name = "".join([f"_{c.lower()}" if c.isupper() else c for c in kind.__name__]).lstrip("_")
    OPERATIONS[name] = kind()
    return kind
