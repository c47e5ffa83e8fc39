"""The generator of docs/operators.md, from the operator table and the public names.

    python -m tools.pages.operator_page tests/goldens/torch_names.txt > docs/operators.md

The file lists PyTorch's documented names, one a line: `torch.add`, `Tensor.add_`, `linalg.svd`. The page ends with the
names that Flambeau lacks. Tests compare the page with the table and the list with PyTorch.
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
from flambeau.ops.derivative_helpers import Refusal
from flambeau.ops.op import MISSING, NOT_DIFFERENTIABLE, Op, table
from flambeau.tensor.arguments import public
from flambeau.tensor.tensor import Tensor
from flambeau.testing.operator_properties import summary
from tools.pages.markdown_lines import wrap

HEADER = """# Operators

<!-- Written by tools.pages.operator_page; do not edit. -->

This page lists the functions and methods of tensors: forms, dtypes, differentiability, and
differences from PyTorch. It is for people who port a program and for contributors. For example, the
row of `add` says that it has a function, a method, an in-place form and `out=`:

```python
import flambeau as torch

a = torch.ones(3, device="cpu")
torch.add(a, 1), a.add(1), a.add_(1), torch.add(a, 1, out=a)
```

{summary}.
Each pair is tested on a virtual GPU against the CPU, bit by bit. Tests in `tests/oracle` compare the
CPU with PyTorch.

## Conventions

- **Names.** Names, signatures, dtypes and errors are PyTorch's; the last column states differences.
  NumPy's argument names are accepted where PyTorch accepts them. `axis` and `keepdims` are accepted
  wherever there is `dim` or `keepdim`, `x`, `a` and `x1` by functions, and `x2` also by methods.
- **Dtypes.** complex32 is also computed on the CPU, where PyTorch has few kernels for it.
  np.complex64 scalars keep their imaginary part, which PyTorch drops.
- **Memory layout.** Results have PyTorch's strides. Convolutions, pooling, normalization,
  interpolation, padding, `cat` and their gradients keep `channels_last` and `channels_last_3d`.
  Only convolutions pay for this: they copy a tensor that is not contiguous.
- **Layout differences.** These results are contiguous: FFTs along other dimensions than the last,
  `unique` along a dimension, several `quantile`s, `linalg.solve` of a vector for each matrix, and
  `linalg.lstsq` with more rows than columns. `logsigmoid` and `rrelu` keep the order of dimensions;
  PyTorch's do not on CPUs. If the input and the result's gradient have different formats, some
  gradients have the other format than PyTorch's: `mse_loss`, `huber_loss`, `smooth_l1_loss`,
  `take`, channel and pixel shuffles, and `*_scatter` of views. Strides of dimensions with one
  element, and of empty tensors, may differ.
- **Dimensions.** A tensor has at most 64 dimensions, on every device: NumPy's arrays, with which
  reference implementations compute, have no more. Those that sort, scatter or index take at most 32
  dimensions. A call with more raises RuntimeError; so does one that needs a step with more (`tile`,
  `kron`). PyTorch has no general limit.
- **Conjugation is computed immediately.** For complex tensors `x.conj()`, `x.adjoint()`, `x.mH` and
  `x.H` are new tensors. PyTorch's are views that share `x`'s memory, so in-place changes are
  visible in both. A lazy conjugation would have to be checked by all code that reads or writes
  bytes.

## Columns

| column | values |
|---|---|
| forms | **f** function, **m** method, **i** in place, **o** accepts `out=` |
| dtypes | **b** bool; **i** integers; **f** float16, bfloat16, float32, float64; **c** complex; **w** \
uint16, uint32, uint64; **8** float8. Incomplete kinds are listed in parentheses. A name without dtypes is \
composed of others |
| differentiable | **yes**: to any order, compared with finite differences in `tests/autograd`; **no**: \
results never require gradients; **refused**: backward raises, because PyTorch has no derivative either |

## Invalid arguments and special values

A public function compares its arguments with PyTorch's signatures before it runs, and raises the
TypeError of PyTorch's parser. The signatures are in the function's decorator `signatures`
(`src/flambeau/tensor/signatures.py`), or are its own annotations;
`tests/oracle/names/test_signatures.py` compares both with PyTorch's stubs.
Some functions compare their arguments only after a failure, so they accept arguments that they do
not use: functions that are called most (`cat`, `view`, `to`, `zeros`), and operators.

`PYTHONPATH=src:tests python -m hunt.api_calls --seed 0 --count 20000` draws calls of all public
functions and methods. It compares PyTorch's CPU build, Flambeau's CPU and a virtual GPU in value,
dtype, shape, exception type and gradients. Most arguments fit; the others have wrong types, dtypes
and shapes, or are NaN, huge, 0-dimensional or not contiguous. [Security](security.md#calls-of-the-public-api) has
the figures. `tests/hunt/listed.py` lists the known differences by function and error; `make test`
fails for any other difference in its 1,100 calls. In groups:

- **Order.** If a call has several faults, another one may be reported. Functions that PyTorch
  writes in Python, or that consist of several steps, meet another fault first.
- **More is accepted.** Operators accept more dtypes than PyTorch's CPU kernels. Flambeau accepts
  layouts and dtypes for which a step of PyTorch's implementation fails (`kron`, `isin`,
  `take_along_dim` of transposed tensors). Indices may be int32, storages can grow, transforms of
  empty tensors are empty, and `norm` converts its result to any dtype.
- **Less is accepted.** Losses compare shapes and dtypes before they broadcast. Numbers beyond 63
  bits are refused. Dimensions of empty tensors are checked, too. `LinAlgError` is raised for singular
  values and eigenvalues of matrices with infinities; PyTorch sometimes returns NaN.
- **Numbers that a dtype cannot hold** are refused by every function that writes them. PyTorch's CPU
  build stores infinity for `fill_` and `full` of 16-bit floats; its CUDA build refuses them, too.
- **Devices.** `torch.device("cuda:300")` keeps its index, up to 32,767, and no device has it. PyTorch
  wraps the index to 8 bits, which gives 44, another device.
- **Values.** `kl_div` of a float16 target rounds its logarithms once; PyTorch rounds them twice. A
  float32 exponent of more than 24 bits is rounded and so even; PyTorch's CPU build rounds it in
  vectors alone, so elements of one tensor differ in sign. A float32 number in a tensor without
  dimensions is not rounded to the 16 bits of the other operand first, as in PyTorch's CUDA kernels.
- **A virtual GPU differs from the CPU** as PyTorch's CUDA kernels differ from its CPU kernels:
  integer division by zero, dtypes of products and factorizations, probabilities, singular matrices.
- `nanmedian`, `mode`, `rms_norm` and average pooling refuse complex numbers.
- In-place functions refuse an expanded tensor where PyTorch warns (`masked_fill_`, `index_fill_`,
  `triu_`, `tril_`).
- `cholesky_ex` of a matrix that is not positive definite gives a part of the factor. On the CPU and
  virtual GPUs, all columns of L before column `info` are valid. The next diagonal element is the
  pivot that is not positive, and the other elements of the triangle are those of the matrix.
  PyTorch's CPU build gives this up to 128 rows. For larger matrices its library leaves other
  elements below row `info`. On real GPUs the part is what cuSOLVER leaves, as in PyTorch's CUDA
  build. `info` is equal everywhere.
- A complex number is not a bound of `clamp` or `softshrink`, even without imaginary part. `nan_to_num`
  takes real replacements only. `view_copy` takes a dtype, not a type of Python.
- Functions of `nn.functional` that PyTorch writes in Python do not compare an argument that the call
  does not use. `tile` takes a tensor of dtype bool as a size; all other functions refuse it.
- Orthogonal polynomials are computed in float64. Where PyTorch's float32 recurrence overflows to
  NaN, the result is an infinity with the value's sign. NaN gives NaN; PyTorch's CPU build gives the
  value of another element for some kinds. A Laguerre or Legendre
  polynomial whose recurrence has more than 300,000 steps is refused; it would take minutes.
- `polygamma(1, x)` is infinite at 0, -1, -2, ...; PyTorch gives a large number at negative
  integers. PyTorch's factorial overflows from order 35 (float32), Flambeau's from 171 (float64). So
  `polygamma(99, inf)` is 0; PyTorch multiplies infinity by 0, which is NaN.
- **NaN in gradients.** `hardtanh`, `relu6`, `elu`, `selu`, `celu`, `hardswish`, `hardshrink` and
  `softshrink` have the gradient of PyTorch's scalar code, which its CUDA kernels share. Where
  PyTorch's CPU build uses vector instructions, that is for most elements of large tensors, its
  gradient at NaN is another one.
- `ldexp` with an integer exponent has the gradient `2 ** other`. PyTorch computes it in integers, so
  that it is 0 for negative exponents and from 64 on. Powers of a 0-dimensional float16 or bfloat16
  exponent are rounded to its dtype.
- `binary_cross_entropy_with_logits` of mixed dtypes has PyTorch's dtype. Its steps round to 16 bits
  less often, so that the last bits differ.
- Gradients by a Cholesky factor (`cholesky_solve`, `cholesky_inverse`) lie in the triangle that is
  read; PyTorch's formula multiplies by the whole matrix. Those of singular determinants are the
  cofactors where rounding allows; PyTorch gives zeros or infinities.
- `i1` and `i1e` have the gradient NaN at NaN; PyTorch's is 0.5. That of `log_ndtr` is infinite at
  -inf; PyTorch's is NaN. `detach_copy` and `histogram` have results that require no gradient; with
  PyTorch they do, and backward raises.
- The gradient of `polar` has the sign of a negative `abs`; PyTorch's has not. That of `atan2` squares
  integers as floats; PyTorch squares them in their dtype, where they wrap.
- Statistics of infinities differ in which results are NaN: `std_mean`, `var_mean`, `quantile`,
  `irfft`, `matrix_exp`, determinants.
- `unique_consecutive` with only `return_counts` gives counts; PyTorch gives the inverse.
- `median` of an expanded tensor is its median; PyTorch's CPU build returns another element.
- `put_` with equal indices, and `searchsorted` in unsorted boundaries, have other results.

## Names

| name | forms | dtypes | differentiable | result | difference from PyTorch |
|---|---|---|---|---|---|
"""

DIFFERENCES = {
    "div": "integer division by zero on a GPU gives the result of NVIDIA GPUs: see virtual-gpu.md",
    "floor_divide": "as `div`",
    "remainder": "integer division by zero: as `div`",
    "fmod": "integer division by zero: as `div`",
    "det": "the gradient of a singular matrix is its adjugate; PyTorch's is 0",
    "cholesky_inverse": "only the triangle that is read receives a gradient",
    "cholesky_solve": "as `cholesky_inverse`",
    "adjoint": "for complex numbers a new tensor, not a view",
    "conj": "for complex numbers a new tensor, not a view: see Conventions",
    "histc": "counts of float16 and bfloat16 are exact to the last rounding; PyTorch's stop at 2048 or 256 per thread",
    "histogram": "also on GPUs, where PyTorch has none",
    "histogramdd": "also on GPUs, where PyTorch has none",
    "topk": "among equal values the first are selected; PyTorch does not specify this",
    "kthvalue": "among equal values, in the order of a stable sort; PyTorch does not specify this",
    "cdist": "differentiable more than once",
    "orgqr": "differentiable by one matrix formula; PyTorch processes the reflectors one by one",
    "pow": "uint16, uint32, uint64 and float8 are refused with any exponent; PyTorch takes 0 and 1",
}
"""Notes by public name."""

_ROOMS = ("torch", "Tensor")  # namespaces that the page names; the others are packages of torch
WHY = (
    ("Nested tensors, a layout for which each operator needs a second form", r"padded"),
    ("Quantized tensors, which need further dtypes and kernels", r"quantize|^q_|qscheme|int_repr"),
    ("The compiler of TorchScript, which runs functions as Python here", r"compile|^cond$|^fork$|^wait$|^sym_|^parse_|"
     r"import_ir|_type_|init_num_threads"),
    ("Devices and backends other than CUDA", r"ipu|xpu|mtia|mkldnn|get_device_module"),
    ("First-class dimensions of functorch.dim, a second way of indexing", r"^index$"),
    ("Generators of PyTorch's data loading threads, which do not exist here", r"thread_safe"),
)  # fmt: skip
"""Why names are lacking: reasons, and patterns of the names that each covers."""

_KINDS = {"b": BOOL, "i": INTEGRAL, "f": FLOATING, "c": COMPLEX}
_SPECIAL = {"w": ("uint16", "uint32", "uint64"), "8": ("float8_e4m3fn", "float8_e5m2")}


def page(theirs: Iterable[str]) -> str:
    """Return the page. `theirs`: PyTorch's documented names."""
    rows = [_row(name) for name in sorted(_public_names(), key=str.lower)]
    return HEADER.format(summary=summary()) + "\n".join(rows) + "\n" + _unbound() + _lacking(theirs)


def _public_names() -> set[str]:
    """Return public functions and methods. An in-place form belongs to the row of its function."""
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
    """Return the page's word for an operator's derivative: "yes", "no" or "refused"."""
    if op.derivative is MISSING:
        return "not yet"
    if isinstance(op.derivative, Refusal):
        return "refused"
    return "no" if op.derivative is NOT_DIFFERENTIABLE or op.derivative.takes == frozenset() else "yes"


def dtypes_of(op: Op) -> str:
    """Return the dtypes that an operator accepts, as the letters of the page's header."""
    special = {name for names in _SPECIAL.values() for name in names}
    groups = {
        letter: [d for d in DTYPES if d.category == category and d.name not in special]
        for letter, category in _KINDS.items()
    } | {letter: [d for d in DTYPES if d.name in names] for letter, names in _SPECIAL.items()}
    return " ".join(
        filter(None, (_format_group(letter, group, op.dtypes) for letter, group in groups.items()))
    )


def _format_group(letter: str, group: Sequence[dtype], taken: Sequence[dtype]) -> str:
    some = [d.name for d in group if d in taken]
    return letter if len(some) == len(group) else f"({' '.join(some)})" if some else ""


def _unbound() -> str:
    """Return operator definitions by the public names that call them for further arguments."""
    inner = sorted(name for name in table if name not in public.functions and not hasattr(Tensor, name))
    rows = "\n".join(
        f"| `{name}` | {dtypes_of(table[name])} | {differentiable(table[name])} |" for name in inner
    )
    head = "| operator | dtypes | differentiable |\n|---|---|---|"
    return f"\n## Operator definitions without a public name\n\n{head}\n{rows}\n"


def _lacking(theirs: Iterable[str]) -> str:
    """Return PyTorch's documented names that Flambeau lacks, by the reason."""
    lacking: dict[str, list[str]] = {}
    for full in theirs:
        room, _, name = full.rpartition(".")
        if not _has(room, name):
            why = next((why for why, names in WHY if re.search(names, name)), "Seldom used")
            lacking.setdefault(why, []).append(full if room in _ROOMS else f"torch.{full}")
    count = sum(map(len, lacking.values()))
    parts = [wrap(f"- {why}: {_format_names(lacking[why])}.", indent="  ") + "\n" for why in sorted(lacking)]
    return (
        "\n## Missing names of PyTorch 2.13\n\n"
        f"{count} functions of `torch`, `torch.nn.functional`, `torch.linalg`, `torch.fft`, `torch.special` and "
        "methods of `Tensor`\nare missing. Each raises AttributeError, so `hasattr` is False.\n\n"
        + "".join(parts)
    )


def _has(room: str, name: str) -> bool:
    owner: Any = Tensor if room == "Tensor" else flambeau
    for part in room.split(".") if room not in _ROOMS else ():
        owner = getattr(owner, part)
    return hasattr(owner, name)


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


def main(arguments: Sequence[str]) -> int:
    (names,) = arguments
    sys.stdout.write(page(Path(names).read_text().split()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
