"""The operator page, docs/operators.md, written from the operator table and the public names.

    python -m flambeau.testing.operator_page tests/goldens/torch_names.txt > docs/operators.md

The file lists PyTorch's documented names, one a line: `torch.add`, `Tensor.add_`, `linalg.svd`. Those that Flambeau
lacks end the page, so that nothing is silently absent. Tests hold the page to the table and the list to PyTorch.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import flambeau
from flambeau.core.dtype import BOOL, COMPLEX, DTYPES, FLOATING, INTEGRAL, dtype
from flambeau.ops.gradients import Refusal
from flambeau.ops.op import MISSING, NOT_DIFFERENTIABLE, Op, table
from flambeau.tensor import public
from flambeau.tensor.tensor import Tensor
from flambeau.testing.operators import summary

HEADER = """# Operators

<!-- Written by flambeau.testing.operator_page; do not edit. -->

{summary}.

Each pair is tested on a virtual GPU against the CPU, bit by bit; the CPU is tested against PyTorch in `tests/oracle`.
Names, signatures, dtypes and errors are PyTorch's; the last column says what differs. Besides, complex32 is
computed on the CPU too, where PyTorch has few kernels for it, and np.complex64 scalars keep their imaginary part, which
PyTorch drops. NumPy's names of arguments are taken as PyTorch takes them: `axis` and `keepdims` by all that has `dim`
or `keepdim`; `x`, `a` and `x1` by functions, `x2` by methods too.
Results lie in memory as PyTorch's do, in strides too: convolutions, pools, norms, interpolation, padding and `cat`
keep `channels_last` and `channels_last_3d`, and so do their gradients. Kernels write through strides, so that costs
nothing, but for convolutions: where a tensor is not contiguous it is copied first, or last. What differs: FFTs along
other dimensions than the last, `unique` along a dimension, several `quantile`s, `linalg.solve` of a vector for each
matrix, and `linalg.lstsq` of more rows than columns, whose solution is a part of a larger array in PyTorch, are
contiguous here; `logsigmoid` and `rrelu` keep the order of dimensions, which PyTorch's do not on CPUs. Where the
input and the gradient of the result lie in two formats, some gradients lie as the one where PyTorch's lie as the
other: of `mse_loss`, `huber_loss`, `smooth_l1_loss`, `take`, of shuffled channels and pixels, and of the `*_scatter`
of views. Strides of dimensions of one element, and of tensors of none, may differ.

Conjugation is computed when it is asked for: `x.conj()`, `x.adjoint()`, `x.mH` and `x.H` of complex numbers are new
tensors, where PyTorch's are views that share `x`'s memory and conjugate when they are read. So a change of `x` in place
is not seen in them, nor theirs in `x`. A pending conjugation in a tensor's layout would cost a call nothing, but all
that reads or writes bytes would have to ask for it: each kernel or a copy before it, copies between devices, lists of
tensors, collectives, what is saved, lent to other libraries and printed.

Forms: **f** function, **m** method, **i** in place, **o** takes `out=`. Dtypes by kind: **b** bool, **i** integers,
**f** float16, bfloat16, float32, float64, **c** complex, **w** uint16, uint32, uint64, **8** float8; where not all of a
kind are taken, they are listed in brackets. Differentiable: **yes**, to any order; **no**, the results never require
gradients; **refused**, PyTorch has no derivative either and walking back raises. A name without dtypes is made of
others: it takes theirs, and is differentiable as they are. Each **yes** is compared with differences in
`tests/autograd`.

## Arguments and odd values

A call that fails compares its arguments with the annotations of the function, and raises the TypeError of PyTorch's
parser for the first that does not fit. Nothing is compared where a call succeeds, so some calls succeed that PyTorch
refuses: a number as `keepdim` or `training`, one int for a tuple of one, `inplace` in functions of the torch namespace
that PyTorch has without it, `stable=` beside a `dim` by position. Of several faults of a call another one may be
reported.

`PYTHONPATH=src:tests python -m hunt.api_calls --seed 0 --count 20000` draws calls of all public functions and methods,
and compares PyTorch's CPU build, Flambeau's CPU and a virtual GPU in value, dtype, shape and type of exception.
Arguments fit mostly; the others are of wrong types, dtypes and shapes, NaN, huge, 0-dim or not contiguous. Of the 8,000
calls of seed 200 (1,147 functions), before this checker was written and now (the first row: of all seeds):

| class | before | now |
|---|---|---|
| a hang, or a virtual GPU lost by arguments that the host could refuse | 5 | 0 |
| an error of Flambeau's own code (AttributeError, AssertionError, ...) | 60 | 0 |
| PyTorch raises TypeError, Flambeau another error | 400 | 70 |
| PyTorch accepts the call, Flambeau refuses it | 4 | 4 |
| PyTorch refuses the call, Flambeau accepts it | 93 | 74 |
| another dtype, shape or value | 4 | 4 |

About 90,000 calls of 14 seeds were drawn. What is left and known:

- `nanmedian`, `mode`, `rms_norm` and average pooling refuse complex numbers.
- In-place functions refuse an expanded tensor where PyTorch's warn (`masked_fill_`, `index_fill_`, `triu_`, `tril_`).
- `cholesky_ex` of a matrix that is not positive definite gives NaN; PyTorch leaves what LAPACK had computed by then.
- Orthogonal polynomials are computed in float64. Where PyTorch's float32 recurrence overflows it gives NaN, here the
  infinity of the value's sign. NaN gives NaN; PyTorch's CPU build gives the value of another element for some kinds.
- `polygamma(1, x)` is infinite at 0, -1, -2, ...; PyTorch's is a large number at negative integers. From order 35 on
  PyTorch's factorial overflows in float32, here in float64 from 171 on.
- Statistics of infinities (`std_mean`, `var_mean`, `quantile`, `irfft`, `matrix_exp`, determinants of matrices with
  infinities) differ in which results are NaN.
- `unique_consecutive` with `return_counts` alone gives counts; PyTorch's gives the inverse.

## Names

| name | forms | dtypes | differentiable | what it gives | differs from PyTorch |
|---|---|---|---|---|---|
"""

DIFFERENCES = {
    "div": "an integer division by zero on a GPU gives what NVIDIA GPUs give: see virtual-gpu.md",
    "floor_divide": "as `div`",
    "remainder": "an integer 0 as divisor: as `div`",
    "fmod": "an integer 0 as divisor: as `div`",
    "det": "the gradient of a singular matrix is its adjugate; PyTorch's is 0",
    "cholesky_inverse": "only the triangle that is read gets a gradient",
    "cholesky_solve": "as `cholesky_inverse`",
    "adjoint": "of complex numbers a new tensor, no view",
    "conj": "of complex numbers a new tensor, no view: see above",
    "histc": "counts of float16 and bfloat16 are exact to the last rounding; PyTorch's stop at 2048 or 256 per thread",
    "histogram": "on GPUs too, where PyTorch has none",
    "histogramdd": "on GPUs too, where PyTorch has none",
    "topk": "of equal values the first are taken; PyTorch's choice is not specified",
    "kthvalue": "of equal values as a stable sort has them; PyTorch's choice is not specified",
    "cdist": "differentiable more than once",
    "orgqr": "differentiable by one formula of matrices; PyTorch goes through the reflectors one by one",
    "pow": "uint16, uint32, uint64 and float8 are refused with any exponent; PyTorch takes 0 and 1",
}
"""Notes by public name."""

_ROOMS = ("torch", "Tensor")  # with names of their own on the list; others are rooms of torch
WHY = (
    ("Sparse layouts: tensors are strided", r"sparse|coalesce|crow_|col_indices|^indices|^values|smm|hspmm|sspaddmm"
     r"|dense|padded"),
    ("Quantized numbers", r"quantize|^q_|qscheme|int_repr"),
    ("Compilers, scripts and symbolic sizes", r"compile|^cond$|^fork$|^wait$|^sym_|^parse_|import_ir|_type_|init_num_"
     r"threads"),
    ("Function transforms", r"^vmap$"),
    ("Devices and back ends other than CUDA's", r"ipu|xpu|mtia|mkldnn|get_device_module"),
    ("Products of 8 bits and in groups", r"scaled_mm|grouped_mm"),
    ("Linear algebra that few programs use", r"lobpcg|ldl_"),
    ("Subclasses of tensors", r"module_load"),
)  # fmt: skip
"""Why names are lacking: reasons, and patterns of the names that each covers."""

_KINDS = {"b": BOOL, "i": INTEGRAL, "f": FLOATING, "c": COMPLEX}
_SPECIAL = {"w": ("uint16", "uint32", "uint64"), "8": ("float8_e4m3fn", "float8_e5m2")}


def page(theirs: Iterable[str]) -> str:
    """The page. `theirs`: PyTorch's documented names."""
    rows = [_row(name) for name in sorted(_public_names(), key=str.lower)]
    return HEADER.format(summary=summary()) + "\n".join(rows) + "\n" + _unbound() + _lacking(theirs)


def _public_names() -> set[str]:
    """Functions and methods; an in-place form belongs to the row of its function."""
    bound = [*public.functions.items(), *vars(Tensor).items()]
    functions = {n for n, value in bound if inspect.isfunction(value)}
    names = {n for n in functions if not n.startswith("_") or n == "_assert"}  # which is documented
    return {n for n in names if not (n.endswith("_") and n[:-1] in names)}


def _row(name: str) -> str:
    function, method = public.functions.get(name), vars(Tensor).get(name)
    forms = [
        letter
        for letter, there in (
            ("f", function is not None),
            ("m", method is not None),
            ("i", f"{name}_" in vars(Tensor)),
            ("o", function is not None and "out" in inspect.signature(function).parameters),
        )
        if there
    ]
    define = function or method
    of = table.get(getattr(define, "__name__", name)) or table.get(name)
    kinds, gradient = ("", "") if of is None else (dtypes_of(of), differentiable(of))
    what, note = _first_line(define), DIFFERENCES.get(name, "")
    return f"| `{name}` | {' '.join(forms)} | {kinds} | {gradient} | {what} | {note} |"


def _first_line(define: Any) -> str:
    text = (inspect.getdoc(define) or "").split("\n\n")[0].replace("\n", " ")
    return text.replace("|", "\\|")


def differentiable(op: Op) -> str:
    """Whether gradients pass an operator."""
    if op.derivative is MISSING:
        return "not yet"
    if isinstance(op.derivative, Refusal):
        return "refused"
    return "no" if op.derivative is NOT_DIFFERENTIABLE else "yes"


def dtypes_of(op: Op) -> str:
    """The dtypes that an operator takes, by the letters of the page's header."""
    special = {name for names in _SPECIAL.values() for name in names}
    groups = {
        letter: [d for d in DTYPES if d.category == category and d.name not in special]
        for letter, category in _KINDS.items()
    } | {letter: [d for d in DTYPES if d.name in names] for letter, names in _SPECIAL.items()}
    return " ".join(filter(None, (_taken(letter, group, op.dtypes) for letter, group in groups.items())))


def _taken(letter: str, group: Sequence[dtype], taken: Sequence[dtype]) -> str:
    some = [d.name for d in group if d in taken]
    return letter if len(some) == len(group) else f"({' '.join(some)})" if some else ""


def _unbound() -> str:
    """Records under the public names: what a name calls when its arguments ask for more."""
    inner = sorted(name for name in table if name not in public.functions and not hasattr(Tensor, name))
    rows = "\n".join(
        f"| `{name}` | {dtypes_of(table[name])} | {differentiable(table[name])} |" for name in inner
    )
    head = "| record | dtypes | differentiable |\n|---|---|---|"
    return f"\n## Records without a public name of their own\n\n{head}\n{rows}\n"


def _lacking(theirs: Iterable[str]) -> str:
    """PyTorch's documented names that Flambeau has not, by the reason."""
    lacking: dict[str, list[str]] = {}
    for full in theirs:
        room, _, name = full.rpartition(".")
        if not _has(room, name):
            why = next((why for why, names in WHY if re.search(names, name)), "Seldom used")
            lacking.setdefault(why, []).append(full if room in _ROOMS else f"torch.{full}")
    count = sum(map(len, lacking.values()))
    parts = [f"- {why}: {_listed(lacking[why])}.\n" for why in sorted(lacking)]
    return (
        "\n## What PyTorch 2.13 documents and Flambeau does not have\n\n"
        f"{count} of the functions of `torch`, `torch.nn.functional`, `torch.linalg`, `torch.fft` and `torch.special` "
        "and of the methods of `Tensor`. Each raises AttributeError, so that `hasattr` is False.\n\n"
        + "".join(parts)
    )


def _has(room: str, name: str) -> bool:
    owner: Any = Tensor if room == "Tensor" else flambeau
    for part in room.split(".") if room not in _ROOMS else ():
        owner = getattr(owner, part)
    return hasattr(owner, name)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


def main(arguments: Sequence[str]) -> int:
    (names,) = arguments
    sys.stdout.write(page(Path(names).read_text().split()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
