"""Steps of the host: pinned memory and copies from and to it, NumPy arrays that show it, values that are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flambeau.testing.soundness.model import Model, ModelView, need
from flambeau.testing.soundness.program_steps import ARRAY_SLOTS, HOST_SLOTS, Draw, Operation, operation

SHAPES = ((64,), (64,), (8, 8))


def non_blocking_text(non_blocking: bool) -> str:
    return ", non_blocking=True" if non_blocking else ""


class HostStep(Operation):
    on_stream = False


@operation
class Pin(HostStep):
    weight = 2

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(HOST_SLOTS), draw.one(SHAPES), draw.number()

    def apply(self, model: Model, name: str, shape: tuple[int, ...], value: int) -> None:
        model.bind(name, model.new_pinned(shape))

    def source(self, name: str, shape: tuple[int, ...], value: int) -> str:
        return f"{name} = torch.full({shape}, {value}.0).pin_memory()"


@operation
class WriteHost(HostStep):
    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.pinned_name(), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model[name]
        need(view.device < 0 and view.kind == "tensor")
        model.host_access(view, True)

    def source(self, name: str, value: int) -> str:
        return f"{name}.fill_({value})"


@operation
class ReadHost(HostStep):
    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.pinned_name(),)

    def apply(self, model: Model, name: str) -> None:
        view = model[name]
        need(view.device < 0 and view.kind == "tensor")
        model.host_access(view, False)

    def source(self, name: str) -> str:
        return f"seen.append({name}.tolist())"


@operation
class HalfOfPinned(HostStep):
    """An operation that binds a view of pinned memory."""

    weight = 1

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        source = draw.pinned_name(lambda view: len(view.shape) == 1 and view.shape[0] >= 16)
        return draw.slot(HOST_SLOTS), source, draw.chance(0.5)

    def apply(self, model: Model, name: str, source: str, second: bool) -> None:
        view = model[source]
        need(view.device < 0 and view.kind == "tensor" and len(view.shape) == 1 and view.shape[0] >= 16)
        half = view.shape[0] // 2
        model.bind(name, replace(view, offset=view.offset + (half if second else 0), shape=(half,)))

    def source(self, name: str, source: str, second: bool) -> str:
        return (
            f"{name} = {source}[{source}.numel() // 2:]"
            if second
            else f"{name} = {source}[:{source}.numel() // 2]"
        )


# -- copies -------------------------------------------------------------------------------------------------


@operation
class Upload(Operation):
    weight = 4

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        from_slot = draw.pinned_name(lambda view: view.contiguous)
        return draw.slot(), from_slot, draw.chance(0.8)

    def apply(self, model: Model, name: str, source: str, non_blocking: bool) -> None:
        given = model[source]
        need(given.device < 0 and given.kind == "tensor" and given.contiguous)
        view = model.allocate(given.shape, given.dtype)
        model.launch([given], [view], copies=True)
        if not non_blocking:
            model.host_waits(model.streams[model.here])
        model.bind(name, view)

    def source(self, name: str, source: str, non_blocking: bool) -> str:
        return f'{name} = {source}.to("cuda"{non_blocking_text(non_blocking)})'


@operation
class UploadConverted(Operation):
    """An operation that copies to the device and converts there."""

    weight = 2
    feature = "converting"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(), draw.pinned_name(lambda view: view.contiguous and view.dtype == "float32")

    def apply(self, model: Model, name: str, source: str) -> None:
        given = model[source]
        need(given.device < 0 and given.kind == "tensor" and given.contiguous and given.dtype == "float32")
        landing, view = model.temporary(given.shape), model.allocate(given.shape, "float16")
        model.launch([given], [landing], copies=True)
        model.launch([landing], [view])
        model.release(landing.storage)
        model.bind(name, view)

    def source(self, name: str, source: str) -> str:
        return f'{name} = {source}.to("cuda", torch.float16, non_blocking=True)'


@operation
class UploadInto(Operation):
    weight = 3

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        target = draw.tensor(lambda view: view.contiguous)
        shape, dtype = draw.model[target].shape, draw.model[target].dtype
        source = draw.pinned_name(
            lambda view: view.shape == shape and view.dtype == dtype and view.contiguous
        )
        return target, source, draw.chance(0.8)

    def apply(self, model: Model, target: str, source: str, non_blocking: bool) -> None:
        to, given = model.tensor(target), model[source]
        need(given.device < 0 and given.kind == "tensor" and given.contiguous and to.contiguous)
        need((to.shape, to.dtype) == (given.shape, given.dtype))
        model.launch([given], [to], copies=True)
        if not non_blocking:
            model.host_waits(model.streams[model.here])

    def source(self, target: str, source: str, non_blocking: bool) -> str:
        return f"{target}.copy_({source}{non_blocking_text(non_blocking)})"


@operation
class Download(Operation):
    weight = 4

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        target = draw.pinned_name(lambda view: view.contiguous)
        shape, dtype = draw.model[target].shape, draw.model[target].dtype
        source = draw.tensor(lambda view: view.shape == shape and view.dtype == dtype)
        return target, source, draw.chance(0.8)

    def apply(self, model: Model, target: str, source: str, non_blocking: bool) -> None:
        to, given = model[target], model.tensor(source)
        need(to.device < 0 and to.kind == "tensor" and to.contiguous)
        need((to.shape, to.dtype) == (given.shape, given.dtype))
        download(model, to, given)
        if not non_blocking:
            model.host_waits(model.streams[model.here])

    def source(self, target: str, source: str, non_blocking: bool) -> str:
        return f"{target}.copy_({source}{non_blocking_text(non_blocking)})"


def download(model: Model, to: ModelView, given: ModelView) -> None:
    """Copy a tensor to the host; a tensor with gaps goes through a contiguous temporary."""
    if given.contiguous:
        model.launch([given], [to], copies=True)
        return
    packed = model.temporary(given.shape, given.dtype)
    model.launch([given], [packed])
    model.launch([packed], [to], copies=True)
    model.release(packed.storage)


@operation
class ToHost(Operation):
    """A copy into new pinned memory, which PyTorch allocates for non-blocking copies."""

    weight = 2

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(HOST_SLOTS), draw.tensor(lambda view: view.contiguous and view.numel <= 300)

    def apply(self, model: Model, name: str, source: str) -> None:
        given = model.tensor(source)
        need(given.contiguous)
        to = model.new_pinned(given.shape, given.dtype)
        model.launch([given], [to], copies=True)
        model.bind(name, to)

    def source(self, name: str, source: str) -> str:
        return f'{name} = {source}.to("cpu", non_blocking=True)'


# -- values -------------------------------------------------------------------------------------------------


@operation
class Item(Operation):
    weight = 1
    synchronizes = True

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.tensor(),)

    def apply(self, model: Model, name: str) -> None:
        view = model.tensor(name)
        total = model.temporary((), view.dtype)
        model.launch([view], [total])
        model.launch([total])
        model.release(total.storage)
        model.host_waits(model.streams[model.here])

    def source(self, name: str) -> str:
        return f"seen.append({name}.sum().item())"


@operation
class ToList(Operation):
    weight = 1
    synchronizes = True

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.tensor(lambda view: view.contiguous and view.numel <= 300),)

    def apply(self, model: Model, name: str) -> None:
        view = model.tensor(name)
        need(view.contiguous)
        model.launch([view])
        model.host_waits(model.streams[model.here])

    def source(self, name: str) -> str:
        return f"seen.append({name}.tolist())"


# -- NumPy --------------------------------------------------------------------------------------------------


@operation
class ToArray(HostStep):
    weight = 2
    feature = "arrays"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(ARRAY_SLOTS), draw.pinned_name()

    def apply(self, model: Model, name: str, source: str) -> None:
        view = model[source]
        need(view.device < 0 and view.kind == "tensor")
        model.export(view)
        model.bind(name, replace(view, kind="array"))

    def source(self, name: str, source: str) -> str:
        return f"{name} = {source}.numpy()"


@operation
class FromArray(HostStep):
    """A tensor over an array over pinned memory. It counts as pinned, because that depends on the address."""

    weight = 1
    feature = "aliases"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.slot(HOST_SLOTS), draw.draw_name(lambda view: view.kind == "array")

    def apply(self, model: Model, name: str, source: str) -> None:
        view = model[source]
        need(view.kind == "array")
        model.bind(name, replace(view, kind="tensor"))

    def source(self, name: str, source: str) -> str:
        return f"{name} = torch.from_numpy({source})"


@operation
class WriteArray(HostStep):
    weight = 3
    feature = "arrays"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.draw_name(lambda view: view.kind == "array"), draw.number()

    def apply(self, model: Model, name: str, value: int) -> None:
        view = model[name]
        need(view.kind == "array")
        model.host_access(view, True)

    def source(self, name: str, value: int) -> str:
        return f"{name}[...] = {value}"


@operation
class ReadArray(HostStep):
    weight = 3
    feature = "arrays"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (draw.draw_name(lambda view: view.kind == "array"),)

    def apply(self, model: Model, name: str) -> None:
        view = model[name]
        need(view.kind == "array")
        model.host_access(view, False)

    def source(self, name: str) -> str:
        return f"seen.append({name}.tolist())"
