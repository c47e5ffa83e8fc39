"""Steps that record a function of a parameter for autograd, and that walk backward through it, on any stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flambeau.testing.soundness.model import Life, Model, ModelStorage, ModelView, need
from flambeau.testing.soundness.program_steps import Draw, Operation, operation

LOSSES = ("loss0", "loss1")


@dataclass
class Recorded:
    """The autograd record of a function: its stream, its input, and whether the input has changed since.

    Attributes:
        kept: The storages that the program's names keep alive.
        leaf: The stream of the parameter's `AccumulateGrad` node: that of the first function that kept the node alive.
        walked: True if the saved input was released.
    """

    stream: str
    source: ModelView
    life: Life
    version: int
    kept: tuple[ModelStorage, ...]
    leaf: str
    walked: bool = False


@operation
class Loss(Operation):
    """A sum of products, for which autograd saves the factor that is not a parameter."""

    weight = 3
    feature = "gradients"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        weight = draw.draw_name(lambda view: view.weight and view.device == draw.model.device)
        return draw.one(LOSSES), weight, draw.tensor(_fits)

    def apply(self, model: Model, name: str, weight: str, source: str) -> None:
        parameter, given = model[weight], model.tensor(source)
        need(parameter.weight and parameter.device == model.device and _fits(given))
        product = model.temporary((8, 8))
        model.launch([parameter, given], [product])
        total = model.temporary(())
        model.launch([product], [total])
        model.release(product.storage)
        given.storage.refs += 1
        parameter.storage.refs += 1
        life, kept = given.storage.life, (total.storage, parameter.storage)
        others = [loss for loss in model.losses.values() if parameter.storage in loss.kept]
        leaf = others[0].leaf if others else model.here
        forget(model, name)
        model.losses[model.host.number, name] = Recorded(model.here, given, life, life.version, kept, leaf)

    def source(self, name: str, weight: str, source: str) -> str:
        return f"{name}, {name}_of = ({weight} * {source}).sum(), {weight}"


@operation
class Gradient(Operation):
    """The backward pass: each function runs on its forward stream, the sum on the stream of the parameter, ordered
    before and after.
    """

    weight = 4
    feature = "gradients"

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        number = draw.model.host.number
        losses = [
            name for (host, name), loss in draw.model.losses.items() if host == number and not loss.walked
        ]
        return draw.slot(), draw.one(losses)

    def apply(self, model: Model, name: str, loss: str) -> None:
        recorded = let_go(model, loss)
        stream, given = recorded.stream, recorded.source
        root = model.temporary(())
        model.launch(writes=[root])
        if stream != model.here:
            model.wait(stream, model.nodes_before_next(model.here))
            root.storage.recorded.add(stream)
        gradient = model.allocate((8, 8), stream=stream)
        model.launch([root, given], [gradient], stream)
        model.release(root.storage)
        if recorded.leaf != stream:
            model.wait(recorded.leaf, model.nodes_before_next(stream))
            gradient.storage.recorded.add(recorded.leaf)
        model.wait(model.here, model.nodes_before_next(recorded.leaf))
        model.unref(given.storage)
        model.bind(name, gradient)

    def source(self, name: str, loss: str) -> str:
        return f"({name},) = torch.autograd.grad({loss}, {loss}_of)"


# -- training: what the walk adds up, and where, is not modelled -----------------------------------------------


class Training(Operation):
    """A step whose accesses the model does not cover; a program with one is only compared with itself."""

    weight = 3
    feature = "training"

    def draw_weight(self, draw: Draw) -> str:
        return draw.draw_name(lambda view: view.weight and view.device == draw.model.device)


@operation
class Checkpoint(Training):
    """A function that backward computes again."""

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return draw.one(LOSSES), self.draw_weight(draw), draw.tensor(_fits)

    def apply(self, model: Model, name: str, weight: str, source: str) -> None:
        Loss().apply(model, name, weight, source)
        model.is_judged = False

    def source(self, name: str, weight: str, source: str) -> str:
        call = f"lambda p, x: (p * x).sigmoid().sum(), {weight}, {source}.clone(), use_reentrant=False"
        return f"{name}, {name}_of = torch.utils.checkpoint.checkpoint({call}), {weight}"


@operation
class Backward(Training):
    """The walk backward, which adds up the gradients of parameters."""

    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (Gradient().draw(draw)[1],)

    def apply(self, model: Model, loss: str) -> None:
        model.unref(let_go(model, loss).source.storage)
        model.is_judged = False

    def source(self, loss: str) -> str:
        return f"{loss}.backward()"


@operation
class Descend(Training):
    def draw(self, draw: Draw) -> tuple[Any, ...]:
        return (self.draw_weight(draw),)

    def apply(self, model: Model, weight: str) -> None:
        parameter = model[weight]
        need(parameter.weight and parameter.device == model.device)
        model.launch([parameter], [parameter])
        model.is_judged = False

    def source(self, weight: str) -> str:
        return f"torch.optim.SGD([{weight}], lr=0.5).step()"


def let_go(model: Model, loss: str) -> Recorded:
    """Release the input of a loss after its backward. Returns the record."""
    recorded = model.losses.get((model.host.number, loss))
    need(recorded is not None and not recorded.walked and model.device_of[recorded.stream] == model.device)
    need(recorded.source.storage.life is recorded.life and recorded.life.version == recorded.version)
    recorded.walked = True
    return recorded


def forget(model: Model, name: str) -> None:
    """Release the tensors that a name's previous loss saved, because the name is assigned another loss."""
    recorded = model.losses.pop((model.host.number, name), None)
    if recorded is not None:
        for storage in recorded.kept if recorded.walked else (*recorded.kept, recorded.source.storage):
            model.unref(storage)


def _fits(view: ModelView) -> bool:
    return view.shape == (8, 8) and view.dtype == "float32"
