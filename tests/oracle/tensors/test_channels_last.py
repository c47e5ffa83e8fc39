"""Layouts of results and gradients where inputs lie channels last: PyTorch's strides, and its values through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import HALVES, from_torch, to_torch, torch

import flambeau

Run = Callable[..., Any]
IMAGE, VOLUME = (2, 4, 6, 6), (2, 4, 6, 4, 8)
CONVOLUTIONS: dict[
    str, tuple[tuple[int, ...], Run]
] = {  # weights of images; of volumes they are longer by one 3
    "conv": ((6, 4, 3, 3), lambda f, m, x, w: f.conv(x, w)),
    "conv with a bias": ((6, 4, 3, 3), lambda f, m, x, w: f.conv(x, w, m.ones(6, dtype=x.dtype), padding=1)),
    "conv of groups": ((4, 2, 3, 3), lambda f, m, x, w: f.conv(x, w, groups=2)),
    "conv, dilated": ((6, 4, 2, 2), lambda f, m, x, w: f.conv(x, w, dilation=2)),
    "conv, strided": ((6, 4, 3, 3), lambda f, m, x, w: f.conv(x, w, stride=2, padding=1)),
    "conv, same": ((6, 4, 3, 3), lambda f, m, x, w: f.conv(x, w, padding="same")),
    "conv to one channel": ((1, 4, 3, 3), lambda f, m, x, w: f.conv(x, w, padding=1)),
    "conv_transpose": ((4, 6, 3, 3), lambda f, m, x, w: f.conv_transpose(x, w, stride=2, padding=1)),
}
OF_BOTH: dict[str, Run] = {
    "max_pool": lambda f, m, x: f.max_pool(x, 2),
    "max_pool, overlapping": lambda f, m, x: f.max_pool(x, 3, stride=2, padding=1),
    "max_pool and places": lambda f, m, x: f.max_pool(x, 2, return_indices=True),
    "max_unpool": lambda f, m, x: f.max_unpool(*f.max_pool(x, 2, return_indices=True), 2),
    "avg_pool": lambda f, m, x: f.avg_pool(x, 2),
    "adaptive_avg_pool": lambda f, m, x: f.adaptive_avg_pool(x, 2),
    "adaptive_avg_pool of all": lambda f, m, x: f.adaptive_avg_pool(x, 1),
    "adaptive_max_pool": lambda f, m, x: f.adaptive_max_pool(x, 2),
    "adaptive_max_pool of all": lambda f, m, x: f.adaptive_max_pool(x, 1),
    "interpolate nearest": lambda f, m, x: f.interpolate(x, scale_factor=2),
    "interpolate nearest-exact": lambda f, m, x: f.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "interpolate linear": lambda f, m, x: f.interpolate(
        x, scale_factor=2, mode="bilinear" if x.dim() == 4 else "trilinear"
    ),
    "interpolate area": lambda f, m, x: f.interpolate(x, size=(3,) * (x.dim() - 2), mode="area"),
    "grid_sample": lambda f, m, x: f.grid_sample(
        x, m.full((2, *(3,) * (x.dim() - 2), x.dim() - 2), 0.3, dtype=x.dtype), align_corners=False
    ),
    "reflect": lambda f, m, x: f.pad(x, (1, 1) * (x.dim() - 2), mode="reflect"),
    "replicate": lambda f, m, x: f.pad(x, (1, 2) * (x.dim() - 2), mode="replicate"),
    "circular": lambda f, m, x: f.pad(x, (1, 1) * (x.dim() - 2), mode="circular"),
    "pad": lambda f, m, x: f.pad(x, (1, 2, 0, 1), value=3.0),
    "pad, cut": lambda f, m, x: f.pad(x, (-1, 2)),
    "pad, cut alone": lambda f, m, x: f.pad(x, (-1, -1)),
    "pad of channels": lambda f, m, x: f.pad(x, (0,) * (2 * x.dim() - 4) + (1, 1)),
    "dropout": lambda f, m, x: f.dropout(x, 0.5, training=False),
    "batch_norm": lambda f, m, x: f.batch_norm(x, None, None, m.ones(4, dtype=x.dtype), None, True),
    "batch_norm of moments": lambda f, m, x: f.batch_norm(
        x, m.zeros(4, dtype=x.dtype), m.ones(4, dtype=x.dtype), m.ones(4, dtype=x.dtype)
    ),
    "instance_norm": lambda f, m, x: f.instance_norm(x),
    "group_norm": lambda f, m, x: f.group_norm(x, 2, m.ones(4, dtype=x.dtype), m.zeros(4, dtype=x.dtype)),
    "layer_norm": lambda f, m, x: f.layer_norm(x, x.shape[1:]),
    "rms_norm": lambda f, m, x: f.rms_norm(x, x.shape[-1:]),
    "local_response_norm": lambda f, m, x: f.local_response_norm(x, 2),
    "normalize": lambda f, m, x: f.normalize(x),
    "channel_shuffle": lambda f, m, x: f.channel_shuffle(x, 2),
    "relu": lambda f, m, x: f.relu(x), "gelu": lambda f, m, x: f.gelu(x), "silu": lambda f, m, x: f.silu(x),
    "sigmoid": lambda f, m, x: x.sigmoid(), "leaky_relu": lambda f, m, x: f.leaky_relu(x),
    "glu": lambda f, m, x: f.glu(x, 1), "softmax": lambda f, m, x: f.softmax(x, 1),
    "prelu": lambda f, m, x: f.prelu(x, m.ones(4, dtype=x.dtype)), "mish": lambda f, m, x: f.mish(x),
    "hardtanh": lambda f, m, x: f.hardtanh(x), "elu": lambda f, m, x: f.elu(x), "logsigmoid": lambda f, m, x: f.logsigmoid(x),
    "hardswish": lambda f, m, x: f.hardswish(x), "softplus": lambda f, m, x: f.softplus(x),
    "cat": lambda f, m, x: m.cat([x, x * 2], 1), "cat of one": lambda f, m, x: m.cat([x]),
    "cat of both formats": lambda f, m, x: m.cat([x, x.clone(memory_format=m.contiguous_format)], 1),
    "cat of dtypes": lambda f, m, x: m.cat([x, x.double()], 1),
    "cat after nothing": lambda f, m, x: m.cat([m.zeros(0, dtype=x.dtype), x]),
    "stack": lambda f, m, x: m.stack([x, x], 1), "stack at the end": lambda f, m, x: m.stack([x, x], -1),
    "stack of samples": lambda f, m, x: m.stack([x[0], x[1]]), "hstack": lambda f, m, x: m.hstack([x, x]),
    "add": lambda f, m, x: x + x, "scaled": lambda f, m, x: x * 2, "row": lambda f, m, x: x * m.ones(x.shape[-1], dtype=x.dtype),
    "add of both": lambda f, m, x: x.clone(memory_format=m.contiguous_format) + x,
    "where": lambda f, m, x: m.where(x > 0, x, 0.0), "clamp": lambda f, m, x: x.clamp(0, 1),
    "sum": lambda f, m, x: x.sum(1), "mean": lambda f, m, x: x.mean((2, 3), keepdim=True),
    "norm": lambda f, m, x: x.norm(dim=1, keepdim=True), "nansum": lambda f, m, x: x.nansum(1),
    "amax": lambda f, m, x: x.amax(1), "var": lambda f, m, x: x.var(1), "cumsum": lambda f, m, x: x.cumsum(1),
    "sort": lambda f, m, x: x.sort(1)[0], "flip": lambda f, m, x: x.flip(1), "roll": lambda f, m, x: x.roll(1, 1),
    "index_add": lambda f, m, x: x.index_add(1, m.tensor([0]), x[:, 1:2]),
    "index_copy": lambda f, m, x: x.index_copy(1, m.tensor([0]), x[:, 1:2]),
    "index_fill": lambda f, m, x: x.index_fill(1, m.tensor([0]), 0),
    "scatter": lambda f, m, x: x.scatter(1, x.argsort(1), x.detach()),
    "scatter_add": lambda f, m, x: x.scatter_add(1, x.argsort(1), x),
    "masked_fill": lambda f, m, x: x.masked_fill(x > 0, 0), "gather": lambda f, m, x: x.gather(1, x.argsort(1)),
    "slice": lambda f, m, x: x[:, 1:3].relu(), "clone": lambda f, m, x: x.clone(), "to": lambda f, m, x: x.to(m.float64),
    "bce with logits": lambda f, m, x: f.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), reduction="none"),
    "smooth_l1": lambda f, m, x: f.smooth_l1_loss(x, x.detach() + 1), "mse": lambda f, m, x: f.mse_loss(x, x.detach() + 1),
}  # fmt: skip
OF_IMAGES: dict[str, Run] = {
    "lp_pool": lambda f, m, x: f.lp_pool2d(x, 2, 2),
    "interpolate bicubic": lambda f, m, x: f.interpolate(x, size=(9, 9), mode="bicubic"),
    "interpolate antialias": lambda f, m, x: f.interpolate(x, size=(3, 3), mode="bilinear", antialias=True),
    "pixel_shuffle": lambda f, m, x: f.pixel_shuffle(m.cat([x, x], 1), 2),
    "pixel_unshuffle": lambda f, m, x: f.pixel_unshuffle(x, 2),
    "unfold": lambda f, m, x: f.unfold(x, 2),
    "dropout2d": lambda f, m, x: f.dropout2d(x, 0.5, training=False),
}
KNOWN = {  # gradients, where x and the result's gradient lie in two formats (docs/operators.md)
    "mse", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
}  # fmt: skip
KNOWN_RESULTS = {"logsigmoid"}
CASES = [
    *[(name, run, shape) for name, run in OF_BOTH.items() for shape in (IMAGE, VOLUME)],
    *[(name, run, IMAGE) for name, run in OF_IMAGES.items()],
]


class Functional:
    """torch.nn.functional, whose functions of images and of volumes have one name."""

    def __init__(self, room: Any, dims: int) -> None:
        self.functions, self.dims = room.nn.functional, dims

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.functions, f"{name}{self.dims}d", None)
        return getattr(self.functions, name) if found is None else found


def last(room: Any, shape: Any) -> Any:
    return room.channels_last if len(shape) == 4 else room.channels_last_3d


def drawn(shape: Any, kind: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(kind)


def both_formats(x: Any) -> Iterator[Any]:
    yield x
    yield x.to(memory_format=last(torch, x.shape))


def leaves(found: Any) -> list[Any]:
    return [t for one in found for t in leaves(one)] if isinstance(found, tuple | list) else [found]


def results(room: Any, run: Run, inputs: Any) -> Any:
    made = [from_torch(t) for t in inputs] if room is flambeau else inputs
    return leaves(run(Functional(room, inputs[0].dim() - 2), room, *made))


def gradients(room: Any, run: Run, inputs: Any, grad_last: bool) -> Any:
    made = [(from_torch(t) if room is flambeau else t.detach()).requires_grad_() for t in inputs]
    outs = leaves(run(Functional(room, inputs[0].dim() - 2), room, *made))
    outs = [out for out in outs if out.requires_grad]
    given = []
    for seed, out in enumerate(outs, 1):
        grad = drawn(tuple(out.shape), getattr(torch, str(out.dtype).split(".")[1]), seed)
        if grad_last and grad.dim() == inputs[0].dim():
            grad = grad.to(memory_format=last(torch, grad.shape))
        given.append(from_torch(grad) if room is flambeau else grad)
    return list(room.autograd.grad(outs, made, given))


def agree(ours: Any, theirs: Any, about: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert tuple(a.stride()) == tuple(b.stride()), about
        torch.testing.assert_close(
            to_torch(a.detach()).cpu(), b.detach().cpu(), rtol=1e-4, atol=1e-4, check_stride=False
        )


@pytest.mark.parametrize(
    "name, run, shape", CASES, ids=[f"{name} {len(shape) - 2}d" for name, _, shape in CASES]
)
def test_results_and_gradients(name: str, run: Run, shape: Any) -> None:
    for x in both_formats(drawn(shape)):
        ours, theirs = results(flambeau, run, (x,)), results(torch, run, (x,))
        if name not in KNOWN_RESULTS:
            agree(ours, theirs, (name, x.stride()))
        for grad_last in (False, True):
            mixed = grad_last != (x.stride(1) == 1)
            if not (mixed and name in KNOWN) and name not in (
                "pixel_shuffle",
                "pixel_unshuffle",
                "channel_shuffle",
            ):
                ours, theirs = (gradients(m, run, (x,), grad_last) for m in (flambeau, torch))
                agree(ours, theirs, (name, x.stride(), grad_last))


@pytest.mark.parametrize("dims", (2, 3))
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dims: int) -> None:
    """Either side decides; the gradients by both sides lie as the result."""
    size, run = CONVOLUTIONS[name]
    kinds = [torch.float32, torch.float64, *[getattr(torch, half) for half in HALVES], torch.complex64]
    for kind in (
        kinds[:-1] if size[0] == 1 else kinds
    ):  # complex ones are made of parts, which forgets one channel's
        for x in both_formats(drawn(IMAGE if dims == 2 else VOLUME, kind)):
            for weight in both_formats(drawn((*size, *size[3:] * (dims - 2)), kind, 1)):
                ours, theirs = (results(m, run, (x, weight)) for m in (flambeau, torch))
                about = (name, kind, x.stride(), weight.stride())
                assert [t.stride() for t in ours] == [t.stride() for t in theirs], about
                if kind in (torch.float32, torch.float64):
                    agree(ours, theirs, about)
                    for grad_last in (False, True):
                        ours, theirs = (gradients(m, run, (x, weight), grad_last) for m in (flambeau, torch))
                        agree(ours, theirs, about)


NUMBERS: dict[str, Run] = {  # numbers are tensors of no dimensions to some, which take no short cut then
    "add": lambda f, m, x: x + 1, "rsub": lambda f, m, x: 1 - x, "add alpha": lambda f, m, x: m.add(x, x, alpha=2),
    "add a number, alpha": lambda f, m, x: m.add(x, 1, alpha=2), "pow": lambda f, m, x: x**2,
    "floor_divide": lambda f, m, x: x // 2, "eq": lambda f, m, x: x == 1, "clamp": lambda f, m, x: x.clamp(0, 1),
    "leaky_relu": lambda f, m, x: f.leaky_relu(x, 0.1), "elu": lambda f, m, x: f.elu(x), "lerp": lambda f, m, x: m.lerp(x, x, 0.5),
    "addcmul": lambda f, m, x: m.addcmul(x, x, x), "where": lambda f, m, x: m.where(x > 0, x, 0.0), "relu": lambda f, m, x: f.relu(x),
    "threshold": lambda f, m, x: f.threshold(x, 0.1, 1), "conv": lambda f, m, x: f.conv(x, m.ones(3, x.shape[1], 1, 1)),
    "avg_pool": lambda f, m, x: f.avg_pool(x, 1), "zeros_like": lambda f, m, x: m.zeros_like(x), "cat": lambda f, m, x: m.cat([x, x], 1),
    "to": lambda f, m, x: x.to(memory_format=m.channels_last), "contiguous": lambda f, m, x: x.contiguous(memory_format=m.channels_last),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_one_channel_or_one_place(name: str) -> None:
    """Both formats at once: strides of dimensions of one element tell them apart."""
    for shape in ((2, 4, 1, 1), (2, 1, 6, 5), (1, 1, 1, 1), (1, 4, 1, 6), (2, 4, 6, 1)):
        for x in both_formats(drawn(shape)):
            for cut in (x, torch.cat([x, x], 1).to(memory_format=torch.channels_last)[:, : shape[1]]):
                agree(
                    results(flambeau, NUMBERS[name], (cut,)),
                    results(torch, NUMBERS[name], (cut,)),
                    (name, shape),
                )


class Net:
    """Made for either library: convolutions of all kinds, norms, pools, a residual sum, a skip and a head."""

    def __new__(cls, room: Any) -> Any:
        nn = room.nn

        class Whole(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
                self.norm = nn.BatchNorm2d(8)
                self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
                self.point = nn.Conv2d(8, 8, 1)
                self.groups = nn.GroupNorm(2, 8)
                self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
                self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
                self.head = nn.Linear(16, 5)

            def forward(self, x: Any) -> Any:
                f = nn.functional
                x = f.relu(self.norm(self.stem(x)))
                x = x + f.silu(self.groups(self.point(self.deep(x))))
                y = f.max_pool2d(f.gelu(self.down(f.pad(x, (1, 1, 1, 1), mode="reflect"))), 2)
                y = f.interpolate(self.up(y), size=x.shape[2:], mode="bilinear")
                joined = room.cat([x, y], 1)
                return joined, self.head(f.adaptive_avg_pool2d(joined, 1).flatten(1))

        return Whole()


def trained(room: Any, optimizer: Run, state: Any) -> Any:
    """What lies where after each of three steps: activations, gradients, parameters, what the optimizer keeps."""
    carried = (lambda t: t.clone()) if room is torch else from_torch
    model = Net(room)
    model.load_state_dict({name: carried(t) for name, t in state.items()})
    model = model.to(memory_format=room.channels_last)
    steps = optimizer(room)(model.parameters())
    found: list[Any] = []
    for step in range(3):
        x = carried(drawn((4, 3, 8, 8), seed=step)).to(memory_format=room.channels_last).requires_grad_()
        joined, out = model(x)
        steps.zero_grad()
        room.nn.functional.cross_entropy(out, carried(torch.tensor([0, 1, 2, 3]))).backward()
        steps.step()
        kept = [s[k] for s in steps.state.values() for k in sorted(s) if k in ("exp_avg", "momentum_buffer")]
        found += [
            joined,
            out,
            x.grad,
            *(p.grad for p in model.parameters()),
            *model.state_dict().values(),
            *kept,
        ]
    return [t.detach() for t in found]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda room: lambda ps: room.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda room: lambda ps: room.optim.AdamW(ps, lr=0.01),
    ],
    ids=["SGD", "AdamW"],
)
def test_a_net_trains(optimizer: Run) -> None:
    torch.manual_seed(0)
    state = Net(torch).state_dict()
    ours, theirs = trained(flambeau, optimizer, state), trained(torch, optimizer, state)
    assert sum(t.is_contiguous(memory_format=torch.channels_last) for t in theirs if t.dim() == 4) > 40
    for a, b in zip(ours, theirs, strict=True):
        steps = [(p, q) for p, q, n in zip(a.stride(), b.stride(), b.shape, strict=True) if n > 1]
        assert all(
            p == q for p, q in steps
        )  # PyTorch's loops of optimizers give 1x1 weights' dims other strides
        torch.testing.assert_close(to_torch(a).cpu(), b.cpu(), rtol=1e-3, atol=1e-3, check_stride=False)
