"""Random sparse tensors through every operator that takes them, by PyTorch's CPU build and by Flambeau.

    PYTHONPATH=src:tests:tests/oracle python -m sparse_hunt --seed 0 --count 3000 --device cuda

A difference is a line "class: operator: what", worst class first: "refused" (PyTorch answers, Flambeau raises),
"value", "form" (dtype, shape, layout or sparse dimensions), "gradient", "coalesced", "error type".
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from support import torch

import flambeau

CLASSES = ("refused", "internal", "value", "form", "gradient", "coalesced", "error type")
FLOATS = ("float32", "float64", "complex64", "complex128")
KINDS = (*FLOATS, "int64", "int32", "float16", "bool")


class Spec(NamedTuple):
    """A tensor as data: what both libraries make their tensors of."""

    layout: str
    shape: tuple[int, ...]
    sparse_dim: int
    indices: Any
    values: Any
    kind: str
    coalesced: bool


def draw_values(rng: random.Random, shape: tuple[int, ...], kind: str) -> Any:
    """Return an array of small numbers."""
    dice = np.random.default_rng(rng.getrandbits(32))
    numbers = dice.integers(-4, 5, shape) / 2
    if kind.startswith("complex"):
        numbers = numbers + 1j * dice.integers(-2, 3, shape)
    if kind.startswith("int"):
        numbers = dice.integers(-4, 5, shape)
    return numbers > 0 if kind == "bool" else numbers.astype(kind)


def draw_sparse(
    rng: random.Random, layout: str, shape: tuple[int, ...], kind: str, dense_dim: int = 0
) -> Spec:
    """Return a sparse tensor of a shape: often with duplicates, sometimes without values."""
    sparse_dim = len(shape) - dense_dim
    cells = int(np.prod(shape[:sparse_dim]))
    nnz = 0 if not cells else rng.choice([0, 1, 3, 5, 8])
    flat = [rng.randrange(cells) for _ in range(nnz)] if cells else []
    coalesced = layout != "sparse_coo" or rng.random() < 0.4
    if coalesced:
        flat = sorted(set(flat))
    indices = np.array(np.unravel_index(np.array(flat, int), shape[:sparse_dim]), np.int64) if cells else None
    if indices is None:
        indices = np.zeros((sparse_dim, 0), np.int64)
    values = draw_values(rng, (len(flat), *shape[sparse_dim:]), kind)
    return Spec(layout, shape, sparse_dim, indices.reshape(sparse_dim, len(flat)), values, kind, coalesced)


def draw_dense(rng: random.Random, shape: tuple[int, ...], kind: str) -> Spec:
    return Spec("strided", shape, 0, None, draw_values(rng, shape, kind), kind, False)


def make(lib: Any, spec: Any, device: str, grad: bool) -> Any:
    """Return an operand of an operator in a library: a tensor of a Spec, or the value itself."""
    if not isinstance(spec, Spec):
        return spec
    values = (
        lib.tensor(spec.values.tolist(), dtype=getattr(lib, spec.kind)).reshape(spec.values.shape).to(device)
    )
    if spec.layout == "strided":
        made = values
    else:
        indices = lib.tensor(spec.indices.tolist(), dtype=lib.int64).reshape(spec.indices.shape).to(device)
        made = lib.sparse_coo_tensor(indices, values, spec.shape, is_coalesced=spec.coalesced or None)
        if spec.layout != "sparse_coo":
            made = made.to_sparse_csr() if spec.layout == "sparse_csr" else made.to_sparse_csc()
    return made.requires_grad_() if grad and spec.kind in FLOATS else made


Operator = Callable[..., Any]
UNARY = ["abs", "sqrt", "sin", "asin", "sinh", "tan", "tanh", "atan", "asinh", "log1p", "expm1", "erf", "sign", "sgn", "floor", "ceil", "trunc", "frac", "relu", "neg", "deg2rad", "rad2deg", "isnan", "isinf", "isposinf", "isneginf", "signbit", "nan_to_num", "square", "positive", "exp", "cos", "log", "sigmoid", "reciprocal"]  # fmt: skip


def table() -> dict[str, tuple[str, Operator]]:
    """Operator by name, with the operands that it takes: see `draw_operands`."""
    ops: dict[str, tuple[str, Operator]] = {f"{n}": ("a", lambda t, a, n=n: getattr(t, n)(a)) for n in UNARY}
    for name, code in {
        "add": "a + b", "sub": "a - b", "mul": "a * b", "alpha": "t.add(a, b, alpha=2)", "eq": "a == b",
    }.items():  # fmt: skip
        ops[name] = "ab", _compiled(code)
        ops[f"{name}.dense"] = "ad", _compiled(code)
        ops[f"{name}.reversed"] = "da", _compiled(code)
    for name, code in {
        "to_dense": "a.to_dense()", "to_dense.unmasked": "a.to_dense(masked_grad=False)", "clone": "a.clone()",
        "coalesce": "a.coalesce()", "values": "a.coalesce().values()", "indices": "a.coalesce().indices()",
        "double": "a.double()", "complex": "a.to(t.complex64)", "half": "a.half()", "detach": "a.detach()",
        "sum": "a.sum()", "sum.0": "a.sum(0)", "sum.keep": "a.sum(-1, keepdim=True)", "sparse.sum": "t.sparse.sum(a)",
        "sparse.sum.0": "t.sparse.sum(a, 0)", "sparse.sum.last": "t.sparse.sum(a, -1)",
        "sparse.sum.two": "t.sparse.sum(a, (0, 1))", "softmax.0": "t.sparse.softmax(a, 0)",
        "softmax.last": "t.sparse.softmax(a, -1)", "log_softmax": "t.sparse.log_softmax(a, 1)", "norm": "a.norm()",
        "norm.1": "a.norm(1)", "t": "a.t()", "transpose": "a.transpose(0, 1)", "transpose.last": "a.transpose(0, -1)",
        "permute": "a.permute(*range(a.dim() - 1, -1, -1))", "unsqueeze.0": "a.unsqueeze(0)",
        "unsqueeze.last": "a.unsqueeze(-1)", "select": "a[0]", "select.1": "a.select(1, -1)", "element": "a[0, 1]",
        "unbind": "a.unbind(0)[-1]", "cat": "t.cat([a, a])", "cat.1": "t.cat([a, a], 1)", "stack": "t.stack([a, a])",
        "stack.1": "t.stack([a, a], 1)", "index_select": "a.index_select(0, t.tensor([1, 0, 1], device=a.device))",
        "index_select.last": "a.index_select(-1, t.tensor([1, 1], device=a.device))", "times": "a * 2", "halves": "a / 2",
        "rtimes": "2.5 * a", "floor": "a // 2", "pow": "a ** 2", "pow.0": "a ** 0", "plus": "a + 1", "any": "a.any()",
        "csr": "a.to_sparse_csr()", "csc": "a.to_sparse_csc()", "coo": "a.to_sparse_coo()", "to_sparse": "a.to_sparse()",
        "zero_": "a.detach().clone().zero_()", "mul_": "a.detach().clone().mul_(3)", "div_": "a.detach().clone().div_(2)",
        "neg_": "a.detach().clone().neg_()", "sqrt_": "a.detach().clone().sqrt_()", "zeros_like": "t.zeros_like(a)",
        "mean": "a.mean()", "max": "a.max()", "reshape": "a.reshape(-1)", "view": "a.view(-1)", "numpy": "a.numpy()",
        "item": "a.item()", "tolist": "a.tolist()", "bool": "bool(a)", "len": "len(a)", "nnz": "a._nnz()",
        "dims": "(a.sparse_dim(), a.dense_dim(), a.dim(), a.numel(), tuple(a.shape), a.is_sparse, a.is_sparse_csr)",
        "repr": "repr(a.detach())" , "norm.inf": "a.norm(float('inf'))", "rsub": "1 - a", "rdiv": "1 / a",
        "new_zeros": "a.new_zeros((2, 2))", "contiguous": "a.contiguous()", "storage": "a.untyped_storage()",
        "flip": "a.flip(0)", "argmax": "a.argmax()", "cumsum": "a.cumsum(0)", "sort": "a.sort()", "tril": "a.tril()",
        "pickle": "__import__('pickle').loads(__import__('pickle').dumps(a.detach()))",
        "deepcopy": "__import__('copy').deepcopy(a.detach())",
    }.items():  # fmt: skip
        ops[name] = "a", _compiled(code)
    for name, code in {
        "iadd": "a.detach().clone().add_(b.detach())", "isub": "a.detach().clone().sub_(b.detach(), alpha=2)",
        "imul": "a.detach().clone().mul_(b.detach())", "copy_": "a.detach().clone().copy_(b.detach())",
        "mask.sparse": "a.sparse_mask(b.coalesce())", "cat.both": "t.cat([a, b])", "div.both": "a / b",
    }.items():  # fmt: skip
        ops[name] = "ab", _compiled(code)
    for name, code in {
        "iadd.dense": "b.detach().clone().add_(a.detach())", "imul.dense": "a.detach().clone().mul_(b.detach())",
        "mask": "b.sparse_mask(a)", "mask.coalesced": "b.sparse_mask(a.coalesce())", "copy_.dense": "a.copy_(b)",
    }.items():  # fmt: skip
        ops[name] = "ad", _compiled(code)
    for name, code in {
        "mm": "t.mm(a, b)", "matmul": "a @ b", "sparse.mm": "t.sparse.mm(a, b)", "left": "b.t() @ a.t()",
        "sparse.left": "t.sparse.mm(b.t(), a.t())", "linear": "t.nn.functional.linear(b.t(), a)",
    }.items():  # fmt: skip
        ops[name] = "mn", _compiled(code)
        ops[f"{name}.both"] = "mo", _compiled(code)
    for name, code in {
        "mv": "t.mv(a, b)", "matmul.vector": "a @ b", "matmul.left": "b @ a.t()",
    }.items():  # fmt: skip
        ops[name] = "mv", _compiled(code)
    for name, code in {
        "addmm": "t.addmm(c, a, b)", "addmm.scaled": "t.addmm(c, a, b, beta=2, alpha=3)",
        "sparse.addmm": "t.sparse.addmm(c, a, b, beta=0.5, alpha=2)",
    }.items():  # fmt: skip
        ops[name] = "mnp", _compiled(code)
    ops["bmm"] = "xy", _compiled("t.bmm(a, b)")
    for reduce in ("sum", "mean", "amax", "amin"):
        ops[f"reduce.{reduce}"] = "rn", _compiled(f"t.sparse.mm(a, b, '{reduce}')")
    ops["sampled_addmm"] = "rqn", _compiled("t.sparse.sampled_addmm(a, b, c, beta=0.5, alpha=2)")
    for name, code in {
        "dense.to_sparse": "a.to_sparse()", "dense.to_sparse.1": "a.to_sparse(1)", "dense.csr": "a.to_sparse_csr()",
        "dense.to_dense": "a.to_dense()", "dense.csc": "a.to_sparse_csc()", "dense.dims": "(a.sparse_dim(), a.dense_dim())",
        "dense.values": "a.values()", "dense.coalesce": "a.coalesce()", "dense.crow": "a.crow_indices()",
    }.items():  # fmt: skip
        ops[name] = "d", _compiled(code)
    return ops


def _compiled(code: str) -> Operator:
    define: Operator = eval(f"lambda t, a, b=None, c=None: {code}")
    return define


def draw_operands(rng: random.Random, letters: str) -> list[Any]:
    """Return operands: a, b sparse of one shape; d strided; m a sparse matrix (r: CSR), n, o, v, p what fits it."""
    kind = rng.choice(KINDS) if letters[0] in {"a", "b", "d"} else rng.choice((*FLOATS, "float64"))
    ndim = rng.choice([1, 2, 2, 2, 3])
    shape = tuple(rng.choice([2, 3, 4]) for _ in range(ndim))
    if rng.random() < 0.05:
        shape = (*shape[:-1], 0)
    layout = "sparse_coo" if ndim != 2 or rng.random() < 0.6 else rng.choice(["sparse_csr", "sparse_csc"])
    dense_dim = rng.choice([0, 0, 1]) if layout == "sparse_coo" and ndim > 1 else 0
    n, k, p = (rng.choice([1, 2, 3, 5]) for _ in range(3))
    second = layout if rng.random() < 0.95 else "sparse_coo"
    matrix = rng.choice(["sparse_coo", "sparse_coo", "sparse_csr", "sparse_csc"])
    drawn = {
        "a": lambda: draw_sparse(rng, layout, shape, kind, dense_dim),
        "b": lambda: draw_sparse(rng, second, shape, kind if rng.random() < 0.8 else rng.choice(KINDS), dense_dim),
        "d": lambda: draw_dense(rng, shape, kind),
        "m": lambda: draw_sparse(rng, matrix, (n, k), kind),
        "r": lambda: draw_sparse(rng, "sparse_csr", (n, p if "q" in letters else k), kind),
        "q": lambda: draw_dense(rng, (n, k), kind),
        "n": lambda: draw_dense(rng, (k, p), kind),
        "o": lambda: draw_sparse(rng, matrix, (k, p), kind),
        "v": lambda: draw_dense(rng, (k,), kind),
        "p": lambda: draw_dense(rng, rng.choice([(n, p), (p,), (1, p)]), kind),
        "x": lambda: draw_sparse(rng, "sparse_coo", (2, n, k), kind),
        "y": lambda: draw_dense(rng, (2, k, p), kind),
    }  # fmt: skip
    return [drawn[letter]() for letter in letters]


KNOWN = {
    "alpha.dense": "PyTorch multiplies the wrong operand of CSR + alpha * strided",
    "gradient mul": "PyTorch's gradient of a product of tensors with duplicates has values where the product has none",
    "gradient imul": "as mul",
    "gradient softmax.last": "PyTorch's gradient of the softmax of a vector, or of duplicates, does not sum to zero",
    "gradient softmax.0": "as softmax.last",
    "value sparse.mm.both": "PyTorch's torch.sparse.mm of two CSC matrices is a matrix of zeros",
    "value atan": "at the poles of complex functions, NumPy and PyTorch differ in what is infinite and what is NaN",
    "refused dense.csr": "batches of CSR matrices are not made of strided tensors, which docs/sparse.md says",
    "refused dense.csc": "as dense.csr",
    "refused imul": "PyTorch puts a product of floats into integers; Flambeau refuses, as both do for strided tensors",
    "error type dense.csr": "PyTorch's conversion of a vector fails in an operator within, by IndexError",
    "error type dense.csc": "as dense.csr",
}
"""Differences that are PyTorch's own mistakes."""


def is_known(name: str, found: tuple[str, str], specs: list[Any]) -> bool:
    """Return True if a difference is listed in `KNOWN`."""
    kind = found[0]
    if name == "alpha.dense":
        return specs[0].layout != "sparse_coo"
    if kind == "gradient" and name in ("mul", "imul"):
        return not all(s.coalesced for s in specs)
    if kind == "gradient" and name.startswith("softmax"):
        return len(specs[0].shape) == 1 or not specs[0].coalesced
    if name in ("sparse.mm.both", "sparse.left.both", "sparse.left", "sparse.mm"):
        return kind == "value" and "sparse_csc" in (
            specs[0].layout,
            *(["sparse_csc"] if "left" in name else []),
        )
    if name in ("atan", "log1p"):
        return specs[0].kind.startswith("complex")
    if kind == "refused" and name in ("dense.csr", "dense.csc"):
        return len(specs[0].shape) > 2
    return f"{kind} {name}" in KNOWN


def answer(
    lib: Any, define: Operator, specs: list[Any], device: str, grad: bool
) -> tuple[str, Any, list[Any]]:
    """Return ("value", result, gradients) or ("error", exception, [])."""
    operands = [make(lib, spec, device, grad) for spec in specs]
    try:
        result = define(lib, *operands)
    except Exception as error:
        return "error", error, []
    grads: list[Any] = []
    if grad and isinstance(result, lib.Tensor) and result.requires_grad:
        try:
            dense = result.to_dense() if result.layout is not lib.strided else result
            weights = (
                lib.arange(1, dense.numel() + 1, device=dense.device).reshape(dense.shape).to(dense.dtype)
            )
            loss = (dense * weights).sum() + (dense * dense).sum()
            (loss.real if loss.is_complex() else loss).backward()
            grads = [x.grad if isinstance(x, lib.Tensor) else None for x in operands]
        except Exception as error:
            grads = [error]
    return "value", result, grads


def dense_of(x: Any) -> Any:
    x = x.detach()
    x = x.to_dense() if "strided" not in str(x.layout) else x
    if x.is_complex():
        return np.array(x.to("cpu").tolist(), complex)
    return np.array(x.to("cpu").double().tolist(), float)


def compare(name: str, ours: Any, theirs: Any) -> tuple[str, str] | None:
    """Return the class of a difference between two results, and what it is."""
    if not isinstance(theirs, torch.Tensor):
        return None if ours == theirs else ("value", f"{ours!r} for {theirs!r}")
    form = [
        (str(x.layout).split(".")[-1], tuple(x.shape), str(x.dtype).split(".")[-1], x.sparse_dim(), x.dense_dim())
        for x in (ours, theirs)
    ]  # fmt: skip
    if form[0] != form[1]:
        return "form", f"{form[0]} for {form[1]}"
    if ours.requires_grad != theirs.requires_grad:
        return "gradient", f"requires_grad={ours.requires_grad}"
    a, b = dense_of(ours), dense_of(theirs)
    near = 2e-2 if form[0][2] == "float16" else 1e-4
    if a.shape != b.shape or not np.allclose(a, b, near, near, equal_nan=True):
        return "value", f"{a.tolist()} for {b.tolist()}"
    if form[0][0] == "sparse_coo" and theirs.is_coalesced() and not ours.is_coalesced():
        return "coalesced", "not coalesced"
    return None


def difference(name: str, define: Operator, specs: list[Any], device: str) -> tuple[str, str] | None:
    """Return the class of the first difference between both libraries in one call, and what it is."""
    grad = all(not isinstance(s, Spec) or s.kind in FLOATS for s in specs)
    kind, theirs, their_grads = answer(torch, define, specs, "cpu", grad)
    ours_kind, ours, our_grads = answer(flambeau, define, specs, device, grad)
    if ours_kind == "error":
        if not isinstance(ours, (RuntimeError, TypeError, ValueError, IndexError)):
            return "internal", repr(ours)
        if kind == "value":
            return "refused", f"{ours!r}"
        return None if _matches(ours, theirs) else ("error type", f"{ours!r} for {theirs!r}")
    if kind == "error":
        return None
    found = compare(name, ours, theirs)
    if found is not None:
        return found
    if any(isinstance(g, Exception) for g in their_grads):
        return None
    for our, their in zip(our_grads, their_grads, strict=False):
        if isinstance(our, Exception):
            return "gradient", repr(our)
        if their is None or our is None:
            if their is not our:
                return "gradient", f"{our} for {their}"
            continue
        found = compare(name, our.detach(), their.detach())
        if found is not None and found[0] != "coalesced":
            return "gradient", f"{found[0]} {found[1]}"
    return None


def _matches(ours: Exception, theirs: Exception) -> bool:
    if isinstance(ours, NotImplementedError):
        return True  # what has no sparse form need not look at its arguments first
    bases = [getattr(__import__("builtins"), c.__name__, None) for c in type(theirs).__mro__]
    return isinstance(ours, tuple(b for b in bases[:1] if isinstance(b, type))) or isinstance(
        theirs, type(ours)
    )


def hunt(seed: int, count: int, device: str, only: str = "") -> list[str]:
    """Return the differences of `count` random calls, worst class first."""
    rng = random.Random(seed)
    ops = [(n, op) for n, op in table().items() if only in n]
    found = []
    for i in range(count):
        name, (letters, define) = ops[i % len(ops)]
        specs = draw_operands(rng, letters)
        if name == "repr" and device != "cpu":
            continue  # which names the device
        if name.startswith("index_select") and 0 in specs[0].shape and device != "cpu":
            continue  # a GPU is lost by an index out of range, in PyTorch as well
        result = difference(name, define, specs, device)
        if result is not None and not is_known(name, result, specs):
            what = [
                (s.layout, s.shape, s.sparse_dim, s.kind, s.coalesced) if isinstance(s, Spec) else s
                for s in specs
            ]
            found.append((CLASSES.index(result[0]), f"{result[0]}: {name}: {result[1][:300]} of {what}"))
    return [line for _, line in sorted(found)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with flambeau.virtual(devices=1):
        print("\n".join(hunt(given.seed, given.count, given.device, given.only)))


if __name__ == "__main__":
    main()
