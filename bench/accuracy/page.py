"""The page docs/accuracy.md and its scatter plot, from measured times and the simulated ones."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TITLES = {
    "unary": "one operand", "binary": "two operands", "several operands": "three operands, casts",
    "layout": "copies in another order, `cat`, `pad`", "selection": "indexing, embeddings, scatter",
    "reduction": "reductions", "rows": "softmax, norms, scans of rows", "sort": "sorts, `topk`, ranks",
    "product": "matrix products", "batched product": "batched products",
    "linear": "linear layers, products with vectors", "convolution": "convolutions",
    "convolution, gradient": "their gradients", "attention": "attention", "attention, gradient": "its gradient",
    "image": "norms and pooling of images", "loss": "losses", "gradient": "other gradients",
    "other": "random numbers, FFT, creation, Adam", "copy": "copies between host and device",
    "small calls": "rows of small calls", "graph": "graphs", "step": "training and inference steps",
    "overlap": "two streams", "other elements": "other functions, dtypes and layouts",
    "dimensions": "reductions of any dimensions", "scan of dimension": "scans and sorts of a dimension",
    "indexed": "other indexing", "spatial": "images: resampling, padding, norms",
    "other convolution": "convolutions of other kinds", "einsum": "`einsum`",
    "masked attention": "attention of other kinds",
    "other loss": "other losses and gradients", "other copy": "copies of other layouts",
    "read results": "results that the host reads", "small linalg": "small linear algebra",
    "recurrent": "recurrent layers", "model": "models",
}  # fmt: skip
KINDS = {
    "kernel": "kernels, all families",
    "copy": "copies",
    "chain": "rows of calls, graphs and steps",
    "overlap": "two streams",
}
_COLORS = {"kernel": "#2a6fbb", "copy": "#c44e52", "chain": "#dd8452", "overlap": "#55a868"}
_HEAD = (
    "| workloads | number | measured, us | median ratio | median error | within 1.5 | beyond 3 | peak memory equal |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 520, 70, 20, 50
_LEAST, _MOST = 0, 5  # powers of ten of microseconds on both axes

Row = dict[str, Any]
"""A workload: `family`, `kind`, `held`, `params`, and `real` and `simulated`, each with `ns` and `peak`."""


def page_text(data: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the page.

    Args:
        data: `machine`, `date`, `software`, `profile`, and `rows`, each a `Row`.
        other: The same of another GPU.
    """
    rows, others = held_out(data), held_out(other)
    worst = sorted(rows, key=_distance)[:15]
    return f"""# Accuracy of simulated times

<!-- Written by `python -m bench.accuracy page`; do not edit. -->

This page is for people who want to know how far to trust the times and the peak memory of virtual
GPUs. It compares {len(rows)} random workloads on the profile `{data["profile"]}` with measurements of
{data["date"]} under {data["software"].partition("+")[0]} on an {data["machine"]}, and {len(others)} with
measurements of {other["date"]} on an {other["machine"]}. Constants were fitted to as many more workloads
of the first file, by a random split, and to files of other seeds; none of these are shown.

![Simulated times next to measured ones](assets/accuracy.svg)

The ratio is simulated divided by measured time, the error its distance from 1. The lines in the
picture are a ratio of 1 and factors of 1.5 and 3.

## Overview

{_overview(rows)}
## Families

{_families(rows)}
## The worst

| workload | measured, us | simulated, us | ratio |
| --- | --- | --- | --- |
{"".join(_worst_line(row) for row in worst)}
## Another GPU, and more families

The profile `{other["profile"]}` has the constants of `{data["profile"]}` except for rates, memory, cache and
the start of a kernel. These are {len(others)} workloads of a seed that nothing was fitted to, with
more families. Hosts of one kind of machine differ by up to 1.4 in speed, which shows in rows of
calls and in steps: `flambeau calibrate` measures a machine's own.

{_overview(others)}
{_families(others)}
### The worst

| workload | measured, us | simulated, us | ratio |
| --- | --- | --- | --- |
{"".join(_worst_line(row) for row in sorted(others, key=_distance)[:15])}
## How it was measured

`bench/accuracy` draws shapes, dtypes and layouts by a seed. A kernel's time is between two events
around ten calls that wait behind a spinning kernel, so that the host's time does not count. Times
of calls, steps and blocking copies are the host's until the device is idle. Three rounds were
measured; the median counts. Peak memory is what one call allocates beyond what was there before.

Of each file a random half, which a workload's seed decides, is for fitting: the constants of the
cost model, and the rules, of which the kernels that PyTorch ran and their grids were read
(`details`). Exceptions: the rules of scans, `index_put`, `gather`, `dot` and `layer_norm` of
long rows, and the steps of attention in float32, were changed after worst rows of the other half
had been read. The hosts that measured had two speeds, a factor of 1.4 apart, for reasons unknown:
repeated measurements of the same step differ by as much. The model is between them.

```
python -m bench.accuracy measure FILE --seed 29   # on a machine with a GPU and PyTorch: one minute
python -m bench.accuracy details FILE --seed 29   # there: the kernels and allocations of each call
python -m bench.accuracy page                     # simulates the workloads and writes this page
```

## What is not modelled

- Temporary memory of sorts and scans, of the weight's gradient of convolutions, and losses:
  PyTorch's mean losses keep the memory of the unreduced loss.
- Attention without gradients allocates a number for each query that PyTorch does not.
- Which algorithm cuBLAS and cuDNN choose is known for the commonest shapes only. Linear
  algebra counts as its operations, not as the steps of cuSOLVER.
- Constants of recurrent layers are fitted to all measurements, those of the unseen seed included.
- Clocks that fall under load, and contention of other processes.
- Profiles other than `h100` and `h200` were not measured. They scale the figures of `h100` by their
  rates, clocks and multiprocessors.
"""


def held_out(data: dict[str, Any]) -> list[Row]:
    """Return the rows that were not used to fit constants."""
    return [row for row in data["rows"] if row["held"]]


def _families(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(row["family"] for row in rows)
    return _HEAD + "".join(_line(_TITLES[name], [r for r in rows if r["family"] == name]) for name in names)


def _distance(row: Row) -> float:
    return -abs(math.log(_ratio(row)))


def _overview(rows: Sequence[Row]) -> str:
    return _HEAD + "".join(
        _line(title, [r for r in rows if r["kind"] == kind]) for kind, title in KINDS.items()
    )


def _ratio(row: Row) -> float:
    return float(max(row["simulated"]["ns"], 1) / row["real"]["ns"])


def _line(title: str, rows: Sequence[Row]) -> str:
    ratios = [_ratio(row) for row in rows]
    spread = [max(ratio, 1 / ratio) for ratio in ratios]
    times = [row["real"]["ns"] / 1e3 for row in rows]
    cells = [
        title, str(len(rows)), f"{min(times):.3g} to {max(times):,.0f}", f"{statistics.median(ratios):.2f}",
        f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}",
        f"{sum(s <= 1.5 for s in spread) / len(rows):.0%}", f"{sum(s > 3 for s in spread) / len(rows):.0%}",
        f"{sum(row['real']['peak'] == row['simulated']['peak'] for row in rows) / len(rows):.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _worst_line(row: Row) -> str:
    given = ", ".join(f"{name} {value}" for name, value in row["params"].items() if name != "tf32")
    times = (row["real"]["ns"] / 1e3, row["simulated"]["ns"] / 1e3)
    return f"| {row['family']}: {given} | {times[0]:,.1f} | {times[1]:,.1f} | {_ratio(row):.2f} |\n"


def scatter(rows: Sequence[Row]) -> str:
    """Return an SVG with a point for each workload: measured time to the right, simulated time upward."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="13"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    ]
    for power in range(_LEAST, _MOST + 1):
        x, y, label = _x(power), _y(power), f"{10**power:,}"
        parts.append(
            f'<path d="M{x} {_y(_LEAST)}V{_y(_MOST)}M{_x(_LEAST)} {y}H{_x(_MOST)}" stroke="#ddd" fill="none"/>'
        )
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>')
    for factor, style in ((1, ""), (1.5, "6 4"), (1 / 1.5, "6 4"), (3, "2 4"), (1 / 3, "2 4")):
        shift = math.log10(factor)
        low, high = max(_LEAST, _LEAST - shift), min(_MOST, _MOST - shift)
        parts.append(
            f'<path d="M{_x(low)} {_y(low + shift)}L{_x(high)} {_y(high + shift)}" stroke="#777" fill="none" '
            f'stroke-dasharray="{style or "none"}"/>'
        )
    for row in rows:
        x, y = (math.log10(max(row[which]["ns"] / 1e3, 1.0)) for which in ("real", "simulated"))
        color = _COLORS[row["kind"]]
        parts.append(f'<circle cx="{_x(x)}" cy="{_y(y)}" r="3" fill="{color}" fill-opacity="0.55"/>')
    for place, (kind, title) in enumerate(KINDS.items()):
        y = _TOP + 20 + 20 * place
        parts.append(f'<circle cx="{_LEFT + 16}" cy="{y - 4}" r="5" fill="{_COLORS[kind]}"/>')
        parts.append(f'<text x="{_LEFT + 28}" y="{y}">{title}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">measured, us</text>'
    )
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">simulated, us</text>'
    )
    return "\n".join([*parts, "</svg>\n"])


def _x(power: float) -> float:
    return round(_LEFT + (power - _LEAST) / (_MOST - _LEAST) * (_WIDTH - _LEFT - 36), 1)


def _y(power: float) -> float:
    return round(_HEIGHT - _BOTTOM - (power - _LEAST) / (_MOST - _LEAST) * (_HEIGHT - _BOTTOM - _TOP), 1)


def write_page(data: dict[str, Any], other: dict[str, Any], docs: Path) -> None:
    """Write the page and its picture into the folder of pages."""
    (docs / "accuracy.md").write_text(page_text(data, other))
    (docs / "assets" / "accuracy.svg").write_text(scatter([*held_out(data), *held_out(other)]))


def load(path: Path) -> dict[str, Any]:
    """Return what `python -m bench.accuracy page` wrote."""
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def errors_text(data: dict[str, Any]) -> str:
    """Return the file of `time_errors.json`, one family a line."""
    errors = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in data["errors"].items()
    )
    families = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(family)}" for name, family in data["families"].items()
    )
    return f'{{\n "errors": {{\n{errors}\n }},\n "families": {{\n{families}\n }}\n}}\n'
