"""Steps that create, read and change tensors of a device, show them as views, and release them."""

from __future__ import annotations

from typing import Any

from flambeau.testing.soundness.model import Model, ModelView, need
from flambeau.testing.soundness.program_steps import Draw, Operation, operation

SHAPES = ((64,), (64,), (64,), (8, 8), (8, 8), (300,))
LARGE = (270_000,)  # elements: more than 1 MiB


def apart(target: ModelView, *sources: ModelView) -> None:
    """Require that elements of the target do not share memory, and that sources are the target or share none with
    it.
    """
    need(not target.expanded)
    for source in sources:
        need(source.same_place(target) or not source.overlaps(target))


class Creation(Operation):
    """An operation that binds a new tensor to a name."""


@operation
class New(Creation):
    weight = 6

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        shape = LARGE if draw.chance(0.02) and draw.model.capture is None else draw.one(SHAPES)
        return draw.slot(), shape, draw.number()

    def apply(self, model: Model, name: str, shape: tuple[int, ...], value: int) -> None:
        view = model.allocate(shape)
        model.launch(writes=[view])
        model.bind(name, view)

    def source(self, name: str, shape: tuple[int, ...], value: int) -> str:
        return f'{name} = torch.full({shape}, {value}.0, device="cuda")'


@operation
class Empty(Creation):
    weight = 0.5

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.one(SHAPES)

    def apply(self, model: Model, name: str, shape: tuple[int, ...]) -> None:
        model.bind(name, model.allocate(shape))

    def source(self, name: str, shape: tuple[int, ...]) -> str:
        return f'{name} = torch.empty({shape}, device="cuda")'


@operation
class Add(Creation):
    weight = 8

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.tensor(), draw.number()

    def apply(self, model: Model, name: str, source: str, value: int) -> None:
        given = model.tensor(source)
        view = model.allocate(given.shape, given.dtype)
        model.launch([given], [view])
        model.bind(name, view)

    def source(self, name: str, source: str, value: int) -> str:
        return f"{name} = {source} + {value}"


@operation
class Half(Creation):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.tensor(lambda view: view.dtype == "float32")

    def apply(self, model: Model, name: str, source: str) -> None:
        given = model.tensor(source)
        need(given.dtype == "float32")
        view = model.allocate(given.shape, "float16")
        model.launch([given], [view])
        model.bind(name, view)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.half()"


@operation
class Total(Creation):
    weight = 2

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.tensor()

    def apply(self, model: Model, name: str, source: str) -> None:
        given = model.tensor(source)
        view = model.allocate((), given.dtype)
        model.launch([given], [view])
        model.bind(name, view)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.sum()"


@operation
class Sort(Creation):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.tensor(lambda view: bool(view.shape) and view.numel <= 300)

    def apply(self, model: Model, name: str, source: str) -> None:
        given = model.tensor(source)
        need(given.shape and given.numel <= 300)
        view, places = model.allocate(given.shape, given.dtype), model.temporary(given.shape, "int64")
        model.launch([given], [view, places])
        model.release(places.storage)
        model.bind(name, view)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.sort().values"


@operation
class Cat(Creation):
    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        first = draw.tensor(lambda view: len(view.shape) == 1 and view.numel <= 300)
        dtype = draw.model[first].dtype
        return (
            draw.slot(),
            first,
            draw.tensor(lambda v: len(v.shape) == 1 and v.numel <= 300 and v.dtype == dtype),
        )

    def apply(self, model: Model, name: str, first: str, second: str) -> None:
        one, other = model.tensor(first), model.tensor(second)
        need(len(one.shape) == len(other.shape) == 1 and one.dtype == other.dtype)
        view = model.allocate((one.numel + other.numel,), one.dtype)
        model.launch([one, other], [view])
        model.bind(name, view)

    def source(self, name: str, first: str, second: str) -> str:
        return f"{name} = torch.cat([{first}, {second}])"


@operation
class Keep(Creation):
    """A copy of a tensor's present elements, shown at the program's end."""

    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.tensor(),)

    def apply(self, model: Model, source: str) -> None:
        given = model.tensor(source)
        copy = model.temporary(given.shape, given.dtype)
        model.launch([given], [copy], copies=True)
        model.kept.append(copy.storage.life)

    def source(self, source: str) -> str:
        return f"kept.append({source}.clone())"


# -- changes in place ---------------------------------------------------------------------------------------


@operation
class Update(Operation):
    """Two in-place changes of one kind. Such changes commute only with each other."""

    weight = 9

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.tensor(lambda view: not view.expanded), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model.tensor(name)
        apart(view)
        model.launch([view], [view])

    def source(self, name: str, value: int) -> str:
        return f"{name}.mul_(-0.5).add_({value})"


@operation
class Fill(Operation):
    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.tensor(lambda view: not view.expanded), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model.tensor(name)
        apart(view)
        model.launch(writes=[view])

    def source(self, name: str, value: int) -> str:
        return f"{name}.fill_({value})"


@operation
class Into(Operation):
    weight = 4

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        target = draw.tensor(lambda view: not view.expanded)
        shape, dtype = draw.model[target].shape, draw.model[target].dtype
        return target, draw.tensor(lambda view: view.shape == shape and view.dtype == dtype), draw.number()

    def apply(self, model: Model, target: str, source: str, value: int) -> None:
        to, given = model.tensor(target), model.tensor(source)
        need(to.shape == given.shape and to.dtype == given.dtype and not to.same_place(given))
        apart(to, given)
        model.launch([given], [to])

    def source(self, target: str, source: str, value: int) -> str:
        return f"torch.add({source}, {value}, out={target})"


@operation
class Copy(Operation):
    weight = 2

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        target = draw.tensor(lambda view: not view.expanded)
        shape = draw.model[target].shape
        return target, draw.tensor(lambda view: view.shape == shape)

    def apply(self, model: Model, target: str, source: str) -> None:
        to, given = model.tensor(target), model.tensor(source)
        need(to.shape == given.shape and not to.overlaps(given))
        apart(to)
        model.launch([given], [to])

    def source(self, target: str, source: str) -> str:
        return f"{target}.copy_({source})"


@operation
class Temporary(Operation):
    """A change by a tensor that has no name."""

    weight = 2

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.tensor(lambda view: not view.expanded), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model.tensor(name)
        apart(view)
        between = model.temporary(view.shape, view.dtype)
        model.launch([view], [between])
        model.launch([between], [view])
        model.release(between.storage)

    def source(self, name: str, value: int) -> str:
        return f"{name}.copy_({value} - {name})"


@operation
class Grow(Operation):
    """An operation that resizes a tensor, which moves it to new memory."""

    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.tensor(_can_grow), draw.number())

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model.tensor(name)
        need(_can_grow(view))
        storage, old = view.storage, view.storage.life
        larger = model.allocate((2 * view.numel,), view.dtype)
        new = larger.storage.life
        before = ModelView(type(storage)(old, storage.device), 0, view.shape, view.strides, view.dtype)
        model.launch([(before, (1 << old.nbytes) - 1)], [(larger, (1 << old.nbytes) - 1)])
        before.storage.recorded, storage.recorded = storage.recorded, set()
        storage.life = new
        model.release(before.storage)
        grown = ModelView(storage, 0, larger.shape, larger.strides, view.dtype)
        model.bind(name, grown)
        model.launch(writes=[grown])

    def source(self, name: str, value: int) -> str:
        return f"{name}.resize_(2 * {name}.numel()).fill_({value})"


def _can_grow(view: ModelView) -> bool:
    return (
        view.contiguous
        and not view.offset
        and view.numel * 4 == view.storage.life.nbytes
        and view.numel <= 300
    )


@operation
class Randomize(Operation):
    """An operation that draws random numbers. The host counts them, so they do not depend on the schedule."""

    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.tensor(lambda view: not view.expanded),)

    def apply(self, model: Model, name: str) -> None:
        view = model.tensor(name)
        apart(view)
        model.launch(writes=[view])

    def source(self, name: str) -> str:
        return f"{name}.random_(0, 50)"


# -- views --------------------------------------------------------------------------------------------------


class Viewing(Operation):
    """A step that assigns another view of a tensor to a name, on the host alone."""

    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        source = draw.draw_name(lambda view: view.is_ordinary and view.device >= 0 and self.fits(view))
        return draw.slot(), source, *self.choose(draw, draw.model[source])

    def fits(self, view: ModelView) -> bool:
        raise NotImplementedError

    def choose(self, draw: Draw, view: ModelView) -> tuple[Any, ...]:
        return ()

    def view(self, view: ModelView, *arguments: Any) -> ModelView:
        raise NotImplementedError

    def apply(self, model: Model, name: str, source: str, *arguments: Any) -> None:
        given = model[source]
        need(given.is_ordinary and given.device >= 0 and self.fits(given))
        model.bind(name, self.view(given, *arguments))


@operation
class Slice(Viewing):
    weight = 3

    def fits(self, view: ModelView) -> bool:
        return len(view.shape) == 1 and view.shape[0] >= 16

    def choose(self, draw: Draw, view: ModelView) -> tuple[Any, ...]:
        half = view.shape[0] // 2
        return draw.one(
            [(0, half, 1), (half, 2 * half, 1), (0, 2 * half, 2), (1, 2 * half, 2), (half // 2, half, 1)]
        )

    def view(self, view: ModelView, begin: int, end: int, step: int) -> ModelView:
        need(end <= view.shape[0])
        size = -(-(end - begin) // step)
        stride = view.strides[0]
        return ModelView(view.storage, view.offset + begin * stride, (size,), (step * stride,), view.dtype)

    def source(self, name: str, source: str, begin: int, end: int, step: int) -> str:
        return f"{name} = {source}[{begin}:{end}{f':{step}' if step > 1 else ''}]"


@operation
class Column(Viewing):
    weight = 1

    def fits(self, view: ModelView) -> bool:
        return len(view.shape) == 2

    def choose(self, draw: Draw, view: ModelView) -> tuple[Any, ...]:
        return (draw.one(range(view.shape[1])),)

    def view(self, view: ModelView, at: int) -> ModelView:
        need(at < view.shape[1])
        return ModelView(
            view.storage, view.offset + at * view.strides[1], view.shape[:1], view.strides[:1], view.dtype
        )

    def source(self, name: str, source: str, at: int) -> str:
        return f"{name} = {source}[:, {at}]"


@operation
class Transpose(Viewing):
    weight = 1

    def fits(self, view: ModelView) -> bool:
        return len(view.shape) == 2

    def view(self, view: ModelView) -> ModelView:
        return ModelView(view.storage, view.offset, view.shape[::-1], view.strides[::-1], view.dtype)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.t()"


@operation
class Square(Viewing):
    weight = 1

    def fits(self, view: ModelView) -> bool:
        return view.shape == (64,)

    def view(self, view: ModelView) -> ModelView:
        stride = view.strides[0]
        return ModelView(view.storage, view.offset, (8, 8), (8 * stride, stride), view.dtype)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.view(8, 8)"


@operation
class Expand(Viewing):
    weight = 1

    def fits(self, view: ModelView) -> bool:
        return len(view.shape) == 1 and view.shape[0] >= 16

    def view(self, view: ModelView) -> ModelView:
        return ModelView(view.storage, view.offset, (2, 8), (0, view.strides[0]), view.dtype)

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}[:8].expand(2, 8)"


# -- ends ---------------------------------------------------------------------------------------------------


@operation
class Delete(Operation):
    weight = 5
    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.draw_name(lambda view: not view.weight),)

    def apply(self, model: Model, name: str) -> None:
        model.drop(name)

    def source(self, name: str) -> str:
        return f"del {name}"


@operation
class RecordStream(Operation):
    weight = 2
    synchronizes = True
    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        name = draw.draw_name(lambda view: view.device >= 0)
        return name, draw.stream(draw.model[name].device)

    def apply(self, model: Model, name: str, stream: str) -> None:
        view = model[name]
        need(view.device >= 0 and view.device == model.device_of[stream] and view.storage.life.pool)
        if view.storage.life.pool[1] != stream:
            view.storage.recorded.add(stream)

    def source(self, name: str, stream: str) -> str:
        return f"{name}.record_stream({stream})"


@operation
class EmptyCache(Operation):
    weight = 1
    synchronizes = True
    on_stream = False

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return ()

    def apply(self, model: Model) -> None:
        need(model.is_alone() and not model.ranks)
        model.settle()

    def source(self) -> str:
        return "torch.cuda.empty_cache()"
