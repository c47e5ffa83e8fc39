"""Steps that order others (events, waits of streams, host waits), and polls, whose answers depend on timing."""

from __future__ import annotations

from typing import Any

from flambeau.testing.soundness.model import Model, need
from flambeau.testing.soundness.program_steps import Draw, Operation, operation

EVENTS = {"e0": 0, "e1": 0, "e2": 0, "f0": 1, "f1": 1}  # by name: device


class Synchronization(Operation):
    synchronizes = True
    on_stream = False


@operation
class WaitStream(Synchronization):
    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.stream(), draw.stream()

    def apply(self, model: Model, later: str, earlier: str) -> None:
        need(later != earlier)
        if model.capture is not None:
            need(earlier in model.captured and later != "main" and model.device_of[later] == 0)
            model.captured[later] = model.captured.get(later, 0) | model.captured[earlier]
            return
        need(model.is_in_order(model.users.get(earlier)))
        model.wait(later, model.nodes_before_next(earlier))

    def source(self, later: str, earlier: str) -> str:
        return f"{later}.wait_stream({earlier})"


@operation
class Record(Synchronization):
    weight = 5

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        event = draw.one(list(EVENTS))
        return event, draw.stream(EVENTS[event])

    def apply(self, model: Model, event: str, stream: str) -> None:
        need(model.device_of[stream] == EVENTS[event])
        model.record(event, stream)

    def source(self, event: str, stream: str) -> str:
        return f"{event}.record({stream})"


@operation
class WaitEvent(Synchronization):
    weight = 5

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.stream(), draw.one(list(EVENTS))

    def apply(self, model: Model, later: str, event: str) -> None:
        known = model.nodes_before_record(event)
        if event in model.events:  # else CUDA does nothing, and the stream is not given anything
            model.wait(later, known)

    def source(self, later: str, event: str) -> str:
        return f"{later}.wait_event({event})"


@operation
class SynchronizeEvent(Synchronization):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.one(list(EVENTS)),)

    def apply(self, model: Model, event: str) -> None:
        model.host_waits(model.nodes_before_record(event))

    def source(self, event: str) -> str:
        return f"{event}.synchronize()"


@operation
class SynchronizeStream(Synchronization):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.stream(),)

    def apply(self, model: Model, stream: str) -> None:
        need(model.is_in_order(model.users.get(stream)))
        model.host_waits(model.streams[stream])

    def source(self, stream: str) -> str:
        return f"{stream}.synchronize()"


@operation
class SynchronizeDevice(Synchronization):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.one((0, 0, 0, 1)),)

    def apply(self, model: Model, device: int) -> None:
        need(model.is_alone() and not (model.ranks and device != model.host.number))
        model.synchronize(device)

    def source(self, device: int) -> str:
        return f"torch.cuda.synchronize({device})"


@operation
class Busy(Operation):
    """A step that keeps a stream busy for a while, so that schedules by time choose an unusual order."""

    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (10 ** draw.one((3, 4, 5, 6)),)

    def apply(self, model: Model, cycles: int) -> None:
        model.launch()

    def source(self, cycles: int) -> str:
        return f"torch.cuda._sleep({cycles})"


# -- what asks ----------------------------------------------------------------------------------------------


@operation
class Query(Operation):
    feature = "questions"
    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.stream(),)

    def apply(self, model: Model, stream: str) -> None:
        model.withheld.add("question")

    def source(self, stream: str) -> str:
        return f"seen.append({stream}.query())"
