"""Steps that access only the elements that an index selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flambeau.testing.soundness.model import Model, ModelView, contiguous_strides, need
from flambeau.testing.soundness.program_steps import INDEX_SLOTS, Draw, Operation, operation

PLACES = ((0, 1, 2, 3), (4, 5, 6, 7), (5, 4, 7), (2, 6), (0, 3, 6))


@operation
class Index(Operation):
    """An operation that creates an index. The host waits for its copy."""

    weight = 1
    feature = "indexed"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(INDEX_SLOTS), draw.one(PLACES)

    def apply(self, model: Model, name: str, places: tuple[int, ...]) -> None:
        view = replace(model.allocate((len(places),), "int64"), values=places)
        model.launch(writes=[view])
        model.host_waits(model.streams[model.here])
        model.bind(name, view)

    def source(self, name: str, places: tuple[int, ...]) -> str:
        return f'{name} = torch.tensor({list(places)}, device="cuda")'


def index(model: Model, name: str) -> ModelView:
    view = model[name]
    need(view.values is not None and view.device == model.device)
    return view


class Indexed(Operation):
    feature = "indexed"
    weight = 2

    def place(self, draw: Draw) -> str:
        return draw.draw_name(lambda view: view.values is not None and view.device == draw.model.device)

    def rows(self, draw: Draw, dimensions: int | None = None) -> str:
        return draw.tensor(
            lambda view: self.fits(view) and len(view.shape) == (dimensions or len(view.shape))
        )

    def fits(self, view: ModelView) -> bool:
        return bool(view.shape) and view.shape[0] >= 8 and not view.expanded and view.numel <= 300


class Changing(Indexed):
    """An operation that changes the rows that an index names."""

    reads = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return self.rows(draw), self.place(draw), draw.number()

    def apply(self, model: Model, name: str, at: str, value: int) -> None:
        view, places = model.tensor(name), index(model, at)
        need(self.fits(view))
        rows = (view, view.at(places.values or ()))
        model.launch([places, rows] if self.reads else [places], [rows])


@operation
class IndexPut(Changing):
    def source(self, name: str, at: str, value: int) -> str:
        return f"{name}[{at}] = {value}"


@operation
class IndexFill(Changing):
    def source(self, name: str, at: str, value: int) -> str:
        return f"{name}.index_fill_(0, {at}, {value})"


class ChangingFrom(Indexed):
    """A step that updates the rows that an index selects with the rows of a source."""

    reads = False
    dimensions: int | None = None

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        name, at = self.rows(draw, self.dimensions), self.place(draw)
        view, places = draw.model[name], draw.model[at]
        return name, at, draw.tensor(lambda v: self.is_source(v, view, places))

    def is_source(self, source: ModelView, view: ModelView, places: ModelView) -> bool:
        shape = (places.numel, *view.shape[1:])
        return source.shape == shape and source.dtype == view.dtype

    def apply(self, model: Model, name: str, at: str, source: str) -> None:
        view, places, given = model.tensor(name), index(model, at), model.tensor(source)
        need(self.fits(view) and self.is_source(given, view, places) and not given.overlaps(view))
        need(len(view.shape) == (self.dimensions or len(view.shape)))
        rows = (view, view.at(places.values or ()))
        model.launch([places, given, rows] if self.reads else [places, given], [rows])


@operation
class IndexCopy(ChangingFrom):
    def source(self, name: str, at: str, source: str) -> str:
        return f"{name}.index_copy_(0, {at}, {source})"


@operation
class IndexAdd(ChangingFrom):
    reads = True

    def source(self, name: str, at: str, source: str) -> str:
        return f"{name}.index_add_(0, {at}, {source})"


@operation
class Scatter(ChangingFrom):
    dimensions = 1

    def source(self, name: str, at: str, source: str) -> str:
        return f"{name}.scatter_(0, {at}, {source})"


class Selecting(Indexed):
    """An operation that creates a tensor of the rows that an index names."""

    dimensions: int | None = None

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), self.rows(draw, self.dimensions), self.place(draw)

    def apply(self, model: Model, name: str, source: str, at: str) -> None:
        given, places = model.tensor(source), index(model, at)
        need(self.fits(given) and len(given.shape) == (self.dimensions or len(given.shape)))
        view = model.allocate((places.numel, *given.shape[1:]), given.dtype)
        assert view.strides == contiguous_strides(view.shape)
        model.launch([places, (given, given.at(places.values or ()))], [view])
        model.bind(name, view)


@operation
class IndexSelect(Selecting):
    def source(self, name: str, source: str, at: str) -> str:
        return f"{name} = {source}.index_select(0, {at})"


@operation
class Take(Selecting):
    def source(self, name: str, source: str, at: str) -> str:
        return f"{name} = {source}[{at}]"


@operation
class Gather(Selecting):
    dimensions = 1

    def source(self, name: str, source: str, at: str) -> str:
        return f"{name} = {source}.gather(0, {at})"


@operation
class Embedding(Selecting):
    dimensions = 2

    def source(self, name: str, source: str, at: str) -> str:
        return f"{name} = torch.nn.functional.embedding({at}, {source})"
