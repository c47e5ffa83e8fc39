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
