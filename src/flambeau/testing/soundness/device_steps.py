"""Steps between two devices: copies, and collectives of one process."""

from __future__ import annotations

from typing import Any

from flambeau.testing.soundness.model import Model, ModelView, need
from flambeau.testing.soundness.program_steps import Draw, Operation, operation

DEFAULT = ("main", "peer")  # by device: the stream that is current there while another device's is selected


@operation
class Across(Operation):
    """A copy to another device. It runs on the current stream of the source's device, in order with the current stream
    of the target's device.
    """

    weight = 3
    feature = "devices"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        source = draw.draw_name(lambda view: view.is_ordinary and view.device >= 0 and view.contiguous)
        return draw.slot(), source, 1 - draw.model[source].device

    def apply(self, model: Model, name: str, source: str, device: int) -> None:
        given = model[source]
        need(given.is_ordinary and given.contiguous and given.device == 1 - device)
        streams = list(DEFAULT)
        streams[model.device] = model.here
        there, here = streams[device], streams[1 - device]
        view = model.allocate(given.shape, given.dtype, there)
        model.wait(here, model.nodes_before_next(there))
        model.launch([given], [view], here, copies=True)
        model.wait(there, model.nodes_before_next(here))
        model.bind(name, view)

    def source(self, name: str, source: str, device: int) -> str:
        return f'{name} = {source}.to("cuda:{device}", non_blocking=True)'


@operation
class Collective(Operation):
    """A sum over both devices, in place, on the current stream of each."""

    weight = 2
    feature = "devices"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        first = draw.draw_name(lambda view: _fits(view) and view.device == 0)
        shape, dtype = draw.model[first].shape, draw.model[first].dtype
        return first, draw.draw_name(
            lambda v: _fits(v) and v.device == 1 and (v.shape, v.dtype) == (shape, dtype)
        )

    def apply(self, model: Model, first: str, second: str) -> None:
        views = model.tensor(first, 0), model.tensor(second, 1)
        need(all(map(_fits, views)) and views[0].shape == views[1].shape and views[0].dtype == views[1].dtype)
        streams = list(DEFAULT)
        streams[model.device] = model.here
        before = [model.nodes_before_next(stream) for stream in streams]
        for view, stream in zip(views, streams, strict=True):
            model.launch([view], [view], stream)
        for stream, known in zip(streams, reversed(before), strict=True):
            model.wait(stream, known)

    def source(self, first: str, second: str) -> str:
        return f"torch.cuda.nccl.all_reduce([{first}, {second}])"


def _fits(view: ModelView) -> bool:
    return view.is_ordinary and view.contiguous and view.numel <= 300
