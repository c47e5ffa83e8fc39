"""The loops of pointwise kernels over elements. The caller provides the C++ statement for one element."""

from __future__ import annotations

from collections.abc import Sequence

THREADS = 256  # threads per block

Named = tuple[str, int]
"""The C++ type of an input's elements, and its number, which its variables are named after."""


def flat_loop(
    declared: Sequence[str],
    outputs: Sequence[tuple[str, str, str]],
    inputs: Sequence[Named],
    singles: Sequence[Named],
    vector: int,
    unroll: int,
    compute: tuple[str, str],
    before: str = "",
) -> str:
    """Return the kernel for operands that are all dense in the same order, or have one element.

    Args:
        declared: The kernel's parameters.
        outputs: The type, the pointer and the vector of results of each output.
        inputs: The type and number of each dense input `k`: pointer `p{k}`, vectors `w{k}[u][j]`.
        singles: The same of inputs of one element, which is `v{k}`.
        vector: Number of elements of a vector.
        unroll: Number of vectors that a thread loads before it computes.
        compute: The statement for the elements `j` of the vectors `u`, and the one for a single element `i`.
        before: Statements before those for the elements of the vectors `u`.
    """
    once = "".join([f"  const {kind} v{at} = p{at}[0];\n" for kind, at in singles])
    pointers = [*[(kind, out) for kind, out, _ in outputs], *[(kind, f"p{at}") for kind, at in inputs]]
    aligned = " | ".join([f"misaligned<{kind}, {vector}>({pointer})" for kind, pointer in pointers])
    arrays = "".join([f"    Vector<{kind}, {vector}> w{at}[{unroll}];\n" for kind, at in inputs])
    loads = "".join(
        [f"      w{at}[u] = vectors<{vector}>(p{at})[first + u * {THREADS}];\n" for _, at in inputs]
    )
    results = "".join([f"      Vector<{kind}, {vector}> {name};\n" for kind, _, name in outputs])
    stores = "".join(
        [f"      vectors<{vector}>({out})[first + u * {THREADS}] = {name};\n" for _, out, name in outputs]
    )
    of_vectors, of_element = compute
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS}) run({", ".join(declared)}) {{
  const i64 tile = {THREADS * vector * unroll};
  const i64 start = blockIdx.x * tile;
{once}  if (start + tile <= n && !({aligned})) {{
    const i64 first = start / {vector} + threadIdx.x;
{arrays}#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
{loads}    }}
#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
{results}{before}#pragma unroll
      for (int j = 0; j < {vector}; ++j)
        {of_vectors}
{stores}    }}
  }} else {{
    const i64 end = start + tile < n ? start + tile : n;
#pragma unroll 1
    for (i64 i = start + threadIdx.x; i < end; i += {THREADS})
      {of_element}
  }}
}}
"""


def index_of_vectors(vector: int) -> str:
    """Return C++ for the index of the first element of the vectors `u` of `flat_loop`."""
    return f"(first + u * {THREADS}) * {vector}"


def index_in_vectors(vector: int) -> str:
    """Return C++ for the index of the element that `flat_loop` calls `j` in the vectors `u`."""
    return f"{index_of_vectors(vector)} + j"


def strided_loop(
    declared: Sequence[str],
    outputs: int,
    inputs: Sequence[Named],
    index: str,
    unroll: int,
    compute: str,
    layouts: int = 0,
) -> str:
    """Return the kernel for operands of any strides, which visits elements in the first output's memory order.

    Args:
        declared: The kernel's parameters, with `walk` over outputs and inputs.
        outputs: Number of outputs; element `i` of output k is at `o[u][k]`.
        inputs: The type and number of each input `k`: pointer `p{k}`, element `v{k}[u]`.
        index: The type of indices.
        unroll: Number of elements that a thread loads before it computes.
        compute: The statement for an element.
        layouts: Number of layouts in `walk` after those of the inputs.
    """
    arrays = "".join([f"  {kind} v{at}[{unroll}];\n" for kind, at in inputs])
    loads = "".join([f"      v{at}[u] = p{at}[o[u][{outputs + k}]];\n" for k, (_, at) in enumerate(inputs)])
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS}) run({", ".join(declared)}) {{
  const i64 start = blockIdx.x * (i64){THREADS * unroll} + threadIdx.x;
  {index} o[{unroll}][{outputs + len(inputs) + layouts}];
{arrays}#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {THREADS};
    if (i < n) {{
      walk.locate(({index})i, o[u]);
{loads}    }}
  }}
#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 i = start + u * {THREADS};
    if (i < n) {compute}
  }}
}}
"""


def strided_vector_loop(
    declared: Sequence[str],
    outputs: Sequence[tuple[str, str, str]],
    inputs: Sequence[tuple[Named, bool]],
    index: str,
    vector: int,
    unroll: int,
    compute: str,
    before: str = "",
    layouts: int = 0,
) -> str:
    """Return the kernel of operands with any strides, whose innermost dim is contiguous in the outputs.

    Args:
        declared: The kernel's parameters, with `walk` over the vectors of outputs and inputs, and `n` vectors.
        outputs: As of `flat_loop`.
        inputs: The type and number of each input `k`, and whether it has one element for the innermost dim: then its
            element is `v{k}[u]`, else its vectors are `w{k}[u][j]`.
        index: The type of indices.
        vector: Number of elements of a vector.
        unroll: Number of vectors that a thread loads before it computes.
        compute: The statement for the elements `j` of the vectors `u`.
        before: As of `flat_loop`.
        layouts: As of `strided_loop`.
    """
    arrays, loads = "", ""
    for k, ((kind, at), single) in enumerate(inputs, len(outputs)):
        if single:
            arrays += f"  {kind} v{at}[{unroll}];\n"
            loads += f"      v{at}[u] = p{at}[o[u][{k}]];\n"
        else:
            arrays += f"  Vector<{kind}, {vector}> w{at}[{unroll}];\n"
            loads += f"      w{at}[u] = taken<{vector}>(p{at} + o[u][{k}]);\n"
    results = "".join([f"      Vector<{kind}, {vector}> {name};\n" for kind, _, name in outputs])
    stores = "".join(
        [f"      put<{vector}>({out} + o[u][{k}], {name});\n" for k, (_, out, name) in enumerate(outputs)]
    )
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS}) run({", ".join(declared)}) {{
  const i64 start = blockIdx.x * (i64){THREADS * unroll} + threadIdx.x;
  {index} o[{unroll}][{len(outputs) + len(inputs) + layouts}];
{arrays}#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 at = start + u * {THREADS};
    if (at < n) {{
      walk.locate(({index})at, o[u]);
{loads}    }}
  }}
#pragma unroll
  for (int u = 0; u < {unroll}; ++u) {{
    const i64 at = start + u * {THREADS};
    if (at < n) {{
{results}{before}#pragma unroll
      for (int j = 0; j < {vector}; ++j) {{
        const i64 i = at * {vector} + j;
        {compute}
      }}
{stores}    }}
  }}
}}
"""
