"""More families of single calls, which the cost model was not written for: what a new file shows to be wrong there."""

from __future__ import annotations

from random import Random
from typing import Any

from bench.accuracy.kernels import MOST, Call, Family, Params, draw_dtype, log_int, rows_and_columns, tensor

_LARGEST = MOST // 8

# -- element by element: other functions, dtypes and layouts ----------------------------------------------------------

_FLOAT_OPS = (
    "lgamma", "erfinv", "digamma", "hardswish", "mish", "softplus", "elu", "isnan", "round", "logaddexp", "fmod",
    "remainder",
)  # fmt: skip
_INTEGER_OPS = ("add", "mul", "floor_divide", "bitwise_and", "eq", "abs", "remainder")
_TWO = ("logaddexp", "fmod", "remainder", "add", "mul", "floor_divide", "bitwise_and", "eq")
_LAYOUTS = ("plain", "plain", "every second", "transposed", "expanded", "middle", "unaligned")


def _draw_elements(r: Random) -> Params:
    rows, columns = rows_and_columns(r, _LARGEST)
    kind = draw_dtype(r, "float32", "bfloat16", "float64", "int64", "int32", "uint8")
    op = r.choice(_FLOAT_OPS if "float" in kind else _INTEGER_OPS)
    return {"op": op, "rows": rows, "columns": columns, "dtype": kind, "layout": r.choice(_LAYOUTS)}


def _in_layout(t: Any, p: Params) -> Any:
    rows, columns, kind = p["rows"], p["columns"], getattr(t, p["dtype"])

    def filled(*shape: int) -> Any:
        if "float" in p["dtype"]:
            return t.rand(*shape, device="cuda", dtype=kind)
        return t.randint(1, 100, shape, device="cuda", dtype=kind)

    return {
        "plain": lambda: filled(rows, columns),
        "every second": lambda: filled(rows, 2 * columns)[:, ::2],
        "transposed": lambda: filled(columns, rows).t(),
        "expanded": lambda: filled(columns).expand(rows, columns),
        "middle": lambda: filled(rows, columns + 2)[:, 1:-1],
        "unaligned": lambda: filled(rows * columns + 1)[1:].view(rows, columns),
    }[p["layout"]]()


def _elements(t: Any, p: Params) -> Call:
    x, op = _in_layout(t, p), p["op"]
    function = getattr(t, op, None) or getattr(t.nn.functional, op)
    if op not in _TWO:
        return lambda: function(x)
    y = x.clone()
    return lambda: function(x, y)


# -- reductions and scans over any dimensions -------------------------------------------------------------------------

_REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "argmin",
    "std",
    "all",
    "count_nonzero",
    "nansum",
    "amin",
    "logsumexp",
    "vector_norm",
)
_SINGLE = ("argmin", "all")  # of one dimension only


def _draw_dims(r: Random) -> Params:
    op, ndim = r.choice(_REDUCTIONS), r.choice((3, 3, 4))
    numel = log_int(r, 1 << 10, _LARGEST)
    shape = []
    for _ in range(ndim - 1):
        shape.append(log_int(r, 1, max(min(numel, 1 << 12), 1)))
        numel //= shape[-1]
        numel = max(numel, 1)
    shape.append(numel)
    r.shuffle(shape)
    dims = sorted(r.sample(range(ndim), 1 if op in _SINGLE else r.choice((1, 1, 2, ndim - 1))))
    return {"op": op, "shape": shape, "dims": dims, "dtype": draw_dtype(r)}


def _dims(t: Any, p: Params) -> Call:
    x, op, dims = tensor(t, p["dtype"], *p["shape"]), p["op"], p["dims"]
    function = t.linalg.vector_norm if op == "vector_norm" else getattr(t, op)
    if op == "vector_norm":
        return lambda: function(x, 2, dims)
    return (lambda: function(x, dims[0])) if op in _SINGLE else lambda: function(x, dims)


_SCANS = ("cumprod", "logcumsumexp", "cummin", "cumsum", "diff", "flip", "sort", "topk")


def _draw_scan(r: Random) -> Params:
    rows, columns = rows_and_columns(r, 1 << 22)
    return {
        "op": r.choice(_SCANS),
        "rows": rows,
        "columns": columns,
        "dim": r.choice((0, 1)),
        "dtype": "float32",
    }


def _scan(t: Any, p: Params) -> Call:
    x, op, dim = tensor(t, p["dtype"], p["rows"], p["columns"]), p["op"], p["dim"]
    k = min(5, x.shape[dim])
    named: dict[str, Call] = {
        "diff": lambda: t.diff(x, dim=dim), "flip": lambda: t.flip(x, (dim,)), "sort": lambda: t.sort(x, dim),
        "topk": lambda: t.topk(x, k, dim),
    }  # fmt: skip
    return named.get(op) or (lambda: getattr(t, op)(x, dim))


# -- indices ----------------------------------------------------------------------------------------------------------

_INDEXED = (
    "scatter_reduce amax", "scatter_reduce mean", "index_add", "index_copy", "take_along_dim", "searchsorted",
    "bucketize", "embedding_bag", "one_hot", "tril_indices", "isin", "index two", "index_fill", "scatter_value",
)  # fmt: skip


def _draw_indexed(r: Random) -> Params:
    rows, columns = rows_and_columns(r, 1 << 22)
    return {
        "op": r.choice(_INDEXED), "rows": rows, "columns": columns, "picks": log_int(r, 16, 1 << 16),
        "most": r.choice((1, 16, 1 << 30)), "dtype": draw_dtype(r, "float32", "float32", "bfloat16"),
    }  # fmt: skip


def _indexed(t: Any, p: Params) -> Call:
    rows, columns, kind = p["rows"], p["columns"], p["dtype"]
    picks = max(min(p["picks"], (1 << 24) // columns), 1)
    x, given = tensor(t, kind, rows, columns), tensor(t, kind, picks, columns)
    # few distinct indices: many writes of the same place
    most = min(p["most"], rows)
    at = t.randint(0, most, (picks,), device="cuda")
    wide = t.randint(0, most, (picks, columns), device="cuda")
    other = t.randint(0, columns, (picks,), device="cuda")
    edges, flat = t.arange(256.0, device="cuda"), tensor(t, "float32", picks * 8)
    starts, few = t.arange(0, picks, 4, device="cuda"), t.arange(16, device="cuda")
    return {
        "scatter_reduce amax": lambda: x.scatter_reduce(0, wide, given, "amax"),
        "scatter_reduce mean": lambda: x.scatter_reduce(0, wide, given, "mean"),
        "index_add": lambda: x.t().contiguous().t().index_add_(0, at, given),
        "index_copy": lambda: x.index_copy_(0, at, given),
        "take_along_dim": lambda: (
            t.take_along_dim(x, other[:rows, None] % columns, 1) if picks >= rows else x.take(at)
        ),
        "searchsorted": lambda: t.searchsorted(edges, flat),
        "bucketize": lambda: t.bucketize(flat, edges),
        "embedding_bag": lambda: t.nn.functional.embedding_bag(at, x, starts, mode="sum"),
        "one_hot": lambda: t.nn.functional.one_hot(at % 64, 64),
        "tril_indices": lambda: t.tril_indices(min(rows, 2048), min(columns, 2048), device="cuda"),
        "isin": lambda: t.isin(at, few),
        "index two": lambda: x[at, other],
        "index_fill": lambda: x.index_fill_(0, at, 1.0),
        "scatter_value": lambda: x.scatter_(0, wide, 2.0),
    }[p["op"]]


# -- images -----------------------------------------------------------------------------------------------------------

_IMAGE = (
    "grid_sample", "unfold", "fold", "pixel_shuffle", "bilinear", "bicubic", "reflect", "replicate", "max_pool3",
    "avg_pool_k3", "instance_norm", "group_norm", "batch_norm_eval", "layer_norm", "local_response_norm",
    "channels_last",
)  # fmt: skip


def _draw_spatial(r: Random) -> Params:
    while True:
        n, c, side = log_int(r, 1, 64), 4 * log_int(r, 1, 64), log_int(r, 6, 224)
        if n * c * side * side <= 1 << 23:
            break
    return {
        "op": r.choice(_IMAGE),
        "n": n,
        "c": c,
        "side": side,
        "dtype": draw_dtype(r, "float32", "float32", "float16"),
    }


def _spatial(t: Any, p: Params) -> Call:
    f, n, c, side = t.nn.functional, p["n"], p["c"], p["side"]
    x = tensor(t, p["dtype"], n, c, side, side)
    grid = t.rand(n, side, side, 2, device="cuda", dtype=x.dtype) * 2 - 1
    mean, var = t.zeros(c, device="cuda"), t.ones(c, device="cuda")
    weight, bias = tensor(t, p["dtype"], c), tensor(t, p["dtype"], c)
    columns = f.unfold(x[:, :4], 3, padding=1)
    return {
        "grid_sample": lambda: f.grid_sample(x, grid, align_corners=False),
        "unfold": lambda: f.unfold(x[:, :4], 3, padding=1),
        "fold": lambda: f.fold(columns, (side, side), 3, padding=1),
        "pixel_shuffle": lambda: f.pixel_shuffle(x, 2),
        "bilinear": lambda: f.interpolate(x, scale_factor=2, mode="bilinear"),
        "bicubic": lambda: f.interpolate(x, scale_factor=2, mode="bicubic"),
        "reflect": lambda: f.pad(x, (2, 2, 2, 2), mode="reflect"),
        "replicate": lambda: f.pad(x, (2, 2, 2, 2), mode="replicate"),
        "max_pool3": lambda: f.max_pool2d(x, 3, 2, 1),
        "avg_pool_k3": lambda: f.avg_pool2d(x, 3, 1, 1),
        "instance_norm": lambda: f.instance_norm(x),
        "group_norm": lambda: f.group_norm(x, 4, weight, bias),
        "batch_norm_eval": lambda: f.batch_norm(x, mean, var),
        "layer_norm": lambda: f.layer_norm(x, (side, side)),
        "local_response_norm": lambda: f.local_response_norm(x, 5),
        "channels_last": lambda: x.contiguous(memory_format=t.channels_last),
    }[p["op"]]


# -- convolutions of other kinds --------------------------------------------------------------------------------------

_CONVOLUTIONS = ("1d", "3d", "depthwise", "grouped", "transposed", "dilated", "1d depthwise", "bias")


def _draw_other_convolution(r: Random) -> Params:
    while True:
        n, c, o, side = log_int(r, 1, 64), 4 * log_int(r, 1, 64), 4 * log_int(r, 2, 64), log_int(r, 7, 128)
        op, kernel = r.choice(_CONVOLUTIONS), r.choice((1, 3, 3, 5))
        places = {"1d": side * 16, "1d depthwise": side * 16, "3d": side * side * 8}.get(op, side * side)
        taps = kernel ** (1 if "1d" in op else 3 if op == "3d" else 2)
        if n * c * o * places * taps <= 1 << 35 and n * max(c, o) * places <= 1 << 24:
            break
    return {
        "op": op, "n": n, "c": c, "o": o, "side": side, "kernel": kernel, "stride": r.choice((1, 1, 2)),
        "dtype": draw_dtype(r, "float32", "bfloat16"), "tf32": r.random() < 0.4, "gradient": r.random() < 0.35,
    }  # fmt: skip


def _other_convolution(t: Any, p: Params) -> Call:
    f, op, n, c, o = t.nn.functional, p["op"], p["n"], p["c"], p["o"]
    side, kernel, stride = p["side"], p["kernel"], p["stride"]
    groups = c if "depthwise" in op else 4 if op == "grouped" else 1
    o = c if "depthwise" in op else o
    spatial = (side * 16,) if "1d" in op else (8, side, side) if op == "3d" else (side, side)
    x = tensor(t, p["dtype"], n, c, *spatial)
    taps = (kernel,) * len(spatial)
    w = tensor(t, p["dtype"], *((c, o) if op == "transposed" else (o, c // groups)), *taps)
    bias = tensor(t, p["dtype"], o) if op == "bias" else None
    dilation = 2 if op == "dilated" else 1
    padding = dilation * (kernel // 2)
    function = f.conv_transpose2d if op == "transposed" else getattr(f, f"conv{len(spatial)}d")

    def forward() -> Any:
        if op == "transposed":
            return function(x, w, None, stride, padding)
        return function(x, w, bias, stride, padding, dilation, groups)

    if not p["gradient"]:
        return forward
    x.requires_grad_()
    w.requires_grad_()
    out = forward()
    grad = t.ones_like(out)
    return lambda: t.autograd.grad(out, (x, w), grad, retain_graph=True)


# -- products of other kinds ------------------------------------------------------------------------------------------

_EINSUMS = (
    "bij,bjk->bik",
    "bhqd,bhkd->bhqk",
    "ij,kj->ik",
    "bi,bj->bij",
    "bij->bji",
    "bij,bij->bi",
    "bij,jk->bik",
)


def _draw_einsum(r: Random) -> Params:
    while True:
        sizes = {name: log_int(r, 2, 64 if name == "h" else 512) for name in "bhijkqd"}
        spec = r.choice(_EINSUMS)
        letters = set(spec) & set(sizes)
        work = 1
        for name in letters:
            work *= sizes[name]
        if work <= 1 << 33 and all(
            _numel(part, sizes) <= 1 << 24 for part in spec.replace("->", ",").split(",")
        ):
            break
    kept = {name: sizes[name] for name in sorted(letters)}
    return {"spec": spec, "sizes": kept, "dtype": draw_dtype(r), "tf32": False}


def _numel(part: str, sizes: dict[str, int]) -> int:
    count = 1
    for name in part:
        count *= sizes[name]
    return count


def _einsum(t: Any, p: Params) -> Call:
    parts = p["spec"].split("->")[0].split(",")
    operands = [tensor(t, p["dtype"], *(p["sizes"][name] for name in part)) for part in parts]
    return lambda: t.einsum(p["spec"], *operands)


# -- attention of other kinds -----------------------------------------------------------------------------------------


def _draw_masked_attention(r: Random) -> Params:
    op = r.choice(("mask", "grouped", "one query", "cross", "layer"))
    while True:
        b, h, length, d = (
            log_int(r, 1, 16),
            r.choice((4, 8, 16)),
            log_int(r, 32, 2048),
            r.choice((32, 64, 128)),
        )
        if b * h * length * length * d <= 1 << 35:
            break
    return {
        "op": op,
        "b": b,
        "h": h,
        "length": length,
        "d": d,
        "dtype": draw_dtype(r, "bfloat16", "float32"),
        "tf32": False,
    }


def _masked_attention(t: Any, p: Params) -> Call:
    f, b, h, length, d, kind = t.nn.functional, p["b"], p["h"], p["length"], p["d"], p["dtype"]
    few = h // 4 if p["op"] == "grouped" else h
    queries = {"one query": 1, "cross": max(length // 4, 1)}.get(p["op"], length)
    q, k, v = (
        tensor(t, kind, b, h, queries, d),
        tensor(t, kind, b, few, length, d),
        tensor(t, kind, b, few, length, d),
    )
    mask = tensor(t, kind, 1, 1, queries, length) if p["op"] == "mask" else None
    if p["op"] == "layer":
        layer = t.nn.MultiheadAttention(h * d, h, batch_first=True, device="cuda", dtype=q.dtype)
        x = tensor(t, kind, b, length, h * d)
        return lambda: layer(x, x, x, need_weights=False)[0].detach()
    if p["op"] == "grouped":
        return lambda: f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return lambda: f.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# -- losses and gradients ---------------------------------------------------------------------------------------------

_LOSSES = (
    "kl_div", "cosine", "triplet", "cross_entropy images", "smoothed", "weighted", "ranking", "poisson", "huber",
    "normalize", "glu gradient", "max_pool gradient", "cat gradient", "index gradient", "cumsum gradient",
    "conv bias gradient", "var gradient", "group_norm gradient", "where gradient", "rms_norm gradient",
)  # fmt: skip


def _draw_more_losses(r: Random) -> Params:
    return {
        "op": r.choice(_LOSSES),
        "rows": log_int(r, 16, 4096),
        "columns": 4 * log_int(r, 4, 512),
        "dtype": "float32",
    }


def _more_losses(t: Any, p: Params) -> Call:
    f, rows, columns, op = t.nn.functional, p["rows"], p["columns"], p["op"]
    x, y, z = (tensor(t, "float32", rows, columns).requires_grad_("gradient" in op) for _ in range(3))
    labels = t.randint(0, columns, (rows,), device="cuda")
    picture = x.view(1, rows, -1, 4).requires_grad_("gradient" in op) if op.startswith("max") else x
    weight = t.rand(columns, device="cuda").requires_grad_("gradient" in op)
    pixels = t.randint(0, 4, (rows, columns // 4), device="cuda")
    sign = t.ones(rows, device="cuda")
    forward = {
        "kl_div": lambda: f.kl_div(x, y, reduction="batchmean"),
        "cosine": lambda: f.cosine_similarity(x, y),
        "triplet": lambda: f.triplet_margin_loss(x, y, z),
        "cross_entropy images": lambda: f.cross_entropy(x.view(rows, 4, -1), pixels),
        "smoothed": lambda: f.cross_entropy(x, labels, label_smoothing=0.1),
        "weighted": lambda: f.cross_entropy(x, labels, weight),
        "ranking": lambda: f.margin_ranking_loss(x[:, 0], y[:, 0], sign),
        "poisson": lambda: f.poisson_nll_loss(x, y),
        "huber": lambda: f.huber_loss(x, y),
        "normalize": lambda: f.normalize(x),
        "glu gradient": lambda: f.glu(x),
        "max_pool gradient": lambda: f.max_pool2d(picture, 2),
        "cat gradient": lambda: t.cat([x, y, z], 1),
        "index gradient": lambda: x[labels % rows],
        "cumsum gradient": lambda: x.cumsum(1),
        "conv bias gradient": lambda: x + weight,
        "var gradient": lambda: x.var(1),
        "group_norm gradient": lambda: f.group_norm(x.view(rows, 4, columns // 4), 4),
        "where gradient": lambda: t.where(x > 0, y, z),
        "rms_norm gradient": lambda: f.rms_norm(x, (columns,), weight),
    }[op]
    if "gradient" not in op:
        return forward
    out = forward()
    grad = t.ones_like(out)
    wanted = [v for v in (x, y, z, weight) if v.requires_grad]
    return lambda: t.autograd.grad(out, wanted, grad, retain_graph=True, allow_unused=True)


FAMILIES = (
    Family("other elements", "kernel", 36, _draw_elements, _elements),
    Family("dimensions", "kernel", 36, _draw_dims, _dims),
    Family("scan of dimension", "kernel", 20, _draw_scan, _scan),
    Family("indexed", "kernel", 32, _draw_indexed, _indexed),
    Family("spatial", "kernel", 36, _draw_spatial, _spatial),
    Family("other convolution", "kernel", 32, _draw_other_convolution, _other_convolution),
    Family("einsum", "kernel", 16, _draw_einsum, _einsum),
    Family("masked attention", "kernel", 16, _draw_masked_attention, _masked_attention),
    Family("other loss", "kernel", 30, _draw_more_losses, _more_losses),
)
