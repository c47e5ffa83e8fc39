"""Modules whose paths libraries import, and names that PyTorch defines in them, act as PyTorch's."""

from __future__ import annotations

import importlib
import io
import pickle
import random
import warnings
import weakref
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flambeau
from flambeau.core.absent_names import advice_for_module

BOTH = pytest.mark.parametrize("m", [flambeau, torch], ids=["flambeau", "torch"])
PATHS = {
    "autograd.profiler_util": ("DeviceType", "EventList", "FunctionEvent", "Interval"),
    "classes": ("load_library", "loaded_libraries"),
    "cuda.amp.autocast_mode": ("autocast", "custom_bwd", "custom_fwd"),
    "cuda.amp.common": ("amp_definitely_not_available",),
    "cuda.amp.grad_scaler": ("GradScaler", "OptState"),
    "fx._compatibility": ("compatibility",),
    "nn.common_types": ("_size_2_t", "_size_any_opt_t", "_ratio_any_t", "_maybe_indices_t"),
    "optim.optimizer": ("ParamsT", "_params_doc", "_foreach_doc", "_use_grad_for_differentiable"),
    "profiler.profiler": ("ProfilerAction", "ProfilerActivity", "profile", "supported_activities"),
    "return_types": ("max", "sort", "topk"),
    "utils._ordered_set": ("OrderedSet",),
    "utils._triton": ("has_triton", "has_triton_package"),
}


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type and text of its error."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


def pair(run: Callable[[Any], Any]) -> tuple[Any, Any]:
    return run(flambeau), run(torch)


@pytest.mark.parametrize("path", PATHS)
def test_module_paths_of_pytorch_are_importable(path: str) -> None:
    ours, theirs = (importlib.import_module(f"{root}.{path}") for root in ("flambeau", "torch"))
    for name in PATHS[path]:
        assert type(getattr(ours, name)) is type(getattr(theirs, name)) or hasattr(ours, name)
    assert not hasattr(ours, "no_such_name") or path == "classes"


def test_names_are_those_of_the_packages() -> None:
    assert flambeau.cuda.amp.autocast_mode.autocast is flambeau.cuda.amp.autocast
    assert flambeau.cuda.amp.grad_scaler.OptState is flambeau.amp.grad_scaler.OptState
    assert importlib.import_module("flambeau.return_types").max is flambeau.return_types.max
    assert flambeau._VF.lstm is flambeau.lstm
    with pytest.raises(AttributeError, match="no_such_function"):
        flambeau._VF.no_such_function  # noqa: B018
    with pytest.raises(RuntimeError, match=r"Class fbgemm\.Table not registered"):
        flambeau.classes.fbgemm.Table()
    assert flambeau.backends.quantized.engine == "none"
    with pytest.raises(RuntimeError, match="x86 is not supported"):
        flambeau.backends.quantized.engine = "x86"
    assert flambeau.autograd._is_checkpoint_valid()


@pytest.mark.parametrize("seed", range(20))
def test_ordered_sets_act_as_pytorchs(seed: int) -> None:
    def run(m: Any) -> list[Any]:
        draw, kind = (
            random.Random(seed),
            importlib.import_module(f"{m.__name__}.utils._ordered_set").OrderedSet,
        )
        s, seen = kind([3, 1, 3]), []
        for _ in range(30):
            name = draw.choice(["add", "discard", "pop", "union", "difference", "intersection", "update", "issubset",
                                "symmetric_difference", "difference_update", "intersection_update", "copy", "issuperset"])  # fmt: skip
            items = [draw.randrange(6) for _ in range(draw.randrange(4))]
            arguments = {"pop": [], "copy": [], "add": items[:1] or [7], "discard": items[:1] or [7]}.get(
                name, [items]
            )
            found = outcome(lambda: getattr(s, name)(*arguments))  # noqa: B023
            seen.append(
                (name, repr(found), repr(s), len(s), list(reversed(s)), s == {*s}, s | kind(items), s - {1})
            )
        return [repr(each) for each in seen] + [repr(pickle.loads(pickle.dumps(s)))]

    ours, theirs = pair(run)
    assert ours == theirs


KINDS = (
    "plain",
    "parameter",
    "leaves",
    "subclass",
    "weak",
    "weak leaf",
    "result",
    "graph",
    "live graph",
    "attribute",
)


def swapped(m: Any, kind: str) -> list[Any]:
    class Sub(m.Tensor):  # type: ignore[misc]
        pass

    a, b = m.arange(6.0).reshape(2, 3), m.ones(4, dtype=m.int64)
    w = m.ones(3, requires_grad=True)
    if kind in ("parameter", "leaves"):
        a = m.nn.Parameter(a)
    if kind == "leaves":
        b = m.zeros(2, requires_grad=True)
    if kind == "subclass":
        a = a.as_subclass(Sub)
    if kind in ("weak leaf", "graph", "live graph"):
        a = m.ones(3, requires_grad=True)
    reference = weakref.ref(a) if kind.startswith("weak") else None
    if kind == "result":
        a = w * 2
    if kind == "attribute":
        a.tag = "A"
    y = (a * 2).sum()
    if kind != "live graph":
        del y
    seen = [outcome(lambda: m.utils.swap_tensors(a, b)), type(a).__name__, type(b).__name__, a.tolist(), b.tolist(),
            a.requires_grad, b.requires_grad, getattr(b, "tag", None), reference is None]  # fmt: skip
    if kind == "live graph":
        seen.append(outcome(lambda: y.backward()))
    elif b.requires_grad:
        (b * 3).sum().backward()
        seen += [None if b.grad is None or not b.is_leaf else b.grad.tolist(), a.grad]
        seen.append(None if w.grad is None else w.grad.tolist())
    return seen


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("kind", KINDS)
def test_swapped_tensors_are_those_of_pytorch(kind: str) -> None:
    ours, theirs = pair(lambda m: swapped(m, kind))
    assert ours == theirs


def test_helpers_of_optimizers_act_as_pytorchs() -> None:
    def run(m: Any) -> list[Any]:
        o = importlib.import_module(f"{m.__name__}.optim.optimizer")
        real, half, whole, c = (
            m.ones(2),
            m.ones(2).half(),
            m.ones(2, dtype=m.int64),
            m.ones(2, dtype=m.complex64),
        )
        lists = [[real, c], [real + 1, c + 1]]
        o._view_as_real(*lists)

        class Step(m.optim.SGD):  # type: ignore[misc]
            @o._use_grad_for_differentiable
            def step(self, closure: Any = None) -> bool:
                return m.is_grad_enabled()

        return [
            o._get_value(m.tensor(2.5)), o._get_value(3), o._stack_if_compiling([1]), o._to_scalar(m.ones(1)).shape,
            o._to_scalar(2), str(o._get_scalar_dtype()), str(o._get_scalar_dtype(True)), lists[0][1].shape,
            o._default_to_fused_or_foreach([real, None], False, True), o._default_to_fused_or_foreach([real], False),
            o._default_to_fused_or_foreach([whole], False, True), o._default_to_fused_or_foreach([real], True, True),
            o._disable_dynamo_if_unsupported()(len)([1, 2]), o._device_dtype_check_for_fused(half),
            outcome(lambda: o._device_dtype_check_for_fused(whole))[0], "cuda" in o._get_capturable_supported_devices(),
            Step([w := m.ones(1, requires_grad=True)], lr=1).step(), Step([w], lr=1, differentiable=True).step(),
            sorted(found[1] for found in m.optim.Optimizer._group_tensors_by_device_and_dtype(
                [[real, half, real]], with_indices=True).values()),
        ]  # fmt: skip

    ours, theirs = pair(run)
    assert ours == theirs


@BOTH
def test_a_relaxed_policy_lets_gradients_keep_their_layout(m: Any) -> None:
    """Check that a leaf takes a gradient without a copy into its layout, as PyTorch documents."""

    def strides(relaxed: bool) -> tuple[int, ...]:
        p = m.zeros(2, 3, 4).permute(2, 0, 1).requires_grad_()
        with m.autograd.enforce_grad_layout_policy(not relaxed):
            (p * m.ones(4, 2, 3)).sum().backward()
        return p.grad.stride()

    assert strides(False) == (1, 12, 4)
    assert strides(True) == (6, 3, 1)
    decorated = m.autograd.enforce_grad_layout_policy(False)(lambda: 3)
    assert decorated() == 3 and strides(False) == (1, 12, 4)


PATTERNS = (
    "a b c -> c (a b)", "a ... -> ... a", "a b c -> a b", "a b -> b a", "a b c -> a b c 1", "a b c-> a () b c", "a b c",
    "a b c -> a b (c", "a a b -> a b", "a b 2 -> a b", "a b c -> a b (c ...)", "(...) -> ...", "a b c -> a b_ c",
    "a 1b c -> a 1b c", "a b c d ... -> a", "... c -> c (...)", "a (b) c -> (c a) b", "a b c 1 -> a b c",
)  # fmt: skip
SIZED = (
    ("a (b d) c -> b a d c", {"b": 3}), ("a b c -> a b c", {"q": 2}), ("a b c -> a b c", {"a": 2.0}),
    ("... (b q) -> q ... b", {"q": 2}), ("(a b) ...->a b ...", {"a": 2, "b": 1}), ("a ... (c d)-> d (a ... c)", {"c": 2}),
    ("a b c -> a b c d", {"d": 1}),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "sizes"), [*[(pattern, {}) for pattern in PATTERNS], *SIZED])
def test_rearranged_tensors_equal_pytorchs(pattern: str, sizes: dict[str, Any]) -> None:
    def run(m: Any) -> Any:
        return outcome(lambda: m.func.rearrange(m.arange(24).reshape(2, 3, 4), pattern, **sizes).tolist())

    ours, theirs = pair(run)
    assert ours == theirs or (ours[0] == theirs[0] and isinstance(ours, tuple) and isinstance(theirs, tuple))


@pytest.mark.parametrize(
    "pattern", ["... -> (...)", "... -> ...", " -> ", "... -> (...) 1", " -> 1", "() -> ()"]
)
def test_rearranged_number_equals_pytorchs(pattern: str) -> None:
    def of(m: Any) -> Any:
        return outcome(lambda: tuple(m.func.rearrange(m.ones(()), pattern).shape))

    assert of(flambeau) == of(torch)


def test_rearrange_refuses_sizes_that_do_not_fit() -> None:
    x = flambeau.arange(24).reshape(2, 3, 4)
    for pattern, sizes in (
        ("a (b d) c -> a b d c", {"b": 2}),
        ("a b c -> a b c", {"a": 3}),
        ("a (b q) c -> a b q c", {}),
    ):
        with pytest.raises(ValueError, match="cannot divide a dimension of size"):
            flambeau.func.rearrange(x, pattern, **sizes)
    assert flambeau.func.rearrange([x, x], "n a b c -> (n a) b c").shape == (4, 3, 4)
    assert flambeau.func.debug_unwrap(x) is x


@pytest.mark.parametrize("seed", range(60))
def test_random_tensors_for_tests_equal_pytorchs(seed: int) -> None:
    draw = random.Random(seed)
    kind = draw.choice(
        ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64"]
    )
    options: dict[str, Any] = {"low": draw.choice([None, -5, 0, -1e30, 2.5, float("nan"), -300])}
    options["high"] = draw.choice([None, 5, 1, 300, 1e35, 0])
    options |= {name: draw.random() < 0.3 for name in ("requires_grad", "noncontiguous", "exclude_zero")}
    shape = draw.choice([(), (3,), (2, 3), (0,), (1,), (4, 5)])

    def run(m: Any) -> Any:
        m.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            t = m.testing.make_tensor(shape, dtype=getattr(m, kind), device="cpu", **options)
        return t.tolist(), t.stride(), t.requires_grad

    ours, theirs = pair(lambda m: outcome(lambda: run(m)))
    assert ours == theirs or (ours[0] == theirs[0] and ours[1].replace("flambeau", "torch") == theirs[1])


@pytest.mark.filterwarnings("ignore:`torch.testing.assert_allclose")
@pytest.mark.parametrize(
    "values", [(1.0, 1.00001), ([1.0], [1.1]), ([float("nan")], [float("nan")]), (1, 2), ([1], [1.0])]
)
def test_assert_allclose_judges_as_pytorchs(values: tuple[Any, Any]) -> None:
    ours, theirs = pair(lambda m: outcome(lambda: m.testing.assert_allclose(*values)))
    assert (ours is None) == (theirs is None)


@pytest.mark.filterwarnings("ignore:XPU is not available")
@BOTH
def test_activities_of_other_devices_record_nothing(m: Any) -> None:
    activity = m.profiler.ProfilerActivity
    assert (
        {each.name for each in map(activity, range(6))} >= {"CPU", "XPU", "CUDA"} if m is flambeau else True
    )
    with (
        pytest.raises(AssertionError, match="No activities specified"),
        m.profiler.profile(activities=[activity.XPU]),
    ):
        pass


@pytest.mark.parametrize(
    ("path", "advice"),
    [("torch._inductor.codecache", "eagerly"), ("torch.distributed._shard.metadata", "DistributedDataParallel"),
     ("torch.utils.mkldnn", "C++"), ("torch.onnx.symbolic_helper", "Export with PyTorch"),
     ("torch.cuda._memory_viz", "flambeau memory"), ("torch.distributed.launcher.api", "flambeau launch"),
     ("torch.nothing", None)],
)  # fmt: skip
def test_absent_modules_have_advice(path: str, advice: str | None) -> None:
    found = advice_for_module(path)
    assert found is None if advice is None else advice in str(found)


def test_private_arguments_of_pytorch_are_accepted() -> None:
    def run(m: Any) -> Any:
        reduce = m.distributed.ReduceOp
        files = [io.BytesIO(), io.BytesIO()]
        for disabled, file in enumerate(files):
            m.save(m.ones(2), file, _disable_byteorder_record=bool(disabled))
        has = [
            "byteorder" in {name.rpartition("/")[2] for name in zipfile.ZipFile(file).namelist()}
            for file in files
        ]
        complex_too = [m.distributed.supports_complex(reduceOp=op) for op in (reduce.SUM, reduce.MAX)]
        return has, complex_too, m.load(io.BytesIO(files[1].getvalue())).tolist()

    ours, theirs = pair(run)
    assert ours == theirs == ([True, True], [True, False], [1.0, 1.0])
