"""Compare `segment_reduce`, conversions of compressed indices, draws by rejection, and specs as JSON with PyTorch."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch as oracle
import torch.utils._pytree as their_pytree

import flambeau as torch
import flambeau.utils._pytree as our_pytree
from flambeau.nn.utils.stateless import _reparametrize_module

REDUCTIONS = ("sum", "mean", "max", "min", "prod")


def draw_segments(draw: random.Random) -> tuple[list[int], int, Any, Any, dict[str, Any]]:
    """Return a shape, an axis, lengths, offsets and options of a random call."""
    axis, segments = draw.randrange(2), draw.randrange(1, 5)
    batch, trailing = ([2] if axis else []), [3] * draw.randrange(2)
    cuts = [sorted([0, 6, *draw.choices(range(7), k=segments - 1)]) for _ in range(2 if axis else 1)]
    offsets = cuts if axis else cuts[0]
    lengths = [[b - a for a, b in pairwise(cut)] for cut in cuts]
    options = {} if draw.random() < 0.5 else {"initial": draw.choice([0, 1, -2.5])}
    return [*batch, 6, *trailing], axis, lengths if axis else lengths[0], offsets, options


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_segment_reduce_agrees_with_pytorch(device: str) -> None:
    draw = random.Random(17)
    with torch.virtual(devices=1):
        for _ in range(40):
            shape, axis, lengths, offsets, options = draw_segments(draw)
            values = oracle.randint(-2, 3, shape, generator=oracle.manual_seed(draw.randrange(99))).double()
            values[values == 2] = float("nan") if draw.random() < 0.1 else 1.5
            given = {"lengths": lengths} if draw.random() < 0.6 else {"offsets": offsets}
            reduce = draw.choice(REDUCTIONS)
            results = []
            for lib, place in ((oracle, "cpu"), (torch, device)):
                x = lib.tensor(values.tolist(), dtype=lib.float64, device=place).requires_grad_()
                where = {name: lib.tensor(value, device=place) for name, value in given.items()}
                out = lib.segment_reduce(x, reduce, axis=axis, **where, **options)
                weights = lib.arange(1.0, out.numel() + 1, dtype=lib.float64, device=place).view(out.shape)
                (grad,) = lib.autograd.grad(out, x, weights)
                results.append([t.detach().cpu().tolist() for t in (out, grad)])
            for theirs, ours in zip(*results, strict=True):
                oracle.testing.assert_close(
                    oracle.tensor(ours),
                    oracle.tensor(theirs),
                    equal_nan=True,
                    msg=f"{reduce} {given} {options}",
                )


BAD_SEGMENTS: list[Any] = [
    lambda lib, x: lib.segment_reduce(x, "sum"),
    lambda lib, x: lib.segment_reduce(x, "sum", lengths=lib.tensor([2, 1])),
    lambda lib, x: lib.segment_reduce(x, "sum", lengths=lib.tensor([2, -1, 5])),
    lambda lib, x: lib.segment_reduce(x.long(), "sum", lengths=lib.tensor([2, 4])),
    lambda lib, x: lib.segment_reduce(x, "sum", lengths=lib.tensor([2, 4]), axis=1),
    lambda lib, x: lib.segment_reduce(x, "sum", lengths=lib.tensor([2, 4]), axis=5),
    lambda lib, x: lib.segment_reduce(x, "median", lengths=lib.tensor([2, 4])),
    lambda lib, x: lib._convert_indices_from_coo_to_csr(lib.tensor([[1]]), 3),
    lambda lib, x: lib._convert_indices_from_coo_to_csr(lib.tensor([1.0]), 3),
    lambda lib, x: lib.binomial(lib.tensor([1]), lib.tensor([0.5])),
    lambda lib, x: lib.binomial(x, x.double()),
    lambda lib, x: lib._standard_gamma(x.long()),
    lambda lib, x: lib._sample_dirichlet(x.long()),
]


@pytest.mark.parametrize("case", range(len(BAD_SEGMENTS)))
def test_invalid_arguments_raise_the_errors_of_pytorch(case: int) -> None:
    call = BAD_SEGMENTS[case]
    with pytest.raises(Exception) as theirs:
        call(oracle, oracle.ones(6, 2))
    with pytest.raises(type(theirs.value)) as ours:
        call(torch, torch.ones(6, 2))
    assert str(ours.value).startswith(str(theirs.value))


def test_compressed_indices_agree_with_pytorch() -> None:
    draw = random.Random(3)
    for _ in range(20):
        rows, count = draw.randrange(1, 6), draw.randrange(7)
        given = sorted(draw.choices(range(rows), k=count))
        columns = draw.choices(range(4), k=count)
        int32 = draw.random() < 0.5
        results = []
        for lib in (oracle, torch):
            flat = lib.tensor(given, dtype=lib.int32 if int32 else lib.int64)
            crow = lib._convert_indices_from_coo_to_csr(flat, rows, out_int32=int32)
            stacked = [lib.stack([t, t]) for t in (crow, lib.tensor(columns, dtype=crow.dtype))]
            for starts, plain in ((crow, lib.tensor(columns, dtype=crow.dtype)), stacked):
                both = lib._convert_indices_from_csr_to_coo(starts, plain)
                turned = lib._convert_indices_from_csr_to_coo(starts, plain, out_int32=True, transpose=True)
                results.append([(str(t.dtype), t.tolist()) for t in (crow, both, turned)])
        assert results[:2] == results[2:]


def test_drawn_numbers_have_the_moments_of_their_distributions() -> None:
    generator = torch.Generator().manual_seed(5)
    n, p = torch.tensor([3.0, 40.0, 500.0]), torch.tensor([0.3, 0.9, 0.02])
    drawn = torch.binomial(n.expand(4000, 3), p.expand(4000, 3), generator=generator)
    spread = (n * p * (1 - p)).sqrt()
    assert ((drawn.mean(0) - n * p).abs() < 5 * spread / 63).all()
    assert ((drawn.std(0) / spread - 1).abs() < 0.1).all()
    edges = torch.binomial(torch.tensor([5.0, 7, -1, 3]), torch.tensor([0.0, 1, 0.3, float("nan")]))
    assert edges.tolist()[:3] == [0, 7, 0] and edges[3].isnan()
    again = [torch._standard_gamma(n, generator=generator.manual_seed(6)) for _ in range(2)]
    assert torch.equal(*again)
    points = torch._sample_dirichlet(torch.ones(3000, 4, requires_grad=True), generator=generator)
    assert torch.allclose(points.sum(-1), torch.ones(3000)) and points.requires_grad
    assert ((points.mean(0) - 0.25).abs() < 0.02).all()


@dataclass
class Point:
    """A dataclass with a field that is None in some instances."""

    x: Any
    y: Any = None


@dataclass(frozen=True)
class Setting:
    """A class of constants."""

    name: str


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the classes above in both libraries, ours until the test ends."""
    from flambeau.utils import _treespec_json as ours_json

    monkeypatch.setattr(our_pytree, "SUPPORTED_NODES", dict(our_pytree.SUPPORTED_NODES))
    monkeypatch.setattr(our_pytree, "CONSTANT_NODES", set())
    monkeypatch.setattr(ours_json, "_TYPES", dict(ours_json._TYPES))
    for pytree in (their_pytree, our_pytree):
        if Point not in pytree.SUPPORTED_NODES:
            pytree.register_dataclass(Point, serialized_type_name="tests.Point")
            pytree.register_constant(Setting)


TREES: list[Any] = [
    (1, [2, {"a": 3, "b": None}]), OrderedDict(x=1), defaultdict(list, {"q": 2}), deque([1, 2], maxlen=3), 5, {1: (), "k": []},
    Point(1, Point(2)), Point(None, [3]),
]  # fmt: skip


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_specs_as_json_agree_with_pytorch(tree: Any) -> None:
    ours, theirs = our_pytree.tree_structure(tree), their_pytree.tree_structure(tree)
    text = our_pytree.treespec_dumps(ours)
    assert text == their_pytree.treespec_dumps(theirs)
    assert our_pytree.treespec_loads(text) == ours
    leaves = our_pytree.tree_leaves(tree)
    assert our_pytree.treespec_loads(text).unflatten(leaves) == tree


@pytest.mark.usefixtures("registered")
def test_registered_classes_flatten_as_in_pytorch() -> None:
    for pytree in (their_pytree, our_pytree):
        assert pytree.tree_leaves([Setting("a"), Point(1)]) == [1]
        assert pytree.tree_map(lambda x: x + 1, [Setting("a"), Point(1)]) == [Setting("a"), Point(2)]
        assert pytree.is_constant_class(Setting) and not pytree.is_constant_class(Point)
        assert pytree.treespec_tuple([pytree.treespec_leaf()]) == pytree.tree_structure((1,))
        assert pytree.treespec_dict(a=pytree.treespec_leaf()) == pytree.tree_structure({"a": 1})
        path = pytree.tree_leaves_with_path(Point(None, 2))[0][0]
        assert pytree.keystr(path) == ".y"
        with pytest.raises(ValueError, match="Unknown protocol 2"):
            pytree.treespec_loads("[2, {}]")
        with pytest.raises(NotImplementedError, match="No registered serialization name"):
            pytree.treespec_dumps(pytree.tree_structure(Setting("a")))
        with pytest.raises(ValueError, match="does not include all dataclass fields"):
            pytree.register_dataclass(Point, field_names=["x"])
        with pytest.raises(TypeError, match="non-default `__eq__`"):
            pytree.register_constant(type("Plain", (), {}))


def test_parameters_are_replaced_inside_the_block() -> None:
    layer = torch.nn.Linear(2, 2)
    own, other = layer.weight, torch.zeros(2, 2)
    with _reparametrize_module(layer, {"weight": other}):
        assert layer.weight is other
    assert layer.weight is own
    with (
        pytest.raises(RuntimeError, match="Missing key"),
        _reparametrize_module(layer, {"weight": other}, strict=True),
    ):
        pass


def test_public_names_are_those_of_pytorch() -> None:
    names = set(torch.__all__)
    assert not names - set(dir(oracle)) and not [
        n for n in names - {"export"} if isinstance(getattr(torch, n), type(sys))
    ]
    assert {n for n in oracle.__all__ if hasattr(torch, n)} <= names
    assert isinstance(torch.per_tensor_affine, torch.qscheme)
    assert repr(torch.per_channel_symmetric) == repr(oracle.per_channel_symmetric)


NATIVE: list[Any] = [
    lambda lib, x, w: lib.convolution(x, w, None, [2], [1], [1], False, [0], 2),
    lambda lib, x, w: lib.native_layer_norm(x, [6], None, None, 1e-5),
    lambda lib, x, w: lib.native_group_norm(x, None, None, 2, 4, 6, 2, 1e-5),
    lambda lib, x, w: lib.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
    lambda lib, x, w: lib.native_dropout(x, 0.4, False),
    lambda lib, x, w: lib.grid_sampler_2d(x[None], w.view(1, 2, 3, 2), 0, 0, False),
]


@pytest.mark.parametrize("case", range(len(NATIVE)))
def test_native_functions_agree_with_pytorch(case: int) -> None:
    results = []
    for lib in (oracle, torch):
        x = (lib.arange(48.0) % 7).reshape(2, 4, 6)
        found = NATIVE[case](lib, x, lib.linspace(-1, 1, 12).reshape(2, 2, 3))
        results.append([t.double().tolist() for t in (found if isinstance(found, tuple) else (found,))])
    for theirs, ours in zip(*results, strict=True):
        oracle.testing.assert_close(oracle.tensor(ours), oracle.tensor(theirs), atol=1e-4, rtol=1e-4)


def test_native_dropout_divides_what_it_keeps() -> None:
    out, mask = torch.native_dropout(torch.ones(1000), 0.25, True)
    assert (
        out.unique().tolist() == pytest.approx([0, 4 / 3]) and abs(mask.float().mean().item() - 0.75) < 0.07
    )


@pytest.mark.parametrize("name", ["binomial", "_standard_gamma", "_sample_dirichlet"])
def test_draws_by_rejection_refuse_arguments_as_pytorch(name: str) -> None:
    draw = random.Random(5)

    def values(lib: Any) -> list[Any]:
        odd = [1, [1.0], (0, 1), "", None, slice(1), True]
        return [*odd, *[lib.ones(2, dtype=getattr(lib, kind)) for kind in ("float32", "float16", "bool")]]

    for _ in range(150):
        places = [draw.randrange(10) for _ in range(draw.randint(1, 3))]
        seen = []
        for lib in (oracle, torch):
            try:
                seen.append(repr(getattr(lib, name)(*[values(lib)[place] for place in places]).dtype))
            except Exception as error:
                seen.append(type(error).__name__)
        assert seen[0] == seen[1], (name, places)
