"""The C++ source of the library of native kernels, from the table of operators.

Each operator's samples give its launches, and these give the kernels: the expression of its CUDA form, for the dtypes
that it computes in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pkgutil import walk_packages
from string import ascii_lowercase
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import bool_, dtype, float32, from_numpy
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native import folds, lists, scans
from flambeau.driver.host.kernels.native.element_bodies import kernel_of
from flambeau.driver.host.kernels.native.kernel_library import PRELUDE, digest
from flambeau.driver.host.kernels.native.kernel_names import (
    FLOAT_CALLS,
    SCALAR_CALLS,
    TYPES,
    ElementKernel,
    FoldKernel,
    ListKernel,
    ScanKernel,
    conversion_symbol,
    converts,
)
from flambeau.driver.protocol import Expression, Fold, Launch, Lists, Scan
from flambeau.ops.multi_tensor.foreach import Foreach
from flambeau.ops.op import Op, table

_NAMES = ascii_lowercase.replace("i", "")  # i is the element's index, as in the CUDA forms


def source() -> str:
    """Return the whole source. It does not depend on which modules the program has imported."""
    lines = ['#include "cpu.h"', prelude_for_cpus(), '#include "elements.h"', _digest_text()]
    lines += [_conversion_text(a, b) for a, b in product(TYPES, TYPES) if a is not b and converts(a, b)]
    lines += [_element_text(kernel) for kernel in element_kernels()]
    lines += ['#include "lists.h"', *[_list_text(kernel) for kernel in list_kernels()]]
    lines += ['#include "folds.h"', *[_fold_text(kernel) for kernel in fold_kernels()]]
    lines += [_scan_text(kernel) for kernel in scan_kernels()]
    lines += ['#include "rows.h"', '#include "top.h"']
    return "\n".join(lines)


def prelude_for_cpus() -> str:
    """Return prelude.cuh with its two PTX instructions as functions of include/cpu.h."""
    text = PRELUDE.read_text()
    text = re.sub(
        r'\{ float r; asm\("cvt\.f32\.f16.*?return r; \}', "{ return half_to_float(x.bits); }", text
    )
    text = re.sub(r'\{ u16 r; asm\("cvt\.rn\.f16\.f32.*?return r; \}', "{ return float_to_half(x); }", text)
    return text


def _digest_text() -> str:
    return f'extern "C" __attribute__((visibility("default"))) const char* const sources = "{digest()}";'


def _conversion_text(source: dtype, target: dtype) -> str:
    name, a, b = conversion_symbol(source, target), TYPES[source], TYPES[target]
    return f"EXPORT void {name}(i64 n, const void* in, void* out) {{ convert<{a}, {b}>(n, in, out); }}"


def _operators() -> list[Op]:
    """Return the operators of all modules, some of which programs import late."""
    for module in walk_packages(import_module("flambeau.ops").__path__, "flambeau.ops."):
        import_module(module.name)
    return list(table.values())


def element_kernels() -> list[ElementKernel]:
    """Return the kernels of elements of all operators, each once."""
    found: dict[str, ElementKernel] = {}
    for op in _operators():
        form = op.kernel.cuda
        if isinstance(form, Expression):
            for kernel in kernels_of(op, form):
                found[kernel.symbol] = kernel
    return [found[symbol] for symbol in sorted(found)]


def kernels_of(op: Op, form: Expression) -> Iterator[ElementKernel]:
    """Yield the kernels of an operator's samples. Kernels may be yielded more than once."""
    for kind in op.dtypes:
        if kind not in TYPES:
            continue
        for launch in _launches(op, kind):
            for uniform in _masks(launch) if any(isinstance(x, Meta) for x in launch.inputs) else ():
                kernel = kernel_of(launch, form, uniform)
                if kernel is not None and is_vectorized(kernel):
                    yield kernel


def is_vectorized(kernel: ElementKernel) -> bool:
    """Return True if compilers vectorize the kernel, so that it is faster than NumPy."""
    words = set(re.findall(r"\w+", kernel.text + kernel.functions))
    if words & set(SCALAR_CALLS):
        return False
    return kernel.inputs[0] is float32 or not words & set(FLOAT_CALLS)


def _launches(op: Op, kind: dtype) -> Iterator[Launch]:
    """Yield the launches of an operator's samples."""
    given = tuple([getattr(flags, name) for name in op.flags])
    for inputs, params in op.samples(_arrays(kind), kind):
        operands = [_operand(x) for x in inputs]
        found = op.rule(operands, (*params, *given))
        yield Launch(op.kernel, found.outputs, found.inputs, found.params)


def _launches_of_all_options(op: Foreach, kind: dtype) -> Iterator[Launch]:
    """Yield the launches of an operator over lists with each combination of its options that are True or False."""
    options = {params[1] for _, params in op.samples(_arrays(kind), kind)}
    for chosen in list(options):
        if all(value.__class__ is bool for value in chosen) and hasattr(chosen, "_fields"):
            options |= {type(chosen)(*values) for values in product((False, True), repeat=len(chosen))}
    for chosen in sorted(options, key=repr):
        inputs, params = op.sample(_arrays(kind), chosen)
        found = op.rule([_operand(x) for x in inputs], params)
        yield Launch(op.kernel, found.outputs, found.inputs, found.params)


def _arrays(kind: dtype) -> Any:
    return lambda *shape, low=-3, high=3: np.ones(shape, kind.numpy)


def _operand(x: Any) -> Meta | type:
    if isinstance(x, np.ndarray):
        return Meta.contiguous_of(x.shape, from_numpy(x.dtype), CPU)
    return type(x)


def _masks(launch: Launch) -> Iterator[tuple[bool, ...]]:
    """Yield which inputs a kernel takes as one value: none, each alone, all after the first, and the scalars."""
    count = len(launch.inputs)
    masks = {tuple([False] * count), tuple([not isinstance(x, Meta) for x in launch.inputs])}
    if count > 1:
        masks |= {tuple([k == at for k in range(count)]) for at in range(count)}
        masks.add(tuple([k > 0 for k in range(count)]))
    yield from sorted(masks)


def list_kernels() -> list[ListKernel]:
    """Return the kernels of all formulas over lists, each once."""
    found = {}
    for op in _operators():
        form = op.kernel.cuda
        if isinstance(op, Foreach) and isinstance(form, Lists):
            for launch in _launches_of_all_options(op, float32):
                kernel = lists.kernel_of(launch, form)
                if kernel is not None:
                    found[kernel.symbol] = kernel
    return [found[symbol] for symbol in sorted(found)]


def fold_kernels() -> list[FoldKernel]:
    """Return the functions of all reductions, each once."""
    found = {}
    for op in _operators():
        form = op.kernel.cuda
        if isinstance(form, Fold):
            for launch in [launch for kind in op.dtypes if kind in TYPES for launch in _launches(op, kind)]:
                kernel = folds.kernel_of(launch, form)
                if kernel is not None and not set(re.findall(r"\w+", kernel.join)) & set(FLOAT_CALLS):
                    found[kernel.symbol] = kernel
    return [found[symbol] for symbol in sorted(found)]


def scan_kernels() -> list[ScanKernel]:
    """Return the kernels of all running reductions, each once."""
    found = {}
    for op in _operators():
        form = op.kernel.cuda
        if isinstance(form, Scan):
            for launch in [launch for kind in op.dtypes if kind in TYPES for launch in _launches(op, kind)]:
                kernel = scans.kernel_of(launch, form)
                if kernel is not None:
                    found[kernel.symbol] = kernel
    return [found[symbol] for symbol in sorted(found)]


def _scan_text(kernel: ScanKernel) -> str:
    """Return the C++ function of a running reduction."""
    kind = TYPES[kernel.kind]
    return f"""
EXPORT void {kernel.symbol}(const i64* sizes, const i64* words) {{
  {kind}* y = ({kind}*)words[0];
  const {kind}* x = (const {kind}*)words[1];
  for (i64 r = 0; r < sizes[0]; ++r, x += sizes[1], y += sizes[1]) {{
    double a = x[0];
    y[0] = x[0];
    for (i64 i = 1; i < sizes[1]; ++i) {{ const double b = x[i]; a = {kernel.join}; y[i] = ({kind})a; }}
  }}
}}"""


def _list_text(kernel: ListKernel) -> str:
    """Return the C++ function of a formula over lists."""
    kind, results = TYPES[kernel.kind], len(kernel.results)
    once = [f"{kind}* y{k} = ({kind}*)at[{k}];" for k in range(results)]
    once += [f"const {kind}* p{k} = (const {kind}*)at[{results + k}];" for k in range(kernel.inputs)]
    once += [f"const double s{k} = scalars[{k}];" for k in range(kernel.scalars)]
    loads = [f"const T x{k} = p{k}[i];" for k in range(kernel.inputs)]
    stores = [f"y{k}[i] = {result};" for k, result in enumerate(kernel.results)]
    return f"""
EXPORT void {kernel.symbol}(i64 n, void* const* at, const double* scalars) {{
  typedef {kind} T;
  {" ".join(once)}
  INDEPENDENT for (i64 i = 0; i < n; ++i) {{
    {" ".join([*loads, *kernel.statements.splitlines(), *stores])}
  }}
}}"""


def _fold_text(kernel: FoldKernel) -> str:
    """Return the C++ functions of a reduction."""
    name, kind, out = kernel.symbol, TYPES[kernel.kind], TYPES[kernel.output]
    return f"""
namespace of_{name} {{
typedef {kind} T; typedef {kernel.state} State;
static inline State join(State a, State b) {{ return {kernel.join}; }}
static inline State lift(T x) {{ return {kernel.element}; }}
}}
EXPORT void {name}_start(i64 n, void* states) {{
  using namespace of_{name};
  for (i64 j = 0; j < n; ++j) ((State*)states)[j] = {kernel.start};
}}
EXPORT void {name}_lift(i64 n, const void* x, i64 rows, void* states) {{
  using namespace of_{name};
  State* s = (State*)states;
  const T* e = (const T*)x;
  if (n == LANES) {{
    for (i64 r = 0; r < rows; ++r, e += LANES)
      INDEPENDENT for (i64 j = 0; j < LANES; ++j) s[j] = join(s[j], lift(e[j]));
  }} else {{
    for (i64 r = 0; r < rows; ++r, e += n)
      INDEPENDENT for (i64 j = 0; j < n; ++j) s[j] = join(s[j], lift(e[j]));
  }}
}}
EXPORT void {name}_join(i64 n, const void* more, void* states) {{
  using namespace of_{name};
  State* s = (State*)states;
  const State* t = (const State*)more;
  INDEPENDENT for (i64 j = 0; j < n; ++j) s[j] = join(s[j], t[j]);
}}
EXPORT void {name}_lower(i64 count, const void* states, i64 n, void* out) {{
  using namespace of_{name};
  for (i64 j = 0; j < count; ++j) {{ const State s = ((const State*)states)[j]; (({out}*)out)[j] = {kernel.lower}; }}
}}"""


def _element_text(kernel: ElementKernel) -> str:
    """Return the C++ function of a kernel."""
    once = [f"typedef {TYPES[kernel.inputs[0]]} T;"]
    each: list[str] = []
    for k, (kind, uniform) in enumerate(zip(kernel.inputs, kernel.uniform, strict=True)):
        c_type, name = TYPES[kind], _NAMES[k]
        memory = (
            "u8" if kind is bool_ else c_type
        )  # any byte but 0 is true, which compilers need not assume of a bool
        once.append(f"const {memory}* p{k} = (const {memory}*)in[{k}];")
        element = f"const {c_type} {name} = p{k}[{0 if uniform else 'i'}]{' != 0' if kind is bool_ else ''};"
        (once if uniform else each).append(element)
    once += [f"const {kind} k{n} = word<{kind}>(constants[{n}]);" for n, kind in enumerate(kernel.constants)]
    out = TYPES[kernel.output]
    return f"""{_in_namespace(kernel)}
EXPORT void {kernel.symbol}(i64 n, void* out, const void* const* in, const i64* constants) {{
  {" ".join(once)}
  {out}* target = ({out}*)out;
  INDEPENDENT for (i64 i = 0; i < n; ++i) {{ {" ".join(each)} target[i] = to<{out}>({kernel.text}); }}
}}"""


def _in_namespace(kernel: ElementKernel) -> str:
    """Return the functions that a kernel calls, which other kernels may have under the same names."""
    space = f"of_{kernel.symbol}"
    return f"namespace {space} {{ {kernel.functions} }}\nusing namespace {space};" if kernel.functions else ""
