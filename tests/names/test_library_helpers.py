"""Private names of PyTorch that packages import: they compute what PyTorch's do, or say what is missing."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support import torch

import flambeau
import flambeau._guards
import flambeau._vmap_internals
import flambeau.autograd.functional
import flambeau.nn._reduction
import flambeau.nn.utils._named_member_accessor as accessor
import flambeau.optim.lbfgs
from flambeau._subclasses.fake_tensor import FakeTensorMode
from flambeau.func import functional_modules

if torch is not None:
    import functorch
    import torch.autograd.functional
    import torch.nn._reduction
    import torch.nn.utils._named_member_accessor
    import torch.optim.lbfgs

oracle = pytest.mark.skipif(torch is None, reason="needs PyTorch")


def _outcome(call: Any) -> Any:
    try:
        return call()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return type(error).__name__, str(error).partition(": Flambeau")[0]


@oracle
@pytest.mark.parametrize("kind", [float, int, bool, complex, "float64", str])
def test_limits_of_python_types_equal(kind: Any) -> None:
    for name in ("finfo", "iinfo"):
        ours, theirs = [_outcome(lambda: repr(getattr(lib, name)(kind))) for lib in (flambeau, torch)]  # noqa: B023
        assert ours == theirs


@oracle
@pytest.mark.filterwarnings("ignore")
def test_reductions_equal() -> None:
    for name in ("none", "mean", "sum", "max"):
        ours, theirs = [_outcome(lambda: lib.nn._reduction.get_enum(name)) for lib in (flambeau, torch)]  # noqa: B023
        assert ours == theirs
    for average in (None, True, False):
        for reduce in (None, True, False):
            ours, theirs = [
                [lib.nn._reduction.legacy_get_string(average, reduce, emit) for emit in (True, False)]
                for lib in (flambeau, torch)
            ]
            assert ours == theirs


@oracle
@pytest.mark.parametrize("name", ["weight", "running_mean", "plain", "number", "absent", "", "a.b"])
def test_swapped_tensors_equal(name: str) -> None:
    def run(library: Any, allow: bool) -> Any:
        module = library.nn.BatchNorm1d(2)
        module.plain, module.number = library.ones(1), 3
        swap = library.nn.utils._named_member_accessor.swap_tensor
        outcome = _outcome(lambda: swap(module, name, library.zeros(2), allow))
        if isinstance(outcome, tuple):
            return outcome[0]
        kept = getattr(module, name).tolist() if name else None
        return (outcome.tolist() if isinstance(outcome, library.Tensor) else type(outcome).__name__), kept

    for allow in (False, True):
        assert run(flambeau, allow) == run(torch, allow)
    assert accessor._MISSING is not None


@oracle
def test_helpers_of_functional_equal() -> None:
    def run(library: Any) -> Any:
        f = library.autograd.functional
        tensors = (library.ones(2, 1), library.ones(3))
        basis = f._construct_standard_basis_for(tensors, (2, 3))
        leaf = library.ones(1, requires_grad=True)
        return (
            [b.tolist() for b in basis],
            f._as_tuple(1),
            _outcome(lambda: f._as_tuple(1, "inputs", "vjp")),
            [f._tuple_postprocess(((1, 2), (3, 4)), unpack) for unpack in (True, False)],
            [f._tuple_postprocess([[leaf], [leaf]], (a, False))[0] is not None for a in (True, False)],
            f._grad_postprocess((leaf,), False)[0].requires_grad,
            f._grad_postprocess(((leaf,),), True)[0][0].requires_grad,
        )

    assert run(flambeau) == run(torch)


@oracle
@pytest.mark.parametrize("c2", [0.9, 0.4, 0.1])
@pytest.mark.parametrize("t", [0.05, 1.0, 30.0])
def test_line_searches_equal(t: float, c2: float) -> None:
    def run(library: Any) -> Any:
        x = library.tensor([-1.2, 1.0], dtype=library.float64)

        def value(at: Any) -> Any:
            leaf = at.clone().requires_grad_()
            loss = 100 * (leaf[1] - leaf[0] ** 2) ** 2 + (1 - leaf[0]) ** 2
            return loss.item(), library.autograd.grad(loss, leaf)[0]

        loss, grad = value(x)
        d = -grad / 100
        found = import_module(f"{library.__name__}.optim.lbfgs")._strong_wolfe(
            lambda x, t, d: value(x + t * d), x, t, d, loss, grad, grad.dot(d), c2=c2
        )
        return [float(found[0]), float(found[2]), found[3], *found[1].tolist()]

    assert run(flambeau) == pytest.approx(run(torch), rel=1e-9)


@oracle
@pytest.mark.filterwarnings("ignore")
def test_functional_modules_equal() -> None:
    def run(make: Any, library: Any) -> Any:
        module = library.nn.Sequential(library.nn.Linear(2, 2), library.nn.BatchNorm1d(2)).eval()
        for p in module.parameters():
            p.data.fill_(0.5)
        function, params, buffers = make.make_functional_with_buffers(module)
        result = function([p * 2 for p in params], buffers, library.ones(1, 2))
        with pytest.raises(RuntimeError) as caught:
            make.make_functional(module)
        linear, values = make.make_functional(module[0], disable_autograd_tracking=True)
        return (
            result.tolist(), linear(values, library.ones(2)).tolist(), type(function).__name__, type(linear).__name__,
            [v.requires_grad for v in values], str(caught.value)[:60],
        )  # fmt: skip

    assert run(functional_modules, flambeau) == run(functorch, torch)


@oracle
def test_tensors_of_files_equal(tmp_path: Path) -> None:
    for shared in (True, False, None):
        results = []
        for library in (flambeau, torch):
            path = tmp_path / f"{library.__name__}{shared}"
            path.write_bytes(bytes(range(24)))
            t = library.from_file(str(path), shared, 3, dtype=library.int64)
            t[0] = 7
            results.append((t.tolist(), t.is_leaf, path.read_bytes()))
        assert results[0] == results[1]
    with pytest.raises(RuntimeError, match="ordinary CPU memory"):
        flambeau.from_file(str(tmp_path / "x"), True, 3, device="meta")


def test_fake_modes_are_detected() -> None:
    guards = flambeau._guards
    assert guards.active_fake_mode() is None
    with FakeTensorMode() as mode:
        assert guards.active_fake_mode() is mode
        fake = flambeau.ones(1)
    assert guards.detect_fake_mode([1, {"a": fake}]) is mode
    assert guards.detect_fake_mode([flambeau.ones(1)]) is None


def test_mapped_functions_and_dual_levels_are_found() -> None:
    mapped = flambeau._vmap_internals._vmap(lambda x: x * 2)
    assert mapped(flambeau.arange(3)).tolist() == [0, 2, 4]
    assert flambeau.autograd.forward_ad._current_level == -1
    with flambeau.autograd.forward_ad.dual_level():
        assert flambeau.autograd.forward_ad._current_level == 0


def test_absent_types_work_in_annotations() -> None:
    assert isinstance(flambeau.ones(1), str | flambeau.DeviceObjType) is False
    with pytest.raises(flambeau.NotSupportedError, match="script"):
        flambeau.IntType()
