"""Steps that capture and launch CUDA graphs, and autocast blocks, whose cache of casts several streams use."""

from __future__ import annotations

from typing import Any

from flambeau.testing.soundness.model import CASTS, Model, ModelView, need
from flambeau.testing.soundness.program_steps import (
    GRAPH_SLOTS,
    WEIGHT_SLOTS,
    BlockOperation,
    Draw,
    Operation,
    operation,
)


@operation
class Capture(BlockOperation):
    """A step that captures a graph. Steps of other streams follow a `wait_stream`, by which these join the capture."""

    weight = 2
    feature = "graphs"
    captures = True
    on_stream = False
    inner = (
        "new",
        "add",
        "update",
        "fill",
        "into",
        "copy",
        "temporary",
        "wait_stream",
        "delete",
        "total",
        "randomize",
        "sort",
    )

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.one([n for n in GRAPH_SLOTS if n not in draw.model.graphs]), draw.one(
            [s for s in draw.streams if draw.model.device_of[s] == 0 and s != "main"]
        )

    def begin(self, model: Model, name: str, origin: str) -> None:
        need(name not in model.graphs and model.device_of[origin] == 0 and origin != "main")
        need(model.casts is None and model.is_alone() and not model.ranks)
        model.begin_capture(origin)

    def end(self, model: Model, name: str, origin: str) -> None:
        model.end_capture(name)

    def source(self, name: str, origin: str) -> str:
        return f"{name} = torch.cuda.CUDAGraph()\nwith torch.cuda.graph({name}, stream={origin}):"


@operation
class Replay(Operation):
    weight = 6
    feature = "graphs"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.one(sorted(draw.model.graphs)),)

    def apply(self, model: Model, name: str) -> None:
        need(name in model.graphs and model.device == 0)
        model.replay(model.graphs[name])

    def source(self, name: str) -> str:
        return f"{name}.replay()"


# -- autocast -----------------------------------------------------------------------------------------------


@operation
class Weight(Operation):
    """An operation that creates a parameter of a layer."""

    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(WEIGHT_SLOTS), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model.allocate((8, 8), weight=True)
        model.launch(writes=[view])
        model.bind(name, view)

    def source(self, name: str, value: int) -> str:
        return f'{name} = torch.full((8, 8), {value % 8 + 1}.0, device="cuda", requires_grad=True)'


@operation
class Autocast(BlockOperation):
    weight = 4
    feature = "autocast"
    inner = ("linear", "linear", "linear", "wait_stream")
    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        draw.draw_name(lambda view: view.weight)
        return ()

    def begin(self, model: Model) -> None:
        need(model.casts is None and model.capture is None)
        model.casts = {}

    def end(self, model: Model) -> None:
        casts, model.casts = model.casts, None
        for cast in (casts or {}).values():
            model.release(cast.storage)
        model.changes.append(model.touch(CASTS))

    def source(self) -> str:
        return 'with torch.autocast("cuda", torch.float16), torch.no_grad():'


@operation
class Linear(Operation):
    """A product in lower precision. The parameter is cast once in each block, on the stream that uses it first."""

    weight = 0

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        name = draw.draw_name(lambda view: view.weight and view.device == draw.model.device)
        return draw.slot(), name, draw.tensor(lambda view: view.shape == (8, 8))

    def apply(self, model: Model, name: str, weight: str, source: str) -> None:
        given, parameter = model.tensor(source), model[weight]
        need(model.casts is not None and parameter.weight and parameter.device == model.device)
        need(given.shape == (8, 8))
        cast = _cast_parameter(model, parameter)
        lower = given
        if given.dtype == "float32":
            lower = model.temporary(given.shape, "float16")
            model.launch([given], [lower])
        view = model.allocate((8, 8), "float16")
        model.launch([cast, lower], [view])
        if lower is not given:
            model.release(lower.storage)
        model.bind(name, view)

    def source(self, name: str, weight: str, source: str) -> str:
        return f"{name} = {weight} @ {source}"


def _cast_parameter(model: Model, parameter: ModelView) -> ModelView:
    """Return the cast of a parameter, which is created if there is none."""
    assert model.casts is not None
    key = id(parameter)
    if key in model.casts:
        model.questions.append(model.touch(CASTS))
    else:
        model.casts[key] = model.temporary(parameter.shape, "float16")
        model.launch([parameter], [model.casts[key]])
    return model.casts[key]
