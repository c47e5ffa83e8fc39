"""Classes derived from Tensor, and objects like tensors, as PyTorch's notes on extending it describe them."""

import copy
import functools
import io
import pickle
import sys
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import (
    TorchFunctionMode,
    handle_torch_function,
    has_torch_function,
    is_tensor_like,
    is_tensor_method_or_property,
    resolve_name,
)

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(7)


def tried(label, run):
    try:
        print(label, run())
    except Exception as error:
        print(label, type(error).__name__, str(error).split("\n")[0])


def kinds(x):
    return [type(e).__name__ for e in x] if isinstance(x, (tuple, list)) else type(x).__name__


# -- a class that says nothing ------------------------------------------------------------------------------


class Plain(torch.Tensor):
    pass


data = torch.arange(6.0, device=dev).reshape(2, 3)
p = data.as_subclass(Plain)
print(p, p.shape, type(p) is Plain, isinstance(p, torch.Tensor), p.is_leaf, p.data_ptr() == data.data_ptr())
for run in (
    lambda: p + 1, lambda: 1 + p, lambda: 1 - p, lambda: data * p, lambda: -p, lambda: p @ p.T, lambda: p == data,
    lambda: p[0], lambda: p[:, 1], lambda: p[p > 2], lambda: data[p.long()[:, 0] % 2], lambda: p.sum(), lambda: p.max(0),
    lambda: torch.max(p, 1), lambda: p.split(1), lambda: torch.stack([data, p]), lambda: torch.where(p > 1, p, data),
    lambda: F.relu(p), lambda: F.linear(p, data), lambda: nn.Linear(3, 2).to(dev)(p), lambda: torch.zeros_like(p),
    lambda: p.new_zeros(2), lambda: p.clone(), lambda: p.double(), lambda: p.detach(), lambda: p.cpu(),
    lambda: p.data, lambda: p.T, lambda: torch.linalg.norm(p), lambda: list(p), lambda: p.tolist(), lambda: len(p),
    lambda: torch.einsum("ij,ij->i", p, data), lambda: p.unbind(), lambda: torch.broadcast_tensors(p, data[0]),
    lambda: torch.add(data, p, out=torch.empty(2, 3, device=dev)), lambda: data.add(p), lambda: p.clone().add_(1),
    lambda: p.numpy() if dev.type == "cpu" else p.cpu().numpy(), lambda: torch.softmax(p, 1), lambda: p.view(-1),
    lambda: torch.tensor(p.tolist()), lambda: torch.as_tensor(p), lambda: p.sort(0), lambda: p.to(torch.float16),
):  # fmt: skip
    print(kinds(run()), end=" ")
print()
same = p.clone()
before = id(same)
same += 1
same[0] = 7
same[:, 0] -= 1
print(id(same) == before, same, same.sum().item(), bool((same == same).all()), int(p[1, 1]))
print(
    Plain([1, 2]),
    Plain(2, 3).shape,
    Plain(torch.ones(2, dtype=torch.int64)),
    Plain().shape,
    Plain(p.cpu()).sum(),
)
tried("no subclass", lambda: data.as_subclass(int))
tried("no attribute", lambda: hasattr(p, "unheard_of"))
tried("text", lambda: p + "text")
print(kinds(p.as_subclass(torch.Tensor)))


class Derived(Plain):
    pass


class Stranger(torch.Tensor):
    pass


d = data.as_subclass(Derived)
print(kinds([p + d, d + p, torch.add(p, d), torch.cat([p, d]), d[0], d * 2]))
tried("strangers", lambda: p + data.as_subclass(Stranger))
tried("strangers' sum", lambda: torch.mul(p, data.as_subclass(Stranger)))

# -- gradients ------------------------------------------------------------------------------------------------

x = torch.randn(4, 3).to(dev).as_subclass(Plain).requires_grad_()
w = torch.randn(3, 2).to(dev).requires_grad_()
y = torch.tanh(x @ w)
loss = (y * y).mean()
loss.backward()
print(kinds([y, loss]), kinds(x.grad), kinds(w.grad), x.is_leaf, y.is_leaf, y.requires_grad, y.grad_fn.name())
print(x.grad, w.grad)
print(kinds(torch.autograd.grad((x * 2).sum(), x)), x.grad_fn, x.requires_grad)
tried("leaf in place", lambda: x.add_(1))
tried("view of leaf in place", lambda: x.__setitem__(0, 1.0))
with torch.no_grad():
    x -= 0.1 * x.grad
    print(x, x.is_leaf, kinds(x))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        print("backward", kinds([a, g]), getattr(a, "name_of_mine", None))
        return 2 * a * g


x.grad = None
x.name_of_mine = "x"
out = Square.apply(x)
out.sum().backward()
print(torch.allclose(x.grad, 2 * x), kinds(out))
x.register_hook(lambda g: g * 0)
(x * 3).sum().backward()
print(torch.allclose(x.grad, 2 * x))

rows = torch.utils.data.TensorDataset(torch.arange(4.0).as_subclass(Plain))
print([kinds(batch) for batch in torch.utils.data.DataLoader(rows, batch_size=2)])

# -- attributes, copies, pickles --------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    @staticmethod
    def __new__(cls, values, tag, *args, **kwargs):
        return super().__new__(cls, values, *args, **kwargs)

    def __init__(self, values, tag):
        super().__init__()
        self.tag = tag

    def new_empty(self, *args, **kwargs):
        return Tagged(torch.empty(*args, **kwargs), self.tag)

    def doubled(self):
        return self * 2

    def __repr__(self):
        return f"Tagged({self.tag!r}, {self.tolist()})"

    @property
    def loud(self):
        return self.tag.upper()


t = Tagged([1.0, 2.0], "first")
print(t, t.doubled().tolist(), kinds(t.doubled()), hasattr(t.doubled(), "tag"), t.loud)
again = pickle.loads(pickle.dumps(t))
print(again, kinds(again), again.tag)
deep = copy.deepcopy(t)
deep[0] = 9
print(deep, kinds(deep), t, copy.copy(t))
file = io.BytesIO()
torch.save({"t": t, "n": 3}, file)
file.seek(0)
print(torch.load(file, weights_only=False))
file.seek(0)
with torch.serialization.safe_globals([Tagged]):
    tried("weights only", lambda: torch.load(file, weights_only=True)["t"])


class Slotted(torch.Tensor):
    __slots__ = ("mark",)


s = torch.ones(2).as_subclass(Slotted)
s.mark, s.other = "m", [1, 2]
back = pickle.loads(pickle.dumps(s))
print(back, back.mark, back.other)

leaf = torch.Tensor._make_subclass(Plain, torch.ones(2, device=dev), True)
print(leaf, leaf.is_leaf, torch.Tensor._make_subclass(Plain, leaf).requires_grad)

# -- parameters -----------------------------------------------------------------------------------------------

q = nn.Parameter(torch.ones(3, device=dev).as_subclass(Plain))
print(kinds(q), isinstance(q, nn.Parameter), q.requires_grad, isinstance(p, nn.Parameter), q.is_leaf)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 0.5, device=dev).as_subclass(Plain))
        self.inner = nn.Linear(3, 3)

    def forward(self, a):
        return self.inner(a) * self.w


net = Layer().to(dev)
nn.init.constant_(net.inner.weight, 0.1)
nn.init.zeros_(net.inner.bias)
print(
    [name for name, _ in net.named_parameters()],
    kinds(net.w),
    kinds(net.inner.weight),
    list(net.state_dict()),
)
sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
batch = torch.randn(64, 3).to(dev)
big = torch.randn(64, 64).to(dev).as_subclass(Plain)
for step in range(3):
    sgd.zero_grad()
    value = net(batch).pow(2).mean() + (big @ big).mean()
    value.backward()
    sgd.step()
    print(step, f"{value.item():.5f}", kinds(value), net.w.data.tolist())


class MyParameter(nn.Parameter):
    pass


m = MyParameter(torch.ones(2))
print(kinds(m), kinds(m + 1), isinstance(m, nn.Parameter), has_torch_function((m,)))

# -- logging --------------------------------------------------------------------------------------------------

logged = []


class Logging(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = func.__name__ if func.__name__[:1] != "_" else resolve_name(func).replace("rtruediv", "rdiv")
        logged.append((name, [t.__name__ for t in types], len(args)))
        if kwargs is None:
            kwargs = {}
        return super().__torch_function__(func, types, args, kwargs)


g = torch.ones(2, 2, device=dev).as_subclass(Logging)
for run in (
    lambda: g + 1, lambda: 1 + g, lambda: 2 - g, lambda: g - 2, lambda: 2 / g, lambda: g / 2, lambda: g // 2,
    lambda: g % 2, lambda: g**2, lambda: 2**g, lambda: -g, lambda: +g, lambda: abs(g), lambda: g @ g, lambda: g > 1,
    lambda: g >= 1, lambda: g < 1, lambda: g <= 1, lambda: g == 1, lambda: g != 1, lambda: g.shape, lambda: g.dtype,
    lambda: g.device, lambda: g.requires_grad, lambda: g.T, lambda: g.data, lambda: g.is_leaf, lambda: g.size(0),
    lambda: torch.add(data[:2, :2], g), lambda: data[:2, :2] + g, lambda: data[:2, :2].mul(g), lambda: F.gelu(g),
    lambda: torch.cat((g, g)), lambda: g[0], lambda: len(g),
    lambda: g.sum().item(), lambda: g.backward, lambda: g.clone().zero_(), lambda: g.tolist(), lambda: bool(g[0, 0]),
    lambda: torch.is_tensor(g), lambda: isinstance(g, torch.Tensor), lambda: hash(g) == id(g), lambda: repr(g),
    lambda: torch.nn.functional.mse_loss(g, g), lambda: torch.rand_like(g), lambda: g.reshape(-1), lambda: g.any(),
    lambda: torch.result_type(g, 1), lambda: torch.numel(g), lambda: g.element_size(), lambda: float(g[0, 0]),
    lambda: torch.tensor(g.tolist()), lambda: torch.ones(2, 2), lambda: g.grad, lambda: torch.max(g, dim=0)[1],
):  # fmt: skip
    logged.clear()
    run()
    print(logged)
logged.clear()
with torch._C.DisableTorchFunctionSubclass():
    print(kinds(g + 1), logged, has_torch_function((g,)))
print(kinds(g + 1), logged, has_torch_function((g,)), has_torch_function((data,)))


def setters():
    g.extra = 3
    g.requires_grad = True
    (g * 2).sum().backward()
    g.grad = None


logged.clear()
setters()
print(logged, g.extra)


# -- overriding one method, and super() -----------------------------------------------------------------------


class Counted(torch.Tensor):
    calls = Counter()

    def add(self, other, **options):
        self.calls["add"] += 1
        return super().add(other, **options)

    def __mul__(self, other):
        self.calls["mul"] += 1
        return super().__mul__(other)

    @property
    def shape(self):
        self.calls["shape"] += 1
        return super().shape


c = torch.ones(2, device=dev).as_subclass(Counted)
print(kinds([c.add(1), c * 2, torch.add(c, 1), torch.Tensor.add(c, 1), c + 1]), c.shape, dict(Counted.calls))

# -- a tensor with metadata, that is none ---------------------------------------------------------------------


class Metadata:
    def __init__(self, data, metadata=None):
        self._t = data if isinstance(data, torch.Tensor) else torch.as_tensor(data, device=dev)
        self._metadata = metadata

    def __repr__(self):
        return f"Metadata:\n{self._metadata}\n\ndata:\n{self._t}"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if kwargs is None:
            kwargs = {}
        metadatas = tuple(a._metadata for a in args if hasattr(a, "_metadata"))
        args = [getattr(a, "_t", a) for a in args]
        assert len(metadatas) > 0
        return Metadata(func(*args, **kwargs), metadata=metadatas[0])


a = Metadata([[1.0], [2.0]], metadata={"owner": "Ministry of Silly Walks"})
b = torch.tensor([[1.0, 2.0]], device=dev)
for run in (
    lambda: torch.add(a, b), lambda: torch.mul(b, a), lambda: b + a, lambda: a._t + b, lambda: b - a, lambda: torch.exp(a),
    lambda: torch.matmul(a, b), lambda: F.relu(a), lambda: torch.sum(a), lambda: b.add(a), lambda: b > a,
    lambda: torch.sum(a, dim=0), lambda: F.softmax(a, dim=0), lambda: torch.add(1, a),
):  # fmt: skip
    print(run())
print(is_tensor_like(a), is_tensor_like(b), is_tensor_like(3), is_tensor_like([b]))

HANDLED = {}


def implements(torch_function):
    def decorator(func):
        functools.update_wrapper(func, torch_function)
        HANDLED[torch_function] = func
        return func

    return decorator


class Scalar:
    def __init__(self, n, value):
        self._n, self._value = n, value

    def __repr__(self):
        return f"Scalar(N={self._n}, value={self._value})"

    def tensor(self):
        return self._value * torch.eye(self._n)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if kwargs is None:
            kwargs = {}
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Scalar)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **kwargs)


@implements(torch.mean)
def mean(input):
    return float(input._value) / input._n


def as_tensor(t):
    return t.tensor() if isinstance(t, Scalar) else t


@implements(torch.add)
def add(input, other):
    if isinstance(input, Scalar) and isinstance(other, Scalar) and input._n == other._n:
        return Scalar(input._n, input._value + other._value)
    return torch.add(as_tensor(input), as_tensor(other))


@implements(torch.Tensor.add)
def add_method(input, other):
    return add(input, other)


sc = Scalar(2, 3)
print(
    torch.mean(sc),
    torch.add(sc, sc),
    torch.add(sc, torch.ones(2, 2)),
    torch.ones(2, 2) + sc,
    torch.ones(2, 2).add(sc),
)
tried("not handled", lambda: torch.mul(sc, 3))


# -- functions of one's own, which may be overridden ------------------------------------------------------------


def scaled(x, factor=2):
    if has_torch_function((x,)):
        return handle_torch_function(scaled, (x,), x, factor=factor)
    return x * factor


print(scaled(b), scaled(a, factor=3), kinds(scaled(p)))
logged.clear()
print(kinds(scaled(torch.ones(2).as_subclass(Logging))), [name for name, *_ in logged])
print(is_tensor_method_or_property(torch.Tensor.add), is_tensor_method_or_property(torch.add))
print(is_tensor_method_or_property(torch.Tensor.shape.__get__), resolve_name(torch.Tensor.shape.__get__))
print(
    resolve_name(torch.add),
    resolve_name(torch.Tensor.add),
    resolve_name(F.linear),
    resolve_name(torch.linalg.norm),
)

# -- who is asked first ---------------------------------------------------------------------------------------

order = []


class Base(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        order.append((cls.__name__, [t.__name__ for t in types]))
        return NotImplemented


class Child(Base):
    pass


class Other:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        order.append((cls.__name__, [t.__name__ for t in types]))
        return "other"


print(torch.stack([torch.ones(1).as_subclass(Base), torch.ones(1).as_subclass(Child)], Other()), order)
order.clear()
tried("nobody", lambda: torch.add(torch.ones(1).as_subclass(Base), torch.ones(1).as_subclass(Child)))
tried("nobody's method", lambda: torch.ones(1).as_subclass(Base).add(1))
print(order)

# -- modes ----------------------------------------------------------------------------------------------------


class Told(TorchFunctionMode):
    def __init__(self, name):
        self.name = name
        self.told = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.told.append(resolve_name(func))
        return func(*args, **(kwargs or {}))


with Told("outer") as outer, Told("inner") as inner:
    z = torch.zeros(2) + torch.tensor([1.0])
    F.relu(z).sum().item()
    with torch._C.DisableTorchFunction():
        z.mul(2)
print(outer.told, inner.told)
with Told("outer") as outer:
    (p + 1).view(-1)
print(outer.told)
