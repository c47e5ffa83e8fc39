"""Printing: `print(t)` shows exactly the text of PyTorch, including blanks. This module owns the print options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU, META
from flambeau.core.flags import flags
from flambeau.core.frozen import Record
from flambeau.tape.autograd_node import Leaf
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.extents import require_backed
from flambeau.tensor.arguments.options import default_complex
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.autograd.autograd_meta import node_of
from flambeau.tensor.exchange.transfer import host_array, item, on_host
from flambeau.tensor.tensor import Tensor, make

Array = np.ndarray[Any, Any]


class PrintOptions(Record):
    """The options for printing numbers. Lengths are in characters, `threshold` in elements."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_options = _PROFILES["default"]


@function
def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are printed.

    Args:
        precision: Digits after the point (4).
        threshold: More elements than this are summarized (1000).
        edgeitems: Elements shown at each end of a summarized dimension (3).
        linewidth: Characters per line (80).
        profile: "default", "short" or "full", applied before the other arguments.
        sci_mode: Scientific notation always (True), never (False), where it helps (None, set each time).
    """
    global _options
    base = _options if profile is None else _PROFILES.get(profile.lower(), _options)
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _options = base.with_(sci_mode=sci_mode, **changed)


def options() -> PrintOptions:
    """Return the print options in use."""
    return _options


def replace_options(new: PrintOptions) -> None:
    """Set all print options."""
    global _options
    _options = new


def get_printoptions() -> dict[str, Any]:
    """Return the print options in use: name -> value."""
    return {name: getattr(_options, name) for name in PrintOptions.__annotations__}


# -- a tensor as text -------------------------------------------------------------------------------------


unnamed: set[type] = {Tensor}
"""Classes whose instances are shown as `tensor(...)`, those of others by the name of their class."""


def text_of(t: Tensor, contents: str | None = None) -> str:
    """Return a tensor's text. A CUDA tensor's current stream is synchronized.

    Args:
        t: The tensor.
        contents: Text that stands for its values; None means the values.
    """
    if t.meta.sparse:
        return layout_functions.find("text")(t)
    prefix = "tensor(" if type(t) in unnamed else f"{type(t).__name__}("
    content = content_of(t, len(prefix)) if contents is None else contents
    text = with_suffixes(prefix + content, _suffixes(t), len(prefix))
    return f"Parameter({text})" if "_is_param" in t.__dict__ else text


def content_of(t: Tensor, indent: int) -> str:
    """Return the elements of a strided tensor as text, in brackets; later lines begin with `indent` blanks."""
    if t.meta.device is META:
        return "..."
    return _body(t, indent) if t.meta.numel else "[]"


@method
def __repr__(self: Tensor, *, tensor_contents: Any = None) -> str:
    return text_of(self, tensor_contents)


@method
def __format__(self: Tensor, format_spec: str) -> str:
    if self.meta.ndim == 0:
        return format(item(self), format_spec)
    return object.__format__(self, format_spec)


def _suffixes(t: Tensor) -> list[str]:
    meta, found = t.meta, []
    if meta.device is not CPU:
        found.append(f"device='{meta.device}'")
    plain = usual_dtypes() if meta.numel and meta.device is not META else {flags.default_dtype}
    has_no_values = not _options.edgeitems or meta.device is META
    if meta.ndim != 1 if not meta.numel and meta.device is not META else has_no_values:
        found.append(f"size={meta.shape}")
    if meta.dtype not in plain:
        found.append(f"dtype={meta.dtype}")
    node = node_of(t)
    if node is not None:
        found.append("requires_grad=True" if isinstance(node, Leaf) else f"grad_fn=<{node.name()}>")
    return found


def usual_dtypes() -> set[dtypes.dtype]:
    """Return the dtypes that are not named, because numbers of them show their dtype."""
    return {flags.default_dtype, default_complex(), dtypes.int64, dtypes.bool_}


def with_suffixes(
    text: str, suffixes: Sequence[str], indent: int, begins_line: bool = False, linewidth: int | None = None
) -> str:
    """Append suffixes to the last line, or on new lines if it gets too long. `begins_line` forces one for the first."""
    used = len(text) - text.rfind("\n") + 1
    for i, suffix in enumerate(suffixes):
        if (begins_line and i == 0) or used + len(suffix) + 2 > (linewidth or _options.linewidth):
            text += ",\n" + " " * indent + suffix
            used = indent + len(suffix)
        else:
            text += ", " + suffix
            used += len(suffix) + 2
    return text + ")"


def _body(t: Tensor, indent: int) -> str:
    summarize = t.meta.numel > _options.threshold
    values, cut = _edges(t) if summarize else (_values(t), (False,) * t.meta.ndim)
    if t.meta.dtype.is_complex:
        style: _Style = _ComplexStyle(values)
    elif t.meta.dtype.is_floating_point:
        style = _FloatStyle(values)
    else:
        style = _PlainStyle(values)
    return _format_nested(values.tolist(), cut, style, indent)


def _values(t: Tensor) -> Array:
    """Return the elements as a host array of a type that NumPy prints exactly: small floats as float64."""
    here = on_host(t)
    kind = here.meta.dtype
    values: Array = host_array(here)
    if kind.is_complex:
        return values.astype(np.complex64 if kind is dtypes.complex32 else values.dtype)
    return values.astype(np.float64) if kind.is_floating_point else values.copy()


def _edges(t: Tensor) -> tuple[Array, tuple[bool, ...]]:
    """Return the elements at the ends of the dimensions, and the dimensions that they are cut from.

    Only the corners are copied from the device, so a huge CUDA tensor prints quickly.
    """
    meta, edge = t.meta, _options.edgeitems
    cut = tuple([n > 2 * edge for n in meta.shape])
    shape = tuple([2 * edge if c else n for n, c in zip(meta.shape, cut, strict=True)])
    edges: Array | None = None
    ends = [((0, edge), (n - edge, edge)) if c else ((0, n),) for n, c in zip(meta.shape, cut, strict=True)]
    places = [((0, edge), (edge, 2 * edge)) if c else ((0, n),) for n, c in zip(meta.shape, cut, strict=True)]
    for corner, place in zip(itertools.product(*ends), itertools.product(*places), strict=True):
        values = _values(_part(t, corner))
        if edges is None:
            edges = np.empty(shape, values.dtype)
        edges[tuple([slice(*p) for p in place])] = values
    assert edges is not None
    return edges, cut


def _part(t: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    """Return a view of (start, length) in each dimension."""
    require_backed(t)
    offset = sum(start * stride for (start, _), stride in zip(ranges, t.meta.strides, strict=True))
    meta = t.meta.with_(shape=tuple([length for _, length in ranges]))
    return make(meta, t.memory, t.ptr + offset * meta.itemsize)


def _format_nested(values: Any, cut: tuple[bool, ...], style: _Style, indent: int) -> str:
    if not cut:
        return style.text(values)
    if len(cut) == 1:
        return _line(values, cut[0], style, indent)
    parts = [_format_nested(v, cut[1:], style, indent + 1) for v in values]
    if cut[0]:
        parts.insert(_options.edgeitems, "...")
    return "[" + ("," + "\n" * (len(cut) - 1) + " " * (indent + 1)).join(parts) + "]"


def _line(values: Any, cut: bool, style: _Style, indent: int) -> str:
    """Return the innermost dimension, broken into lines."""
    texts = [style.text(v) for v in values]
    if cut:
        texts.insert(_options.edgeitems, " ..." if _options.edgeitems else "...")
    per_line = max(1, (_options.linewidth - indent) // (style.width + 2))
    lines = [", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


# -- one number -------------------------------------------------------------------------------------------


class _PlainStyle:
    """A style for integers and booleans: right-aligned to the longest."""

    def __init__(self, values: Array) -> None:
        self.width = max([1, *[len(str(v)) for v in values.ravel().tolist()]])

    def text(self, value: Any) -> str:
        return str(value).rjust(self.width)


class _FloatStyle:
    """A style for floats: whole numbers as "3.", else fixed or scientific, as all finite numbers require."""

    def __init__(self, values: Array) -> None:
        numbers = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        self.whole = bool((numbers == np.ceil(numbers)).all())
        self.scientific = _options.sci_mode if _options.sci_mode is not None else _spread(numbers)
        self.scientific = self.scientific and numbers.size > 0
        self.width = 1
        self.width = max([1, *[len(self.text(v)) for v in numbers.tolist()]])

    def text(self, value: float) -> str:
        if self.scientific:
            shown = f"{value:.{_options.precision}e}"
        elif self.whole:
            shown = f"{value:.0f}" + ("." if math.isfinite(value) else "")
        else:
            shown = f"{value:.{_options.precision}f}"
        return shown.rjust(self.width)


def _spread(numbers: Array) -> bool:
    """Return True if fixed notation would lose too much: PyTorch's rule."""
    if not numbers.size:
        return False
    sizes = np.abs(numbers)
    low, high = float(sizes.min()), float(sizes.max())
    with np.errstate(all="ignore"):
        return high / low > 1000.0 or high > 1e8 or low < 1e-4


class _ComplexStyle:
    """A style for complex numbers, with one style for the real and one for the imaginary parts."""

    def __init__(self, values: Array) -> None:
        self.real = _FloatStyle(values.real)
        self.imag = _FloatStyle(values.imag)
        self.width = self.real.width + self.imag.width + 1

    def text(self, value: complex) -> str:
        imag = self.imag.text(value.imag).lstrip()
        return self.real.text(value.real) + ("" if imag[0] in "+-" else "+") + imag + "j"


_Style = _PlainStyle | _FloatStyle | _ComplexStyle
