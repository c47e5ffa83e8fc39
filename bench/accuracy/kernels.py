"""Families of single calls: what one operator does on the device, over random shapes, dtypes and layouts.

A family draws its parameters from a seeded generator and builds a call from them. The parameters are kept with each
measurement, so that the same call can be built again, with either library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Params = dict[str, Any]
Call = Callable[[], Any]
MOST = 1 << 27  # elements of a tensor, at most


@dataclass(frozen=True)
class Family:
    """A family of workloads.

    Attributes:
        name: Its name in tables.
        kind: "kernel" (time of the device), "copy", "chain" (time of the host and the device) or "overlap".
        count: How many workloads are drawn of it.
        draw: Parameters from a generator.
        build: The call, from the library (`torch` or `flambeau`) and the parameters.
        reads: Whether the host reads results, so that a virtual GPU needs data.
    """

    name: str
    kind: str
    count: int
    draw: Callable[[Random], Params]
    build: Callable[[Any, Params], Call]
    reads: Callable[[Params], bool] = lambda params: False


def log_int(random: Random, least: int, most: int) -> int:
    """Return an integer whose logarithm is evenly distributed, often a round one."""
    value = round(least * (most / least) ** random.random())
    if random.random() < 0.6 and value > 16:
        step = 1 << max(value.bit_length() - 3, 0)
        value = max(least, min(most, value // step * step))
    return value


def rows_and_columns(random: Random, most: int = MOST, least: int = 1 << 10) -> tuple[int, int]:
    """Return the sides of a matrix; thin and flat ones are as frequent as square ones."""
    numel = log_int(random, least, most)
    rows = log_int(random, 1, numel)
    return rows, max(numel // rows, 1)


def draw_dtype(random: Random, *names: str) -> str:
    return random.choice(names or ("float32", "float32", "bfloat16", "float16"))


def tensor(t: Any, kind: str, *shape: int) -> Any:
    """Return normal numbers on the GPU."""
    return t.randn(*shape, device="cuda", dtype=getattr(t, kind))


# -- element by element -----------------------------------------------------------------------------------------------

_UNARY = (
    "relu",
    "gelu",
    "exp",
    "tanh",
    "sigmoid",
    "silu",
    "neg",
    "abs",
    "sqrt",
    "erf",
    "log1p",
    "sin",
    "clone",
)
_BINARY = ("add", "mul", "sub", "div", "maximum", "pow", "atan2")


def _draw_unary(r: Random) -> Params:
    return {"op": r.choice(_UNARY), "numel": log_int(r, 1 << 8, MOST), "dtype": draw_dtype(r)}


def _unary(t: Any, p: Params) -> Call:
    x = tensor(t, p["dtype"], p["numel"])
    function = getattr(t, p["op"], None) or getattr(t.nn.functional, p["op"])
    return lambda: function(x)


def _draw_binary(r: Random) -> Params:
    rows, columns = rows_and_columns(r, MOST // 2)
    layout = r.choice(("same", "same", "row", "column", "scalar", "transposed"))
    return {
        "op": r.choice(_BINARY),
        "rows": rows,
        "columns": columns,
        "layout": layout,
        "dtype": draw_dtype(r),
    }


def _binary(t: Any, p: Params) -> Call:
    rows, columns, kind = p["rows"], p["columns"], p["dtype"]
    x = tensor(t, kind, rows, columns)
    other = {
        "same": lambda: tensor(t, kind, rows, columns),
        "row": lambda: tensor(t, kind, columns),
        "column": lambda: tensor(t, kind, rows, 1),
        "scalar": lambda: 1.5,
        "transposed": lambda: tensor(t, kind, columns, rows).t(),
    }[p["layout"]]()
    if p["layout"] == "scalar" and p["op"] in ("maximum", "atan2"):
        other = tensor(t, kind, 1)
    function = getattr(t, p["op"])
    return lambda: function(x, other)


def _draw_several(r: Random) -> Params:
    op = r.choice(("addcmul", "where", "lerp", "clamp", "masked_fill", "add_", "copy_", "fill_", "to"))
    return {"op": op, "numel": log_int(r, 1 << 10, MOST // 2), "dtype": draw_dtype(r)}


def _several(t: Any, p: Params) -> Call:
    x, y, z = (tensor(t, p["dtype"], p["numel"]) for _ in range(3))
    mask = x > 0
    other = t.bfloat16 if p["dtype"] == "float32" else t.float32
    return {
        "addcmul": lambda: t.addcmul(x, y, z),
        "where": lambda: t.where(mask, x, y),
        "lerp": lambda: t.lerp(x, y, 0.3),
        "clamp": lambda: x.clamp(-1, 1),
        "masked_fill": lambda: x.masked_fill(mask, 0.0),
        "add_": lambda: x.add_(y),
        "copy_": lambda: x.copy_(y),
        "fill_": lambda: x.fill_(1.0),
        "to": lambda: x.to(other),
    }[p["op"]]


# -- other orders of the elements -------------------------------------------------------------------------------------


def _draw_layout(r: Random) -> Params:
    rows, columns = rows_and_columns(r, MOST // 2)
    op = r.choice(("t", "t", "permute", "cat", "stack", "split", "flip", "roll", "repeat", "pad", "tril"))
    return {"op": op, "rows": rows, "columns": columns, "dtype": draw_dtype(r)}


def _layout(t: Any, p: Params) -> Call:
    x = tensor(t, p["dtype"], p["rows"], p["columns"])
    half = max(p["columns"] // 2, 1)
    cube = x.view(-1)[: p["rows"] * p["columns"] // 8 * 8].view(8, -1, 1 if p["columns"] % 64 else 64)
    return {
        "t": lambda: x.t().contiguous(),
        "permute": lambda: cube.permute(1, 0, 2).contiguous(),
        "cat": lambda: t.cat([x, x]),
        "stack": lambda: t.stack([x, x], -1),
        "split": lambda: x[:, :half].contiguous(),
        "flip": lambda: x.flip(0),
        "roll": lambda: x.roll(1, 1),
        "repeat": lambda: x.repeat(2, 1),
        "pad": lambda: t.nn.functional.pad(x, (1, 1)),
        "tril": lambda: x.tril(),
    }[p["op"]]


def _draw_selection(r: Random) -> Params:
    op = r.choice(
        ("embedding", "index_select", "gather", "scatter_add", "index_add", "index", "take", "index_put")
    )
    rows, columns = rows_and_columns(r, MOST // 4)
    return {
        "op": op,
        "rows": rows,
        "columns": columns,
        "picks": log_int(r, 1, 1 << 16),
        "dtype": draw_dtype(r),
    }


def _selection(t: Any, p: Params) -> Call:
    rows, columns, picks = p["rows"], p["columns"], min(p["picks"], MOST // p["columns"])
    x = tensor(t, p["dtype"], rows, columns)
    at = t.randint(0, rows, (picks,), device="cuda")
    wide = t.randint(0, rows, (min(picks, rows), columns), device="cuda")
    given = tensor(t, p["dtype"], picks, columns)
    flat = t.randint(0, rows * columns, (picks,), device="cuda")
    return {
        "embedding": lambda: t.nn.functional.embedding(at, x),
        "index_select": lambda: x.index_select(0, at),
        "gather": lambda: x.gather(0, wide),
        "scatter_add": lambda: x.scatter_add_(0, wide, given[: wide.shape[0]]),
        "index_add": lambda: x.index_add_(0, at, given),
        "index": lambda: x[at],
        "take": lambda: x.take(flat),
        "index_put": lambda: x.index_put_((at,), given),
    }[p["op"]]


# -- reductions, scans, sorts -----------------------------------------------------------------------------------------

_REDUCTIONS = ("sum", "sum", "mean", "amax", "argmax", "norm", "var", "logsumexp", "prod", "any", "max")


def _draw_reduction(r: Random) -> Params:
    rows, columns = rows_and_columns(r)
    return {
        "op": r.choice(_REDUCTIONS), "rows": rows, "columns": columns, "dim": r.choice(("all", 0, 1)),
        "dtype": draw_dtype(r),
    }  # fmt: skip


def _reduction(t: Any, p: Params) -> Call:
    x, op, dim = tensor(t, p["dtype"], p["rows"], p["columns"]), p["op"], p["dim"]
    function = getattr(t, op)
    if dim == "all":
        return (lambda: t.logsumexp(x, (0, 1))) if op == "logsumexp" else lambda: function(x)
    if op == "norm":
        return lambda: t.norm(x, dim=dim)
    return lambda: function(x, dim)


def _draw_rows(r: Random) -> Params:
    rows, columns = rows_and_columns(r, MOST // 2)
    op = r.choice(
        ("softmax", "softmax", "log_softmax", "cumsum", "cumsum", "layer_norm", "layer_norm", "rms_norm")
    )
    return {"op": op, "rows": rows, "columns": columns, "dtype": draw_dtype(r)}


def _rows(t: Any, p: Params) -> Call:
    f, x, columns = t.nn.functional, tensor(t, p["dtype"], p["rows"], p["columns"]), p["columns"]
    weight, bias = (tensor(t, p["dtype"], columns) for _ in range(2))
    return {
        "softmax": lambda: x.softmax(1),
        "log_softmax": lambda: x.log_softmax(1),
        "cumsum": lambda: x.cumsum(1),
        "layer_norm": lambda: f.layer_norm(x, (columns,), weight, bias),
        "rms_norm": lambda: f.rms_norm(x, (columns,), weight),
    }[p["op"]]


def _draw_sort(r: Random) -> Params:
    rows, columns = rows_and_columns(r, 1 << 25)
    op = r.choice(("sort", "sort", "topk", "topk", "argsort", "kthvalue", "median", "cummax"))
    return {
        "op": op,
        "rows": rows,
        "columns": columns,
        "dtype": draw_dtype(r, "float32", "float32", "bfloat16"),
    }


def _sort(t: Any, p: Params) -> Call:
    x, k = tensor(t, p["dtype"], p["rows"], p["columns"]), min(10, p["columns"])
    return {
        "sort": lambda: x.sort(1),
        "topk": lambda: x.topk(k, 1),
        "argsort": lambda: x.argsort(1),
        "kthvalue": lambda: x.kthvalue(k, 1),
        "median": lambda: x.median(1),
        "cummax": lambda: x.cummax(1),
    }[p["op"]]


# -- products, convolutions, attention --------------------------------------------------------------------------------


def _draw_product(r: Random) -> Params:
    while True:
        m, n, k = (log_int(r, 1, 16384) for _ in range(3))
        if m * n * k <= 1 << 40 and max(m * k, k * n, m * n) <= MOST:
            break
    kind = draw_dtype(r, "float32", "float32", "bfloat16", "bfloat16", "float16")
    tf32 = kind == "float32" and r.random() < 0.4
    return {"m": m, "n": n, "k": k, "dtype": kind, "tf32": tf32, "layout": r.choice(("nn", "nt", "tn"))}


def _product(t: Any, p: Params) -> Call:
    m, n, k, kind = p["m"], p["n"], p["k"], p["dtype"]
    a = tensor(t, kind, m, k) if p["layout"] != "tn" else tensor(t, kind, k, m).t()
    b = tensor(t, kind, k, n) if p["layout"] != "nt" else tensor(t, kind, n, k).t()
    return lambda: t.mm(a, b)


def _draw_batched(r: Random) -> Params:
    while True:
        b, (m, n, k) = log_int(r, 2, 512), (log_int(r, 4, 2048) for _ in range(3))
        if b * m * n * k <= 1 << 38 and b * max(m * k, k * n, m * n) <= MOST:
            break
    return {"b": b, "m": m, "n": n, "k": k, "dtype": draw_dtype(r), "tf32": False}


def _batched(t: Any, p: Params) -> Call:
    x, y = tensor(t, p["dtype"], p["b"], p["m"], p["k"]), tensor(t, p["dtype"], p["b"], p["k"], p["n"])
    return lambda: t.bmm(x, y)


def _draw_linear(r: Random) -> Params:
    op = r.choice(("linear", "linear", "mv", "dot", "addmm", "outer"))
    rows, inner, outer = log_int(r, 1, 1 << 14), log_int(r, 16, 8192), log_int(r, 16, 8192)
    return {"op": op, "rows": rows, "inner": inner, "outer": outer, "dtype": draw_dtype(r), "tf32": False}


def _linear(t: Any, p: Params) -> Call:
    x, w, b = (
        tensor(t, p["dtype"], *s) for s in ((p["rows"], p["inner"]), (p["outer"], p["inner"]), (p["outer"],))
    )
    row = tensor(t, p["dtype"], p["inner"])
    long = tensor(t, p["dtype"], p["rows"] * p["inner"])
    return {
        "linear": lambda: t.nn.functional.linear(x, w, b),
        "mv": lambda: t.mv(x, row),
        "dot": lambda: t.dot(long, long),
        "addmm": lambda: t.addmm(b, x, w.t()),
        "outer": lambda: t.outer(row, b),
    }[p["op"]]


def _draw_convolution(r: Random) -> Params:
    while True:
        n, c, o, side = log_int(r, 1, 128), log_int(r, 3, 512), log_int(r, 8, 512), log_int(r, 7, 224)
        kernel, stride = r.choice((1, 3, 3, 3, 5, 7)), r.choice((1, 1, 2))
        work = n * c * o * (side // stride) ** 2 * kernel**2
        if work <= 1 << 37 and n * max(c, o) * side**2 <= MOST and side >= kernel:
            break
    groups = c if r.random() < 0.1 else 1
    return {
        "n": n, "c": c, "o": c if groups > 1 else o, "side": side, "kernel": kernel, "stride": stride, "groups": groups,
        "dtype": draw_dtype(r), "tf32": False, "channels_last": r.random() < 0.3,
    }  # fmt: skip


def _convolution_operands(t: Any, p: Params) -> tuple[Any, Any]:
    x = tensor(t, p["dtype"], p["n"], p["c"], p["side"], p["side"])
    w = tensor(t, p["dtype"], p["o"], p["c"] // p["groups"], p["kernel"], p["kernel"])
    if p["channels_last"]:
        x, w = (y.contiguous(memory_format=t.channels_last) for y in (x, w))
    return x, w


def _convolution(t: Any, p: Params) -> Call:
    x, w = _convolution_operands(t, p)
    padding, stride, groups = p["kernel"] // 2, p["stride"], p["groups"]
    return lambda: t.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)


def _convolution_gradient(t: Any, p: Params) -> Call:
    x, w = (y.requires_grad_() for y in _convolution_operands(t, p))
    out = t.nn.functional.conv2d(x, w, None, p["stride"], p["kernel"] // 2, 1, p["groups"])
    grad = t.ones_like(out)
    return lambda: t.autograd.grad(out, (x, w), grad, retain_graph=True)


def _draw_attention(r: Random) -> Params:
    while True:
        b, h, length, d = (
            log_int(r, 1, 32),
            log_int(r, 1, 32),
            log_int(r, 32, 8192),
            r.choice((32, 64, 64, 96, 128)),
        )
        if b * h * length * d <= MOST // 4 and b * h * length * length * d <= 1 << 38:
            break
    kind = draw_dtype(r, "bfloat16", "float16", "bfloat16", "float32")
    return {
        "b": b,
        "h": h,
        "length": length,
        "d": d,
        "dtype": kind,
        "causal": r.random() < 0.5,
        "tf32": False,
    }


def _attention(t: Any, p: Params) -> Call:
    q, k, v = (tensor(t, p["dtype"], p["b"], p["h"], p["length"], p["d"]) for _ in range(3))
    return lambda: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"])


def _attention_gradient(t: Any, p: Params) -> Call:
    operands = [tensor(t, p["dtype"], p["b"], p["h"], p["length"], p["d"]).requires_grad_() for _ in range(3)]
    out = t.nn.functional.scaled_dot_product_attention(*operands, is_causal=p["causal"])
    grad = t.ones_like(out)
    return lambda: t.autograd.grad(out, operands, grad, retain_graph=True)


# -- layers and losses ------------------------------------------------------------------------------------------------


def _draw_image(r: Random) -> Params:
    while True:
        n, c, side = log_int(r, 1, 256), log_int(r, 3, 512), log_int(r, 7, 224)
        if n * c * side * side <= MOST // 2:
            break
    op = r.choice(
        ("batch_norm", "batch_norm", "group_norm", "max_pool", "avg_pool", "interpolate", "adaptive")
    )
    return {"op": op, "n": n, "c": c, "side": side, "dtype": draw_dtype(r)}


def _image(t: Any, p: Params) -> Call:
    f, c, x = t.nn.functional, p["c"], tensor(t, p["dtype"], p["n"], p["c"], p["side"], p["side"])
    groups = next(g for g in (32, 16, 8, 4, 2, 1) if c % g == 0)
    mean, var, weight, bias = (t.ones(c, device="cuda") for _ in range(4))
    return {
        "batch_norm": lambda: f.batch_norm(x, mean, var, weight, bias, True),
        "group_norm": lambda: f.group_norm(x, groups),
        "max_pool": lambda: f.max_pool2d(x, 2),
        "avg_pool": lambda: f.avg_pool2d(x, 2),
        "interpolate": lambda: f.interpolate(x, scale_factor=2, mode="nearest"),
        "adaptive": lambda: f.adaptive_avg_pool2d(x, 1),
    }[p["op"]]


def _draw_loss(r: Random) -> Params:
    op = r.choice(("cross_entropy", "cross_entropy", "mse", "bce", "nll", "smooth_l1"))
    rows, columns = log_int(r, 1, 1 << 14), log_int(r, 2, 1 << 16)
    return {"op": op, "rows": min(rows, MOST // 2 // columns) or 1, "columns": columns, "dtype": "float32"}


def _loss(t: Any, p: Params) -> Call:
    f, x = t.nn.functional, tensor(t, p["dtype"], p["rows"], p["columns"])
    y, labels = t.rand_like(x), t.randint(0, p["columns"], (p["rows"],), device="cuda")
    return {
        "cross_entropy": lambda: f.cross_entropy(x, labels),
        "mse": lambda: f.mse_loss(x, y),
        "bce": lambda: f.binary_cross_entropy_with_logits(x, y),
        "nll": lambda: f.nll_loss(x, labels),
        "smooth_l1": lambda: f.smooth_l1_loss(x, y),
    }[p["op"]]


def _draw_gradient(r: Random) -> Params:
    op = r.choice(
        ("gelu", "layer_norm", "softmax", "linear", "cross_entropy", "embedding", "batch_norm", "dropout")
    )
    return {
        "op": op, "rows": log_int(r, 16, 1 << 14), "columns": log_int(r, 16, 4096), "dtype": draw_dtype(r),
        "tf32": False,
    }  # fmt: skip


def _gradient(t: Any, p: Params) -> Call:
    f, rows, columns = t.nn.functional, p["rows"], p["columns"]
    x = tensor(t, p["dtype"], rows, columns).requires_grad_()
    w = tensor(t, p["dtype"], columns, columns).requires_grad_()
    row = tensor(t, p["dtype"], columns).requires_grad_()
    at = t.randint(0, columns, (rows,), device="cuda")
    out, wanted = {
        "gelu": lambda: (f.gelu(x), [x]),
        "layer_norm": lambda: (f.layer_norm(x, (columns,), row, row), [x, row]),
        "softmax": lambda: (x.softmax(1), [x]),
        "linear": lambda: (f.linear(x, w, row), [x, w, row]),
        "cross_entropy": lambda: (f.cross_entropy(x, at), [x]),
        "embedding": lambda: (f.embedding(at, w), [w]),
        "batch_norm": lambda: (f.batch_norm(x, None, None, row, row, True), [x, row]),
        "dropout": lambda: (f.dropout(x, 0.1), [x]),
    }[p["op"]]()
    grad = t.ones_like(out)
    return lambda: t.autograd.grad(out, wanted, grad, retain_graph=True)


def _draw_other(r: Random) -> Params:
    op = r.choice(
        ("rand", "normal_", "dropout", "bernoulli", "zeros", "arange", "fft", "rfft", "cdist", "adam", "eye")
    )
    rows, columns = rows_and_columns(r, 1 << 24, 1 << 12)
    return {"op": op, "rows": rows, "columns": columns, "tf32": False}


def _other(t: Any, p: Params) -> Call:
    rows, columns = p["rows"], p["columns"]
    x, side = tensor(t, "float32", rows, columns), min(max(rows, 1), 4096)
    few = tensor(t, "float32", min(rows, 2048), min(columns, 256))
    if p["op"] == "adam":
        weights = [tensor(t, "float32", max(rows * columns // 16, 1)).requires_grad_() for _ in range(16)]
        for w in weights:
            w.grad = t.ones_like(w)
        return t.optim.Adam(weights, foreach=True).step  # type: ignore[no-any-return]
    return {
        "rand": lambda: t.rand(rows, columns, device="cuda"),
        "normal_": lambda: x.normal_(),
        "dropout": lambda: t.nn.functional.dropout(x, 0.2),
        "bernoulli": lambda: x.bernoulli_(0.5),
        "zeros": lambda: t.zeros(rows, columns, device="cuda"),
        "arange": lambda: t.arange(rows * columns, device="cuda"),
        "fft": lambda: t.fft.fft(x),
        "rfft": lambda: t.fft.rfft(x),
        "cdist": lambda: t.cdist(few, few),
        "eye": lambda: t.eye(side, device="cuda"),
    }[p["op"]]


FAMILIES = (
    Family("unary", "kernel", 30, _draw_unary, _unary),
    Family("binary", "kernel", 30, _draw_binary, _binary),
    Family("several operands", "kernel", 24, _draw_several, _several),
    Family("layout", "kernel", 28, _draw_layout, _layout),
    Family("selection", "kernel", 32, _draw_selection, _selection),
    Family("reduction", "kernel", 56, _draw_reduction, _reduction),
    Family("rows", "kernel", 36, _draw_rows, _rows),
    Family("sort", "kernel", 20, _draw_sort, _sort),
    Family("product", "kernel", 56, _draw_product, _product),
    Family("batched product", "kernel", 20, _draw_batched, _batched),
    Family("linear", "kernel", 24, _draw_linear, _linear),
    Family("convolution", "kernel", 28, _draw_convolution, _convolution),
    Family("convolution, gradient", "kernel", 12, _draw_convolution, _convolution_gradient),
    Family("attention", "kernel", 20, _draw_attention, _attention),
    Family("attention, gradient", "kernel", 10, _draw_attention, _attention_gradient),
    Family("image", "kernel", 24, _draw_image, _image),
    Family("loss", "kernel", 18, _draw_loss, _loss),
    Family("gradient", "kernel", 32, _draw_gradient, _gradient),
    Family("other", "kernel", 28, _draw_other, _other),
)
