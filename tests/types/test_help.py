"""What `help()` and `inspect.signature` show of public functions: the parameters that PyTorch documents."""

from __future__ import annotations

import inspect
import pickle

import flambeau


def test_creations_show_their_keywords() -> None:
    shown = inspect.signature(flambeau.zeros)
    assert [*shown.parameters] == ["size", "out", "dtype", "layout", "device", "requires_grad", "pin_memory"]
    assert shown.parameters["size"].kind is inspect.Parameter.VAR_POSITIONAL
    assert shown.parameters["layout"].default is flambeau.strided
    assert pickle.loads(pickle.dumps(shown.parameters["dtype"])) == shown.parameters["dtype"]


def test_signatures_bind_and_change_as_others() -> None:
    method = inspect.signature(flambeau.ones(1).std)
    assert [*method.parameters] == ["dim", "correction", "keepdim"]
    assert method.bind(0, keepdim=True).arguments == {"dim": 0, "keepdim": True}
    assert [*inspect.signature(flambeau.add).replace(parameters=[]).parameters] == []


def test_every_method_of_tensors_has_a_docstring() -> None:
    names = [
        name for name in dir(flambeau.Tensor) if name[0] != "_" and callable(getattr(flambeau.Tensor, name))
    ]
    assert [name for name in names if not inspect.getdoc(getattr(flambeau.Tensor, name))] == []
    assert flambeau.Tensor.tril_.__doc__ == "Change this tensor in place as `tril` does, and return it."


def test_layers_of_transformers_show_their_parameters() -> None:
    for layer in (flambeau.nn.TransformerEncoderLayer, flambeau.nn.TransformerDecoderLayer):
        assert [*inspect.signature(layer).parameters][:3] == ["d_model", "nhead", "dim_feedforward"]
