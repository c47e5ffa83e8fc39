"""Sparse tensors as objects: their text, their checks, copies of all kinds, gradients of leaves; PyTorch beside them."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import torch

import flambeau
from flambeau.core.sparse_meta import SparseMeta
from flambeau.ops.op import table as operators
from flambeau.tensor import layout_functions
from flambeau.tensor.call import call, call_into
from flambeau.testing.operator_properties import maker

LIBRARIES = (flambeau, torch)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that its sparse tensors are in beta state
        yield


def coo(lib: Any, **given: Any) -> Any:
    """Return a matrix with a duplicate."""
    return lib.sparse_coo_tensor([[0, 1, 1, 0], [2, 0, 0, 1]], [3.0, 4.0, 5.0, 6.0], (2, 3), **given)


TEXTS = [
    "coo(t)", "coo(t).double()", "coo(t).int()", "coo(t).bool()", "coo(t).to(t.complex64)", "coo(t).half()",
    "coo(t).requires_grad_()", "coo(t).requires_grad_() * 2", "coo(t).to_sparse_csr()", "coo(t).to_sparse_csc().double()",
    "t.zeros(2, 3, layout=t.sparse_coo)", "t.zeros(2, 3, layout=t.sparse_csr, dtype=t.float64)",
    "t.sparse_coo_tensor(t.zeros(2, 0).long(), t.zeros(0, 4), (2, 3, 4))", "coo(t, device='meta')",
    "t.sparse_coo_tensor(t.arange(2000).view(1, -1), t.arange(2000.0))", "t.nn.Parameter(coo(t))",
    "t.sparse_coo_tensor([[0, 1]], [[1.5, 2.5], [0.0, 1e6]], (4, 2))",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_equals_pytorchs(text: str) -> None:
    ours, theirs = (repr(eval(text, {"t": lib, "coo": coo})) for lib in LIBRARIES)
    assert ours == theirs


BAD = [
    "t.sparse_coo_tensor([[-1]], [1.0])", "t.sparse_coo_tensor([[0, 1]], [1.0], (2,))", "t.sparse_coo_tensor([0], [1.0])",
    "t.sparse_coo_tensor([[0]], [1.0], (2, 2))", "t.sparse_coo_tensor([[0]], [[1.0]], (2, 2))",
    "t.sparse_coo_tensor([[5]], [1.0], (2,), check_invariants=True)",
    "t.sparse_coo_tensor([[1, 0]], [1.0, 2.0], (2,), check_invariants=True, is_coalesced=True)",
    "t.sparse_coo_tensor(None, [1.0])", "t.sparse_coo_tensor([[0]], [1], (2,), requires_grad=True)",
    "t.sparse_csr_tensor([0, 1, 3], [0, 1], [1.0, 2.0], (2, 2), check_invariants=True)",
    "t.sparse_csr_tensor([1, 1, 2], [0, 1], [1.0, 2.0], (2, 2), check_invariants=True)",
    "t.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0], (2, 2), check_invariants=True)",
    "t.sparse_csr_tensor([0, 1, 2], [0, 5], [1.0, 2.0], (2, 2), check_invariants=True)",
    "t.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0], (2, 2), check_invariants=True)", "t.sparse_csr_tensor([0, 1], [0, 1], [1.0, 2.0], (2, 2), check_invariants=True)",
    "t.sparse_compressed_tensor([0], [], [], (0, 0), layout=t.strided)", "coo(t).indices()", "coo(t).values()",
    "coo(t).crow_indices()", "t.ones(2).indices()", "t.ones(2).coalesce()", "t.ones(2).is_coalesced()", "t.ones(2)._nnz()",
    "coo(t).sparse_mask(coo(t).t())", "t.ones(2, 3).sparse_mask(t.ones(2, 3))", "coo(t).to_sparse_csr().coalesce()",
    "coo(t).data_ptr()", "coo(t).storage()", "coo(t).numpy()", "coo(t).tolist()", "coo(t).item()", "coo(t).stride(5)",
    "coo(t).to_sparse_csr().stride()", "coo(t).view(6)", "coo(t).nbytes", "coo(t).fill_(1)", "coo(t).copy_(t.ones(2, 3))",
    "t.ones(2, 3).copy_(coo(t))", "coo(t) @ t.ones(4)", "coo(t) @ t.ones(4, 2)", "coo(t) @ t.ones(3, 2).double()",
    "coo(t).to('meta').to('cpu') if t is None else t.ones_like(coo(t))", "t.sparse.sum(t.ones(2))",
    "t.sparse.softmax(t.ones(2), 0)", "t.sparse.softmax(coo(t), 5)", "coo(t).sparse_resize_((1, 1), 2, 0)",
    "coo(t).sparse_resize_((2, 3, 4), 2, 1) if False else coo(t).sparse_resize_((2, 3), 1, 0)",
    "t.sparse.spdiags(t.ones(2, 3), t.tensor([0]), (3, 3))", "t.sparse.spdiags(t.ones(2, 3), t.tensor([0, 0]), (3, 3))",
    "t.cat([coo(t), t.ones(2, 3)])", "t.cat([coo(t), coo(t).t()])", "t.ones(3, 3) + coo(t)", "coo(t) + coo(t).t()",
    "t.sparse.mm(coo(t), t.ones(3, 2), 'sum')", "coo(t).to_sparse_csr().view(6)",
]  # fmt: skip


@pytest.mark.parametrize("code", BAD)
def test_bad_input_raises_pytorchs_type(code: str) -> None:
    with pytest.raises(Exception) as theirs:
        eval(code, {"t": torch, "coo": coo})
    with pytest.raises(tuple(c for c in type(theirs.value).__mro__ if c.__module__ == "builtins")[:1]):
        eval(code, {"t": flambeau, "coo": coo})


def test_block_layouts_raise_by_name() -> None:
    for make in (
        lambda: flambeau.ones(2, 2).to_sparse_bsr((1, 1)),
        lambda: flambeau.ones(2, 2).to_sparse(layout=flambeau.sparse_bsc, blocksize=(1, 1)),
        lambda: flambeau.sparse_bsr_tensor([0, 1], [0], [[[1.0]]]),
        lambda: flambeau.zeros(2, 2, layout=flambeau.sparse_bsr),
    ):
        with pytest.raises(
            flambeau.NotSupportedError, match="Flambeau has the sparse layouts COO, CSR and CSC"
        ):
            make()


def _operator_calls() -> list[Any]:
    """Return (operator, inputs, params) of a call of each operator whose first operand is a matrix or a vector."""
    found = []
    for op in operators.values():
        for inputs, params in op.samples(maker(op.dtypes[0], 0), op.dtypes[0]):
            if getattr(inputs[0] if inputs else None, "ndim", 0) >= 1:
                found.append((op, inputs, params))
                break
    return found


def test_no_strided_operator_reads_a_sparse_operand() -> None:
    """Every operator answers through the table of sparse operators, or raises; and so does it into a sparse tensor."""
    calls = _operator_calls()
    assert len(calls) > 200
    for op, inputs, params in calls:
        tensors = [flambeau.tensor(x) if hasattr(x, "ndim") else x for x in inputs]
        tensors[0] = tensors[0].to_sparse() if tensors[0].numel() else flambeau.zeros(1).to_sparse()
        if op in layout_functions.calls:
            continue
        with pytest.raises(NotImplementedError, match="Could not run 'aten::"):
            call(op, tensors, params)
        with pytest.raises((NotImplementedError, RuntimeError)):
            call_into(op, (flambeau.zeros(1).to_sparse(),), tensors[:1], params)


def test_sparse_meta_has_no_strides() -> None:
    meta = coo(flambeau).meta
    assert isinstance(meta, SparseMeta)
    assert meta is coo(flambeau).meta
    for name in ("strides", "byte_strides", "span", "nbytes"):
        with pytest.raises(RuntimeError):
            getattr(meta, name)


@pytest.mark.parametrize("layout", ("coo", "csr", "csc"))
@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_copies_of_all_kinds(layout: str, device: str) -> None:
    with flambeau.virtual(devices=1):
        t = coo(flambeau).to(device)
        t = t if layout == "coo" else getattr(t, f"to_sparse_{layout}")()
        file = io.BytesIO()
        flambeau.save({"t": t, "same": t}, file)
        file.seek(0)
        loaded = flambeau.load(file)
        for made in (
            loaded["t"],
            pickle.loads(pickle.dumps(t)),
            copy.deepcopy(t),
            copy.copy(t),
            t.clone(),
            t.detach(),
        ):
            assert (made.layout, made.device, made.dtype) == (t.layout, t.device, t.dtype)
            assert flambeau.equal(made.to_dense(), t.to_dense())
            assert made._nnz() == t._nnz()
        assert loaded["t"] is loaded["same"]
        double = copy.deepcopy(t)
        double._values().zero_()
        assert t._values().any()


def test_checkpoints_of_pytorch_load(tmp_path: Any) -> None:
    for make in (coo, lambda lib: coo(lib).coalesce(), lambda lib: coo(lib).to_sparse_csr()):
        torch.save({"t": make(torch)}, tmp_path / "theirs.pt")
        loaded = flambeau.load(tmp_path / "theirs.pt")["t"]
        assert repr(loaded) == repr(make(torch))
        flambeau.save({"t": make(flambeau)}, tmp_path / "ours.pt")
        assert repr(torch.load(tmp_path / "ours.pt")["t"]) == repr(make(flambeau))


def test_checkpoint_with_bad_indices_is_refused() -> None:
    bad = flambeau.sparse_coo_tensor([[7]], [1.0], (2,))
    with pytest.raises(RuntimeError, match="inconsistent with indices"):
        pickle.loads(pickle.dumps(bad))


def test_invariants_are_checked_where_asked() -> None:
    check = flambeau.sparse.check_sparse_tensor_invariants
    assert not check.is_enabled()
    with check():
        assert check.is_enabled()
        with pytest.raises(RuntimeError, match="size is inconsistent"):
            flambeau.sparse_coo_tensor([[5]], [1.0], (2,))
        with check(False):
            flambeau.sparse_coo_tensor([[5]], [1.0], (2,))
    assert not check.is_enabled()

    @check()
    def make() -> Any:
        return flambeau.sparse_coo_tensor([[5]], [1.0], (2,))

    with pytest.raises(RuntimeError, match="size is inconsistent"):
        make()


def test_values_alias_the_tensor() -> None:
    for lib in LIBRARIES:
        values = lib.tensor([1.0, 2.0])
        t = lib.sparse_coo_tensor([[0, 1]], values, (2,))
        values.mul_(3)
        alias = t.detach()
        t._values().add_(1)
        assert t.to_dense().tolist() == alias.to_dense().tolist() == values.tolist() == [4.0, 7.0]
        t.mul_(2)  # which gives it other values
        assert t.to_dense().tolist() == [8.0, 14.0]
        assert alias.to_dense().tolist() == values.tolist() == [4.0, 7.0]


# -- gradients --------------------------------------------------------------------------------------------------


def _accumulated(lib: Any, losses: list[Callable[[Any], Any]], together: bool) -> Any:
    weight = lib.arange(6.0).reshape(3, 2).requires_grad_()
    results = [loss(weight) for loss in losses]
    if together:
        sum(results[1:], results[0]).backward()
    else:
        for result in results:
            result.backward()
    return weight.grad


@pytest.mark.parametrize("together", (True, False))
@pytest.mark.parametrize("order", ("ss", "sd", "ds", "sds", "ssd"))
def test_leaves_accumulate_sparse_and_strided_gradients(order: str, together: bool) -> None:
    def losses(lib: Any) -> list[Callable[[Any], Any]]:
        sparse = lambda w: (lib.nn.functional.embedding(lib.tensor([0, 2, 2]), w, sparse=True) ** 2).sum()  # noqa: E731
        return [sparse if c == "s" else lambda w: (w**3).sum() for c in order]

    ours, theirs = (_accumulated(lib, losses(lib), together) for lib in LIBRARIES)
    assert str(ours.layout) == str(theirs.layout)
    assert ours.to_dense().tolist() == theirs.to_dense().tolist()


def test_accumulated_gradient_shares_no_memory() -> None:
    weight = flambeau.zeros(3, 2, requires_grad=True)
    rows = flambeau.nn.functional.embedding(flambeau.tensor([0, 2]), weight, sparse=True)
    seen: list[Any] = []
    rows.register_hook(seen.append)
    rows.sum().backward()
    weight.grad.mul_(5)
    assert seen[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


SECOND = {
    "mm": lambda t, v, m: t.sparse_coo_tensor([[0, 1, 1], [2, 0, 1]], v, (2, 3)) @ m,
    "sparse.mm": lambda t, v, m: t.sparse.mm(t.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], v, (2, 3)), m),
    "softmax": lambda t, v, m: t.sparse.softmax(t.sparse_coo_tensor([[0, 1, 1], [2, 0, 1]], v, (2, 3)), 1).to_dense(),
    "sin": lambda t, v, m: t.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], v, (2, 3)).sin().to_dense(),
    "csr": lambda t, v, m: t.sparse_csr_tensor([0, 1, 3], [2, 0, 1], v, (2, 3)) @ m,
    "sampled": lambda t, v, m: t.sparse.sampled_addmm(t.sparse_csr_tensor([0, 1, 3], [2, 0, 1], v, (3, 3))
        if False else t.sparse_csr_tensor([0, 1, 3, 3], [2, 0, 1], v, (3, 3)), m, m.t()).to_dense(),
    "mask": lambda t, v, m: m[:2, :].sparse_mask(t.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 1.0], (2, 2)).double()).to_dense() * v[0],
    "sum": lambda t, v, m: t.sparse.sum(t.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], v, (2, 3)), 0).to_dense() ** 3,
    "index_select": lambda t, v, m: t.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], v, (2, 3)).index_select(0, t.tensor([1, 1, 0])).to_dense() ** 2,
    "cat": lambda t, v, m: t.cat([t.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], v, (2, 3))] * 2, 1).to_dense() ** 2,
    "amax": lambda t, v, m: t.sparse.mm(t.sparse_csr_tensor([0, 1, 3], [2, 0, 1], v, (2, 3)), m, "amax"),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
def test_derivatives_of_both_orders_agree_with_differences(name: str) -> None:
    """`gradcheck` and `gradgradcheck` compare with differences of values, of functions between strided tensors."""
    values = flambeau.tensor([0.5, -1.25, 2.0], dtype=flambeau.float64, requires_grad=True)
    matrix = flambeau.tensor(
        [[0.5, 1.0], [-1.5, 0.25], [2.0, -0.75]], dtype=flambeau.float64, requires_grad=True
    )
    if name == "mask":
        matrix = matrix.detach()[:2].clone().requires_grad_()

    def define(v: Any, m: Any) -> Any:
        return SECOND[name](flambeau, v, m)

    used = (values, matrix)
    assert flambeau.autograd.gradcheck(define, used)
    assert flambeau.autograd.gradgradcheck(define, used)


def test_in_place_changes_are_recorded() -> None:
    for lib in LIBRARIES:
        leaf = coo(lib).coalesce().requires_grad_()
        t = leaf.clone()
        t.mul_(3)
        (t.to_dense() ** 2).sum().backward()
        assert leaf.grad.to_dense().tolist() == [[0.0, 108.0, 54.0], [162.0, 0.0, 0.0]]


def test_leaf_refuses_in_place_change() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        coo(flambeau).requires_grad_().mul_(2)


def test_work_between_streams_is_reported() -> None:
    """The parts of a sparse tensor are ordinary tensors: the race detector sees their use."""
    with flambeau.virtual(devices=1, races="error"):
        t = coo(flambeau).cuda().coalesce()
        stream = flambeau.cuda.Stream()
        flambeau.cuda.synchronize()
        t.mul_(2)
        with pytest.raises(flambeau.RaceError), flambeau.cuda.stream(stream):
            t @ flambeau.ones(3, 2, device="cuda")
            flambeau.cuda.synchronize()


def test_meta_device_tells_shapes() -> None:
    t = flambeau.sparse_coo_tensor(
        flambeau.zeros(2, 4, dtype=flambeau.int64, device="meta"), flambeau.ones(4, device="meta"), (2, 3)
    )
    assert (t * 2).shape == (2, 3)
    assert t.t().shape == (3, 2)
    assert t.device.type == "meta"
    with pytest.raises(NotImplementedError):
        t.to("cpu")
