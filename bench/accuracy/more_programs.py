"""More families of several calls: results that the host reads, small linear algebra, recurrent layers, models."""

from __future__ import annotations

from random import Random
from typing import Any

from bench.accuracy.kernels import Call, Family, Params, log_int, tensor

# -- copies of other layouts ------------------------------------------------------------------------------------------

_COPIES = (
    "cpu",
    "cuda",
    "to device, strided",
    "within, strided",
    "within, transposed",
    "to device, cast",
    "tolist",
    "many",
)


def _draw_other_copy(r: Random) -> Params:
    return {"op": r.choice(_COPIES), "numel": log_int(r, 64, 1 << 22)}


def _other_copy(t: Any, p: Params) -> Call:
    side = max(int(p["numel"] ** 0.5), 1)
    host, device = t.ones(side, side), t.ones(side, side, device="cuda")
    other, half = t.ones(side, 2 * side, device="cuda"), t.ones(side, side, device="cuda", dtype=t.float16)
    few = [t.ones(max(side // 8, 1), side).pin_memory() for _ in range(8)]
    short = device.view(-1)[:64]
    return {
        "cpu": lambda: device.cpu(),
        "cuda": lambda: host.to("cuda"),
        "to device, strided": lambda: device.t().copy_(host),
        "within, strided": lambda: other[:, ::2].copy_(device),
        "within, transposed": lambda: device.copy_(half.t()),
        "to device, cast": lambda: half.copy_(host),
        "tolist": lambda: short.tolist(),
        "many": lambda: [x.to("cuda", non_blocking=True) for x in few],
    }[p["op"]]


# -- calls whose results the host needs -------------------------------------------------------------------------------

_READ = (
    "nonzero",
    "masked_select",
    "unique",
    "bincount",
    "boolean index",
    "histc",
    "multinomial",
    "allclose",
    "where one",
)


def _draw_read(r: Random) -> Params:
    return {"op": r.choice(_READ), "numel": log_int(r, 256, 1 << 22)}


def _read(t: Any, p: Params) -> Call:
    numel = p["numel"]
    x, whole = t.rand(numel, device="cuda"), t.randint(0, 1000, (numel,), device="cuda")
    mask = x > 0.5
    return {
        "nonzero": lambda: mask.nonzero(),
        "masked_select": lambda: x.masked_select(mask),
        "unique": lambda: whole.unique(),
        "bincount": lambda: whole.bincount(),
        "boolean index": lambda: x[mask],
        "histc": lambda: x.histc(64, 0.0, 1.0),
        "multinomial": lambda: x[: 1 << 16].multinomial(8, replacement=True),
        "allclose": lambda: t.allclose(x, x),
        "where one": lambda: t.where(mask),
    }[p["op"]]


# -- small linear algebra ---------------------------------------------------------------------------------------------

_LINALG = (
    "cholesky",
    "inv",
    "solve",
    "qr",
    "svd",
    "eigh",
    "det",
    "solve_triangular",
    "lu_factor",
    "matrix_exp",
)


def _draw_linalg(r: Random) -> Params:
    op, side = r.choice(_LINALG), log_int(r, 2, 256)
    count = log_int(r, 1, 16 if op in ("svd", "qr") else 256) if side <= 64 else 1
    return {"op": op, "count": count, "side": side, "tf32": False}


def _linalg(t: Any, p: Params) -> Call:
    side, count = p["side"], p["count"]
    a = tensor(t, "float32", count, side, side)
    a = a @ a.mT / side + t.eye(side, device="cuda")
    b, low = tensor(t, "float32", count, side, 4), a.tril()
    function = getattr(t.linalg, p["op"])
    if p["op"] == "solve":
        return lambda: function(a, b)
    if p["op"] == "solve_triangular":
        return lambda: function(low, b, upper=False)
    return lambda: function(a)


# -- recurrent layers -------------------------------------------------------------------------------------------------


def _draw_recurrent(r: Random) -> Params:
    return {
        "net": r.choice(("RNN", "GRU", "LSTM", "GRUCell", "LSTMCell")), "steps": r.choice((1, 8, 32, 64)),
        "batch": log_int(r, 1, 64), "width": 16 * log_int(r, 1, 32), "layers": r.choice((1, 1, 2)),
        "both": r.random() < 0.3, "train": r.random() < 0.5, "amp": False, "tf32": r.random() < 0.3,
    }  # fmt: skip


def _recurrent(t: Any, p: Params) -> Call:
    width, kind = p["width"], getattr(t.nn, p["net"])
    if p["net"].endswith("Cell"):
        net, x = kind(width, width, device="cuda"), t.randn(p["batch"], width, device="cuda")
    else:
        net = kind(width, width, p["layers"], bidirectional=p["both"], device="cuda")
        x = t.randn(p["steps"], p["batch"], width, device="cuda")
    if not p["train"]:

        def infer() -> None:
            with t.no_grad():
                net(x)

        return infer

    def step() -> None:
        out = net(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return step


# -- models -----------------------------------------------------------------------------------------------------------

_NETS = ("residual", "encoder", "recommender", "unet", "graph", "llama", "autoencoder", "bottleneck")


def _draw_model(r: Random) -> Params:
    return {
        "net": r.choice(_NETS), "batch": log_int(r, 1, 64), "width": r.choice((32, 64, 128, 256)),
        "depth": r.choice((1, 2, 4)), "optimizer": r.choice(("SGD momentum", "AdamW", "AdamW fused", "RMSprop")),
        "clip": r.random() < 0.3, "amp": r.random() < 0.4, "train": r.random() < 0.8, "tf32": r.random() < 0.5,
    }  # fmt: skip


def _residual(t: Any, width: int, wide: int) -> Any:
    """Return a residual block with a narrow or wide middle."""
    nn = t.nn

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
                nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
                nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return (x + self.body(x)).relu()

    return Block()


def _llama_block(t: Any, width: int) -> Any:
    """Return a block with RMSNorm, grouped attention and a gated product."""
    nn, f = t.nn, t.nn.functional

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.gate = (
                nn.Linear(width, 3 * width, bias=False),
                nn.Linear(width, 3 * width, bias=False),
            )
            self.down = nn.Linear(3 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (y.view(b, s, -1, 32).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, dim=2))
            y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, width))
            y = self.second(x)
            return x + self.down(f.silu(self.gate(y)) * self.up(y))

    return Block()


def _unet(t: Any, width: int) -> Any:
    """Return a network that halves a picture, doubles it again and joins both."""
    nn = t.nn

    class Net(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU())
            self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
            self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
            self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

        def forward(self, x: Any) -> Any:
            first = self.enter(x)
            return self.leave(t.cat([first, self.up(self.down(first).relu())], 1))

    return Net()


def _recommender(t: Any, width: int) -> Any:
    """Return a network of embeddings and products of all pairs of them."""
    nn = t.nn

    class Net(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(10_000, width) for _ in range(8)])
            self.top = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1))

        def forward(self, x: Any) -> Any:
            rows = t.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
            return self.top(t.bmm(rows, rows.transpose(1, 2)).flatten(1)).sigmoid()

    return Net()


def _graph_net(t: Any, width: int) -> Any:
    """Return two graph convolutions over fixed random edges."""
    nn = t.nn
    nodes, edges = 4096, 32_768
    source, target = (t.randint(0, nodes, (edges,), device="cuda") for _ in range(2))

    class Net(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                y = layer(x)
                x = t.zeros_like(y).index_add(0, target, y[source]).relu()
            return x

    return Net()


def _model(t: Any, p: Params) -> Call:
    nn, width, batch, depth = t.nn, p["width"], p["batch"], p["depth"]
    picture = t.randn(batch, 3, 32, 32, device="cuda")
    layers: list[Any] = []
    x = picture
    if p["net"] in ("residual", "bottleneck"):
        layers = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        layers += [_residual(t, width, width if p["net"] == "residual" else width // 4) for _ in range(depth)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    elif p["net"] == "encoder":
        layers = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True) for _ in range(depth)
        ]
        x = t.randn(batch, 48, width, device="cuda")
    elif p["net"] == "recommender":
        layers, x = [_recommender(t, width)], t.randint(0, 10_000, (batch * 32, 8), device="cuda")
    elif p["net"] == "unet":
        layers = [_unet(t, width) for _ in range(depth)]
    elif p["net"] == "graph":
        layers, x = [_graph_net(t, width)], t.randn(4096, width, device="cuda")
    elif p["net"] == "llama":
        layers, x = [_llama_block(t, width) for _ in range(depth)], t.randn(batch, 64, width, device="cuda")
    else:
        layers = [
            nn.Flatten(),
            nn.Linear(3072, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(width, 3072),
        ]
    net = nn.Sequential(*layers).cuda()
    if not p["train"]:
        net.eval()

        def infer() -> None:
            with t.no_grad(), t.autocast("cuda", t.bfloat16, enabled=p["amp"]):
                net(x)

        return infer
    optimizer = _optimizer(t, p["optimizer"], net)

    def step() -> None:
        optimizer.zero_grad()
        with t.autocast("cuda", t.bfloat16, enabled=p["amp"]):
            loss = net(x).float().square().mean()
        loss.backward()
        if p["clip"]:
            t.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def _optimizer(t: Any, name: str, net: Any) -> Any:
    given = list(net.parameters())
    if name == "SGD momentum":
        return t.optim.SGD(given, lr=1e-3, momentum=0.9)
    if name == "AdamW fused":
        return t.optim.AdamW(given, lr=1e-4, fused=True)
    return getattr(t.optim, name)(given, lr=1e-4)


FAMILIES = (
    Family("other copy", "copy", 24, _draw_other_copy, _other_copy, lambda p: p["op"] in ("cpu", "tolist")),
    Family("read results", "chain", 18, _draw_read, _read, lambda p: True),
    Family("small linalg", "chain", 16, _draw_linalg, _linalg, lambda p: True),
    Family("recurrent", "chain", 24, _draw_recurrent, _recurrent),
    Family("model", "chain", 32, _draw_model, _model),
)
