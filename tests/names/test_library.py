"""`torch.library`: one program, run by PyTorch's CPU build and by Flambeau."""

from __future__ import annotations

from pathlib import Path

import pytest
from both import run_both

import flambeau as torch

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch import Tensor
from typing import *


def show(label, run):
    try:
        result = run()
    except Exception as error:
        text = str(error).splitlines()[0] if isinstance(error, (RuntimeError, ValueError)) and not isinstance(error, NotImplementedError) else ""
        print(label, type(error).__name__, text.partition(" (with implementation")[0][:68])
    else:
        print(label, result)


library = torch.library


def f1(x: Tensor, y: Tensor, n: int, s: float = 1.5, b: bool = True, t: str = "a", d: torch.device = None) -> Tensor: ...
def f2(x: Optional[Tensor], xs: List[Tensor], ns: Sequence[int], o: Optional[int] = None, *, k: int = 3) -> Tuple[Tensor, Tensor]: ...
def f3(x: Tensor) -> None: ...
def f4(x: Tensor) -> List[Tensor]: ...
def f5(x: Tensor, *args) -> Tensor: ...
def f6(x) -> Tensor: ...
def f7(x: Tensor): ...
def f8(x: dict) -> Tensor: ...
def f9(x: Tensor, ys: list[Tensor], dt: torch.dtype = torch.float32, num: Union[int, float, bool] = 2) -> tuple[Tensor, int]: ...
def f10(x: Tensor, k: Optional[List[Tensor]] = None) -> float: ...
def f11(x: Tensor, dt: torch.dtype, kk: Optional[Sequence[int]] = None, z: Sequence[Optional[Tensor]] = None) -> Tensor: ...
def f12(x: "Tensor", y: "int | None" = None, ws: "list[float]" = None) -> "Tensor": ...
def f13(x: Tensor, ss: List[float] = ()) -> Tensor: ...
def f14(x: Tensor) -> dict: ...
def f15(x: Tensor, y: "Nothing") -> Tensor: ...


for f in (f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15):
    show(f.__name__, lambda: library.infer_schema(f, mutates_args=()))
for changed in ({"x"}, "unknown", {"q"}, {"n"}, "x"):
    show(f"changed {changed}", lambda: library.infer_schema(f1, mutates_args=changed))
show("lists", lambda: library.infer_schema(f2, mutates_args={"xs", "x"}, op_name="foo"))


@library.custom_op("mylib::add", mutates_args=())
def add(x: Tensor, y: float = 2.0) -> Tensor:
    return x + y


op = torch.ops.mylib.add
print(add, type(add).__name__, add._name, add._qualname, add._opoverload, add._schema)
print(op, repr(op), op.default, repr(op.default), op.default._schema, op.overloads(), op.default.name(), op.default.namespace, op.default.overloadpacket is op)
print(torch.ops.mylib, hasattr(torch.ops.mylib, "nothing"), type(op).__name__, type(op.default).__name__, op.default is add._opoverload)
x = torch.ones(2)
show("call", lambda: [add(x), op(x, 3.0), op.default(x, y=1.0), add(x, 1), add(x=x)])
for args, kwargs in (((x, 1.0, 2.0), {}), ((), {}), (("x",), {}), ((x, "x"), {}), ((x,), {"z": 1}), (([x],), {})):
    show("wrong", lambda: add(*args, **kwargs))
xr = torch.ones(2, requires_grad=True)
out = add(xr)
show("no formula", lambda: [out.requires_grad, type(out.grad_fn).__name__])
show("no formula", lambda: out.sum().backward())
with torch.no_grad():
    show("no grad", lambda: add(xr).requires_grad)
show("alias", lambda: library.custom_op("mylib::ident", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")(x))
show("view", lambda: library.custom_op("mylib::view", lambda x: x[1:], mutates_args=(), schema="(Tensor x) -> Tensor")(x))
show("name", lambda: library.custom_op("nocolons", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor"))
show("schema", lambda: library.custom_op("mylib::mism", lambda x: x, mutates_args={"x"}, schema="(Tensor x) -> Tensor"))


@library.custom_op("mylib::mul", mutates_args=())
def mul(x: Tensor, y: Tensor, n: int = 3) -> Tensor:
    return x * y * n


shows = True


def setup(ctx, inputs, output):
    x, y, ctx.n = inputs
    ctx.save_for_backward(x, y)


def back(ctx, g):
    x, y = ctx.saved_tensors
    if shows:
        print("needs", ctx.needs_input_grad)
    return g * y * ctx.n, g * x * ctx.n, None


library.register_autograd("mylib::mul", back, setup_context=setup)
a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
for call in (lambda: mul(a, b, 2), lambda: mul(a, b), lambda: mul(a, b.detach()), lambda: torch.ops.mylib.mul.default(a, b, n=5)):
    a.grad = b.grad = None
    out = call()
    out.sum().backward()
    print(out.detach(), type(out.grad_fn).__name__, a.grad, b.grad)
shows = False
show("twice", lambda: torch.autograd.gradcheck(lambda p, q: mul(p, q, 2), (torch.rand(3, dtype=torch.float64, requires_grad=True), torch.rand(3, dtype=torch.float64, requires_grad=True))))
p, q = torch.rand(3, dtype=torch.float64, requires_grad=True), torch.rand(3, dtype=torch.float64, requires_grad=True)
show("second", lambda: torch.autograd.gradgradcheck(lambda p, q: mul(p, q, 2), (p, q)))
mul.register_autograd(lambda ctx, g: (g, g, None))
a.grad = None
mul(a, b, 2).sum().backward()
print(a.grad)
mul.register_autograd(lambda ctx, g: (g,))
show("too few", lambda: mul(a, b, 2).sum().backward())


@library.custom_op("mylib::several", mutates_args=())
def several(xs: List[Tensor], s: float, *, k: int = 1) -> Tuple[Tensor, List[Tensor]]:
    return sum(xs) * s * k, [x * s for x in xs]


def setup_several(ctx, inputs, keyword_only_inputs, output):
    ctx.s, ctx.k, ctx.count = inputs[1], keyword_only_inputs["k"], len(inputs[0])


def back_several(ctx, g, gs):
    return [g * ctx.s * ctx.k + h * ctx.s for h in gs], None


several.register_autograd(back_several, setup_context=setup_several)
a.grad = b.grad = None
total, parts = several([a, b], 2.0, k=3)
(total.sum() + parts[1].sum()).backward()
print(total.detach(), [p.detach() for p in parts], type(parts).__name__, a.grad, b.grad)


@library.custom_op("mylib::change", mutates_args={"x"})
def change(x: Tensor, y: Optional[Tensor] = None) -> None:
    x.sin_()


z = torch.ones(2)
version = z._version
show("change", lambda: [change(z), z, z._version > version, change._opoverload._schema])
show("change", lambda: change.register_autograd(back))

lib = library.Library("other", "FRAGMENT")
show("define", lambda: lib.define("f(Tensor x, int n=2) -> Tensor"))
show("no kernel", lambda: torch.ops.other.f(x))
lib.impl("f", lambda x, n=2: x * n, "CPU")
show("impl", lambda: [torch.ops.other.f(x), torch.ops.other.f.default(x, n=5), torch.ops.other.f(x, 2)])
show("again", lambda: lib.define("f(Tensor x) -> Tensor"))
library.register_fake("other::f", lambda x, n=2: x)
show("keeps", lambda: library.register_fake("other::f", lambda x, n=2: x, allow_override=False))
show("replaces", lambda: library.register_fake("other::f", lambda x, n=2: x) and None)
lib.define("f.two(Tensor x, Tensor y) -> Tensor")
lib.impl("f.two", lambda x, y: x + y, "CompositeImplicitAutograd")
show("overloads", lambda: [torch.ops.other.f(x, x), torch.ops.other.f.overloads(), torch.ops.other.f.two(x, x), torch.ops.other.f(x, 4)])
show("none", lambda: torch.ops.other.f("a", "b"))
show("composite", lambda: type(torch.ops.other.f.two(a, b).grad_fn).__name__)
show("absent", lambda: torch.ops.other.nothing)
show("absent", lambda: torch.ops.other.f.three)
show("key", lambda: lib.impl("f", lambda x: x, "NoKey"))
show("callable", lambda: lib.impl("f", 3, "CPU"))
show("override", lambda: lib.impl("f", lambda x: x, "CPU", allow_override=False))
show("kind", lambda: library.Library("x", "FOO"))
show("reserved", lambda: library.Library("prim", "DEF"))
first = library.Library("uniq", "DEF")
show("twice", lambda: library.Library("uniq", "DEF"))
first._destroy()
show("again", lambda: type(library.Library("uniq", "DEF")).__name__)
show("schema", lambda: lib.define("f"))
show("schema", lambda: lib.define("g(Foo x) -> Tensor"))


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.other.sine(x)

    @staticmethod
    def backward(ctx, g):
        return 10 * g


lib.define("sine(Tensor x) -> Tensor")
lib.impl("sine", lambda x: x.sin(), "CPU")
lib.impl("sine", Sine.apply, "Autograd")
a.grad = None
torch.ops.other.sine(a).sum().backward()
print(a.grad)

library.define("yet::op", "(Tensor x) -> Tensor")


@library.impl("yet::op", "cpu")
def op_cpu(x):
    return x * 7


show("yet", lambda: torch.ops.yet.op(x))
show("yet", lambda: library.define("yet::op", "(Tensor x) -> Tensor"))
show("yet", lambda: library.define("yet", "(Tensor x) -> Tensor"))
show("yet", lambda: library.define("yet::other", "other(Tensor x) -> Tensor"))
library.register_autograd("yet::op", lambda ctx, g: g * 7)
a.grad = None
torch.ops.yet.op(a).sum().backward()
print(a.grad)
old = library.Library("old", "DEF")
old.define("g(Tensor x) -> Tensor")


@library.impl(old, "g", "CPU")
def g_cpu(x):
    return x * 8


show("old", lambda: torch.ops.old.g(x))


@library.custom_op("mylib::cpuonly", mutates_args=(), device_types="cuda")
def cpuonly(x: Tensor) -> Tensor:
    return x.clone()


show("device", lambda: cpuonly(x))
cpuonly.register_kernel("cpu")(lambda x: x * 9)
show("device", lambda: cpuonly(x))
with cpuonly.set_kernel_enabled("cpu", False):
    show("disabled", lambda: cpuonly(x))
show("device", lambda: cpuonly(x))
show("kernel", lambda: callable(library.register_kernel("mylib::add", "cuda", lambda x, y: x)))
show("unknown", lambda: library.register_fake("mylib::absent", back))


@library.register_fake("mylib::add")
def add_fake(x, y=2.0):
    return torch.empty_like(x)


show("opcheck", lambda: library.opcheck(add, (torch.randn(3),), test_utils=("test_schema", "test_autograd_registration", "test_faketensor")))
library.custom_op("mylib::wrong", lambda x: x.add_(1).clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
show("opcheck", lambda: "test_schema failed" in str(library.opcheck(torch.ops.mylib.wrong.default, (torch.randn(3),), test_utils="test_schema")))
show("opcheck", lambda: library.opcheck(3, ()))
show("opcheck", lambda: library.opcheck(add, (x,), test_utils="nothing"))
add.register_autocast("cpu", torch.bfloat16)
with torch.autocast("cpu"):
    show("autocast", lambda: add(x).dtype)
show("autocast", lambda: add(x).dtype)
show("ctx", library.get_ctx)
show("numbers", lambda: library.custom_op("mylib::size", lambda n, s: torch.full((n,), s), mutates_args=(), schema="(SymInt n, Scalar s) -> Tensor")(2, 3.5))
show("ints", lambda: library.custom_op("mylib::ints", lambda x, n: x.sum() + sum(n), mutates_args=(), schema="(Tensor x, int[2] n) -> Tensor")(x, 3))
show("replaced", lambda: library.custom_op("mylib::add", lambda x: x * 100, mutates_args=(), schema="(Tensor x) -> Tensor")(x))


@torch.library.triton_op("mine::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


show("a Triton operator", lambda: (twice(torch.arange(3)).tolist(), str(torch.ops.mine.twice.default)))
"""


def test_library_agrees_with_pytorch(tmp_path: Path) -> None:
    run_both(tmp_path, PROGRAM, 90)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: torch.library.wrap_triton(print), "Triton kernels"),
        (lambda: torch.library.Library("a", "IMPL").fallback(print), "TorchFunctionMode"),
        (lambda: torch.library.register_torch_dispatch("a::b", None), "__torch_function__"),
    ],
)
def test_what_needs_triton_or_dispatch_raises(call, advice: str) -> None:
    with pytest.raises(torch.NotSupportedError, match=advice):
        call()


def test_fake_functions_that_lie_are_caught() -> None:
    op = torch.library.custom_op("lies::op", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: x.new_empty(7))
    with pytest.raises(Exception, match=r"test_faketensor failed .* shape \(7,\)"):
        torch.library.opcheck(op, (torch.ones(3),))


def test_operators_run_on_virtual_gpus() -> None:
    op = torch.library.custom_op("gpus::op", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_kernel("cuda", lambda x: x * 3)
    op.register_autograd(lambda ctx, g: g * 3)
    with torch.virtual(devices=1):
        x = torch.ones(2, device="cuda", requires_grad=True)
        op(x).sum().backward()
        assert op(x).tolist() == [3, 3] and x.grad.tolist() == [3, 3]
        assert op(torch.ones(2)).tolist() == [2, 2]
