"""Tensors on the meta device beside PyTorch's: shapes, strides and dtypes without data, and PyTorch's errors."""

from __future__ import annotations

import copy
import io
import pickle
import resource
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau


def described(lib: Any, value: Any) -> Any:
    if isinstance(value, lib.Tensor):
        grad = None if value.grad_fn is not None or value.grad is None else described(lib, value.grad)
        return (
            "tensor", tuple(value.shape), value.stride(), str(value.dtype), str(value.device), value.requires_grad, grad
        )  # fmt: skip
    if isinstance(value, dict):
        return {key: described(lib, x) for key, x in value.items()}
    return [described(lib, x) for x in value] if isinstance(value, list | tuple) else str(value)


def outcome(lib: Any, program: Callable[[Any, Any], Any], words: bool) -> Any:
    m = lib.empty(2, 3, device="meta")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = described(lib, program(lib, m))
        except Exception as error:
            return (type(error).__name__, str(error)) if words else type(error).__name__
    return result, [str(w.message) for w in caught]


def same(program: Callable[[Any, Any], Any], words: bool = True) -> None:
    assert outcome(flambeau, program, words) == outcome(torch, program, words)


def scalar(lib: Any) -> Any:
    return lib.empty((), dtype=lib.int64, device="meta")


CREATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "device": lambda lib, m: lib.empty(1, device="meta:1"),
    "sizes": lambda lib, m: [f(2, 3, device="meta") for f in (lib.zeros, lib.ones, lib.rand, lib.randn, lib.empty)],
    "values": lambda lib, m: [
        lib.full((2,), 1, device="meta"), lib.arange(3, device="meta"), lib.linspace(0, 1, 3, device="meta"),
        lib.eye(2, device="meta"), lib.logspace(0, 1, 3, device="meta"), lib.tril_indices(3, 3, device="meta"),
        lib.randint(3, (2,), device="meta"), lib.normal(0.0, 1.0, (2,), device="meta"), lib.randperm(4, device="meta"),
        lib.tensor([1, 2], device="meta"), lib.as_tensor([[1.0]], device="meta"),
        lib.empty_strided((2, 2), (1, 2), device="meta"), lib.ones(3).to("meta"),
    ],
    "like": lambda lib, m: [
        lib.empty_like(m), lib.zeros_like(m), lib.full_like(m, 1.0), lib.rand_like(m.t()), m.new_empty(2),
        lib.empty_like(m, device="cpu"), lib.empty_like(lib.ones(2), device="meta"), m.clone(), m.double(), m.to("meta"),
    ],
    "views": lambda lib, m: [
        m.view(-1), m.t(), m[1:, 2:], m[1:, 2:].storage_offset(), m.data_ptr(), list(m), m.expand(4, 2, 3),
        m.as_strided((2,), (1,), 1), m.split([1, 1]), m.resize_(4, 4), m.untyped_storage().nbytes(),
        m.set_(m.untyped_storage(), 2, (2,), (1,)),
    ],
    "random": lambda lib, m: [
        m.normal_(), m.uniform_(), m.bernoulli_(0.5), m.exponential_(), m.random_(), lib.bernoulli(m), lib.poisson(m),
        lib.multinomial(m, 2), lib.nn.functional.dropout(m), lib.rand(2, device="meta", generator=lib.Generator()),
    ],
    "names": lambda lib, m: [m.type(), m.is_meta, m.is_cpu, m.is_cuda, m.get_device(), m.device, m.is_pinned()],
    "text": lambda lib, m: [
        repr(m), repr(scalar(lib)), repr(lib.nn.Parameter(m)), repr(lib.empty(0, device="meta")), repr(m > 0),
        repr(lib.empty(2, device="meta", requires_grad=True) * 2), repr(m.untyped_storage()),
    ],
    "copies": lambda lib, m: [copy.copy(m), copy.deepcopy(m), m.copy_(lib.ones(2, 3)), m.fill_(3), m.zero_()],
    "pickles": lambda lib, m: [pickle.loads(pickle.dumps(m.t())), pickle.loads(pickle.dumps(lib.nn.Parameter(m)))],
    "inits": lambda lib, m: [
        getattr(lib.nn.init, name)(lib.empty(4, 4, device="meta"))
        for name in (
            "uniform_", "normal_", "trunc_normal_", "ones_", "zeros_", "eye_", "xavier_uniform_", "xavier_normal_",
            "kaiming_uniform_", "kaiming_normal_", "orthogonal_",
        )
    ],
    "linalg": lambda lib, m: [
        lib.linalg.inv(m[:, :2]), lib.linalg.svd(m).S, lib.linalg.cholesky(m[:, :2]), lib.linalg.det(m[:, :2]),
    ],
    "mixed": lambda lib, m: [m + lib.ones(()), m * 2, m + 1j, m[lib.tensor([0, 1])]],
}  # fmt: skip
REFUSALS: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda lib, m: scalar(lib).item(),
    "bool": lambda lib, m: bool(scalar(lib)),
    "float": lambda lib, m: float(scalar(lib)),
    "index": lambda lib, m: [1, 2][scalar(lib)],
    "contains": lambda lib, m: 1 in m,
    "numpy": lambda lib, m: m.numpy(),
    "tolist": lambda lib, m: m.tolist(),
    "cpu": lambda lib, m: m.cpu(),
    "to": lambda lib, m: m.to("cpu"),
    "out of meta": lambda lib, m: lib.empty(2, 3).copy_(m),
    "allclose": lambda lib, m: lib.allclose(m, m),
    "repeats": lambda lib, m: lib.repeat_interleave(m, scalar(lib).expand(2), 0),
    "generator": lambda lib, m: lib.Generator("meta"),
    "share": lambda lib, m: m.share_memory_(),
    "dlpack": lambda lib, m: m.__dlpack__(),
    "module": lambda lib, m: lib.nn.Linear(2, 2, device="meta").to("cpu"),
}
TYPES: dict[str, Callable[[Any, Any], Any]] = {
    "nonzero": lambda lib, m: m.nonzero(),
    "mask": lambda lib, m: m[m > 0],
    "masked_select": lambda lib, m: m.masked_select(m > 0),
    "where": lambda lib, m: lib.where(m > 0),
    "unique": lambda lib, m: m.unique(),
    "unique_consecutive": lambda lib, m: lib.unique_consecutive(m),
    "bincount": lambda lib, m: lib.bincount(scalar(lib).expand(3)),
    "equal": lambda lib, m: lib.equal(m, m),
    "one_hot": lambda lib, m: lib.nn.functional.one_hot(scalar(lib).expand(3)),
    "add": lambda lib, m: m + lib.ones(2, 3),
    "cat": lambda lib, m: lib.cat([m, lib.ones(2, 3)]),
    "scalar": lambda lib, m: scalar(lib) + lib.ones(2),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_meta_tensors_are_pytorchs(name: str) -> None:
    same(CREATIONS[name])


@pytest.mark.parametrize("name", REFUSALS)
def test_meta_refusals_have_pytorchs_words(name: str) -> None:
    same(REFUSALS[name])


@pytest.mark.parametrize("name", TYPES)
def test_meta_refusals_have_pytorchs_types(name: str) -> None:
    same(TYPES[name], words=False)


def build(lib: Any) -> Any:
    return lib.nn.Sequential(
        lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4), lib.nn.ReLU(), lib.nn.Dropout(), lib.nn.Linear(4, 2)
    )


def test_model_trains_on_meta() -> None:
    def train(lib: Any, m: Any) -> Any:
        with lib.device("meta"):
            model, x = build(lib), lib.randn(5, 3)
            target = lib.zeros(5, dtype=lib.int64)
        optimizer = lib.optim.AdamW(model.parameters())
        lib.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        state = [optimizer.state[p] for p in model.parameters()]
        return [
            list(model.parameters()),
            model.state_dict(),
            state,
            copy.deepcopy(model).state_dict(),
            model.half().state_dict(),
        ]

    same(train)


def test_state_is_loaded_into_meta_modules() -> None:
    def load(lib: Any, m: Any) -> Any:
        with lib.device("meta"):
            model = build(lib)
        model.load_state_dict(build(lib).state_dict())
        kept = model.state_dict()
        model.load_state_dict(build(lib).state_dict(), assign=True)
        empty = lib.nn.Linear(2, 2, device="meta").to_empty(device="cpu")
        return [kept, model.state_dict(), model(lib.ones(2, 3)), empty.state_dict()]

    same(load)


def test_skip_init_creates_the_module_uninitialized() -> None:
    same(lambda lib, m: lib.nn.utils.skip_init(lib.nn.Linear, 2, 3, dtype=lib.float64).state_dict())


def test_checkpoints_hold_meta_tensors() -> None:
    def save(lib: Any, m: Any) -> Any:
        file = io.BytesIO()
        lib.save({"m": m.t(), "p": lib.nn.Parameter(m), "c": lib.ones(3)}, file)
        return file

    for writer, reader in [(flambeau, flambeau), (flambeau, torch), (torch, flambeau)]:
        file = save(writer, writer.empty(2, 3, device="meta"))
        for places in (None, "meta"):
            file.seek(0)
            have = described(reader, reader.load(file, map_location=places))
            file.seek(0)
            assert have == described(torch, torch.load(file, map_location=places))


def test_meta_draws_no_random_numbers() -> None:
    flambeau.manual_seed(0)
    want = flambeau.rand(3).tolist()
    flambeau.manual_seed(0)
    flambeau.randn(5, device="meta").normal_()
    assert flambeau.rand(3).tolist() == want


def test_large_models_allocate_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with flambeau.device("meta"):
        model = flambeau.nn.Sequential(*[flambeau.nn.Linear(100_000, 100_000) for _ in range(10)])
    model(flambeau.empty(4, 100_000, device="meta")).sum().backward()
    flambeau.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    assert sum(p.numel() for p in model.parameters()) == 100_001_000_000
    with pytest.raises(NotImplementedError):
        model[0].weight.cpu()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
