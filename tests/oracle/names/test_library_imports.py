"""Names outside of PyTorch's public interface that libraries import: present, and equal in value to PyTorch's."""

import importlib

import numpy as np
import pytest
import torch

import flambeau
from flambeau.core.errors import NotSupportedError

NAMES = {
    "utils.data.dataloader": (
        "BatchSampler", "Dataset", "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler",
    ),
    "_C": ("Graph", "Value"),
    "distributions.transforms": ("_clipped_sigmoid",),
    "jit": ("_get_trace_graph",),
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_modules_have_names_that_libraries_import(module: str) -> None:
    theirs, ours = (importlib.import_module(f"{root}.{module}") for root in ("torch", "flambeau"))
    for name in NAMES[module]:
        assert getattr(ours, name).__name__ == getattr(theirs, name).__name__


def test_dataloader_samplers_are_the_public_classes() -> None:
    data = flambeau.utils.data
    for name in NAMES["utils.data.dataloader"]:
        assert getattr(data.dataloader, name) is getattr(data, name)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_sigmoid_transform_clips_as_pytorch(kind: str) -> None:
    x = np.random.default_rng(0).normal(0, 40, 200).astype(kind)
    probabilities = np.concatenate([np.geomspace(1e-300, 1, 50), [0.0]]).astype(kind)
    results = []
    for module, convert in ((flambeau, flambeau.from_numpy), (torch, torch.from_numpy)):
        transforms = module.distributions.transforms
        transform = transforms.SigmoidTransform()
        results.append([
            transforms._clipped_sigmoid(convert(x)).numpy(),
            transform(convert(x)).numpy(),
            transform.inv(convert(probabilities)).numpy(),
        ])  # fmt: skip
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES["_C"])
def test_classes_of_torchscript_graphs_raise_when_called(name: str) -> None:
    assert not isinstance(1, getattr(flambeau._C, name))
    with pytest.raises(NotSupportedError, match=rf"torch\._C\.{name}"):
        getattr(flambeau._C, name)()


def test_trace_graph_raises_and_names_flambeau() -> None:
    with pytest.raises(NotSupportedError, match="Flambeau has no TorchScript graphs"):
        flambeau.jit._get_trace_graph(flambeau.nn.Linear(2, 2), (flambeau.ones(2),))
