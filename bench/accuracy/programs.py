"""Families of more than one call: copies, chains that the host may limit, work on two streams, training steps."""

from __future__ import annotations

from random import Random
from typing import Any

from bench.accuracy.kernels import Call, Family, Params, log_int, tensor

# -- copies -----------------------------------------------------------------------------------------------------------


def _draw_copy(r: Random) -> Params:
    op = r.choice(("to device, pinned", "to host, pinned", "to device", "to host", "within"))
    return {"op": op, "nbytes": log_int(r, 256, 1 << 28)}


def _copy(t: Any, p: Params) -> Call:
    nbytes, pinned = p["nbytes"], p["op"].endswith("pinned")
    host = t.ones(nbytes, dtype=t.uint8)
    host = host.pin_memory() if pinned else host
    device, other = (t.empty(nbytes, dtype=t.uint8, device="cuda") for _ in range(2))
    if p["op"] == "within":
        return lambda: device.copy_(other)
    if p["op"].startswith("to device"):
        return lambda: device.copy_(host, non_blocking=pinned)
    return lambda: host.copy_(device, non_blocking=pinned)


# -- chains: the host's time counts -----------------------------------------------------------------------------------


def _draw_small_calls(r: Random) -> Params:
    op = r.choice(
        ("add", "add_", "relu", "mm", "sum", "view", "empty", "item", "softmax", "layer_norm", "cat", "index")
    )
    return {
        "op": op,
        "times": r.choice((10, 50, 100)),
        "side": r.choice((8, 32, 64, 128, 256)),
        "tf32": False,
    }


def _small_calls(t: Any, p: Params) -> Call:
    side, times, f = p["side"], p["times"], t.nn.functional
    x, y, out = (
        t.ones(side, side, device="cuda"),
        t.ones(side, side, device="cuda"),
        t.ones(side, side, device="cuda"),
    )
    at = t.arange(side, device="cuda")
    call: Call = {
        "add": lambda: x + y,
        "add_": lambda: out.add_(y),
        "relu": lambda: x.relu(),
        "mm": lambda: x @ y,
        "sum": lambda: x.sum(),
        "view": lambda: x.view(-1)[1:].unsqueeze(0),
        "empty": lambda: t.empty(side, side, device="cuda"),
        "item": lambda: (x[0, 0] + 1).item(),
        "softmax": lambda: x.softmax(1),
        "layer_norm": lambda: f.layer_norm(x, (side,)),
        "cat": lambda: t.cat([x, y]),
        "index": lambda: x[at],
    }[p["op"]]

    def run() -> None:
        for _ in range(times):
            call()

    return run


def _draw_graph(r: Random) -> Params:
    return {"nodes": r.choice((1, 5, 20, 50, 100)), "numel": log_int(r, 1 << 8, 1 << 22)}


def _graph(t: Any, p: Params) -> Call:
    x = t.ones(p["numel"], device="cuda")
    stream, graph = t.cuda.Stream(), t.cuda.CUDAGraph()
    with t.cuda.stream(stream):
        x.add_(1)
    t.cuda.synchronize()
    with t.cuda.graph(graph, stream=stream):
        for _ in range(p["nodes"]):
            x.add_(1)
    return graph.replay  # type: ignore[no-any-return]


def _draw_step(r: Random) -> Params:
    return {
        "net": r.choice(("mlp", "cnn", "gpt", "lstm")), "batch": log_int(r, 1, 128),
        "width": r.choice((64, 128, 256, 512)),
        "depth": r.choice((1, 2, 4)), "optimizer": r.choice(("SGD", "Adam")), "amp": r.random() < 0.3,
        "train": r.random() < 0.7, "tf32": r.random() < 0.3,
    }  # fmt: skip


def _block(t: Any, width: int) -> Any:
    """Return a transformer's block."""
    nn = t.nn

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (
                y.view(b, s, width // 32, 32).transpose(1, 2)
                for y in self.qkv(self.first(x)).split(width, dim=2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, width))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    return Block()


def _network(t: Any, p: Params) -> tuple[Any, Any]:
    """Return a module and its input."""
    nn, width, depth, batch = t.nn, p["width"], p["depth"], p["batch"]
    if p["net"] == "mlp":
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*layers).cuda(), t.randn(batch, width, device="cuda")
    if p["net"] == "cnn":
        layers = [nn.Conv2d(3, width // 4, 3, padding=1)]
        for _ in range(depth):
            layers += [nn.BatchNorm2d(width // 4), nn.ReLU(), nn.Conv2d(width // 4, width // 4, 3, padding=1)]
        return nn.Sequential(*layers).cuda(), t.randn(batch, 3, 32, 32, device="cuda")
    if p["net"] == "gpt":
        return nn.Sequential(*[_block(t, width) for _ in range(depth)]).cuda(), t.randn(
            batch, 64, width, device="cuda"
        )
    return _first_output_of(t, nn.LSTM(width, width, depth)), t.randn(32, batch, width, device="cuda")


def _first_output_of(t: Any, net: Any) -> Any:
    """Return a module that gives the first output of another."""

    class First(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            return self.net(x)[0]

    return First().cuda()


def _step(t: Any, p: Params) -> Call:
    net, x = _network(t, p)
    if not p["train"]:
        net.eval()

        def infer() -> None:
            with t.no_grad(), t.autocast("cuda", t.bfloat16, enabled=p["amp"]):
                net(x)

        return infer
    optimizer = getattr(t.optim, p["optimizer"])(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with t.autocast("cuda", t.bfloat16, enabled=p["amp"]):
            loss = net(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


# -- two streams ------------------------------------------------------------------------------------------------------

_WORK = ("large product", "small product", "pointwise", "to device", "to host")


def _draw_overlap(r: Random) -> Params:
    first, second = r.sample(_WORK, 2) if r.random() < 0.7 else [r.choice(_WORK)] * 2
    return {
        "first": first,
        "second": second,
        "size": log_int(r, 1 << 16, 1 << 26),
        "times": r.choice((1, 4)),
        "tf32": False,
    }


def _overlap(t: Any, p: Params) -> Call:
    streams = [t.cuda.Stream() for _ in range(2)]
    calls = [_piece(t, p[name], p["size"]) for name in ("first", "second")]

    def run() -> None:
        current = t.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        for _ in range(p["times"]):
            for stream, call in zip(streams, calls, strict=True):
                with t.cuda.stream(stream):
                    call()
        for stream in streams:
            current.wait_stream(stream)

    return run


def _piece(t: Any, name: str, size: int) -> Call:
    """Return work of one kind; `size` counts elements."""
    side = {"large product": 2048, "small product": 256}.get(name)
    if side:
        a, b, out = (tensor(t, "bfloat16", side, side) for _ in range(3))
        return lambda: t.mm(a, b, out=out)
    device = tensor(t, "float32", size)
    if name == "pointwise":
        return lambda: device.mul_(1.0001)
    host = t.ones(size).pin_memory()
    return (
        (lambda: device.copy_(host, non_blocking=True))
        if name == "to device"
        else (lambda: host.copy_(device, non_blocking=True))
    )


FAMILIES = (
    Family("copy", "copy", 44, _draw_copy, _copy, lambda p: "to host" in p["op"]),
    Family("small calls", "chain", 30, _draw_small_calls, _small_calls, lambda p: p["op"] == "item"),
    Family("graph", "chain", 10, _draw_graph, _graph),
    Family("step", "chain", 44, _draw_step, _step),
    Family(
        "overlap", "overlap", 30, _draw_overlap, _overlap, lambda p: "to host" in (p["first"], p["second"])
    ),
)
