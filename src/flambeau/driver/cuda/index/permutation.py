"""`randperm`: sort positions by random keys. See Note [Permutations of GPUs] in core/random.py."""

from __future__ import annotations

from flambeau.core.random import DrawGrid, permutation_bits
from flambeau.driver.cuda.codegen.layout_parameters import blocks, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.cuda.index.radix import Radix
from flambeau.driver.protocol import Launch


def randperm(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of randperm. Params: meta of the output, policy. Scalars: seed, offset."""
    out, policy = launch.outputs[0], launch.params[1]
    assert isinstance(policy, DrawGrid)
    bits = permutation_bits(out.numel)
    width = 32 if bits <= 32 else 64
    order = f"raw ^ (K)1 << {width - 1}" if bits == width else f"raw & ((K)1 << {bits}) - 1"
    work = WorkspaceLayout()
    radix = Radix(work, out.numel, wide=width == 64, bits=bits, order=f"({order})")
    return KernelPlan(
        (
            _drawing(radix, policy, width),
            *radix.passes,
            _shuffling(radix, policy.increment(out.numel, 2), bits),
            _storing(radix, launch),
        ),
        work.nbytes,
        radix.zeroed,
    )


def _drawing(radix: Radix, policy: DrawGrid, width: int) -> Pass:
    """Return the kernel that draws a random key for each element, reduced to the range of the keys."""
    greatest = "0xffffffffull" if width == 32 else "~0ull"
    text = f"""{file("random.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({radix.kind}* keys, u64 seed, u64 offset, i64 n) {{
  deal<2, u64>(seed, offset, n,
    [](const Words& x, u64 (&v)[2]) {{
      v[0] = (u64)x.w[0] << 32 | x.w[1];
      v[1] = (u64)x.w[2] << 32 | x.w[3];
    }},
    [=](i64 i, u64 v) {{ keys[i] = ({radix.kind})(v % {greatest} + (1ull << {width - 1})); }});
}}
"""
    grid = policy.threads(radix.count) // DrawGrid.BLOCK
    return Pass(KernelProgram(text, (grid, 1, 1), 256, (i64(radix.count),)), (radix.source,), scalars=True)


def _shuffling(radix: Radix, drawn: int, bits: int) -> Pass:
    """Return the kernel that shuffles elements of equal keys. One thread handles each group; most have one element."""
    mask = "~0ull" if bits == 64 else f"(1ull << {bits}) - 1"
    text = f"""{file("random.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(const {radix.kind}* keys, u32* places, u64 seed, u64 offset,
    i64 n, i64 drawn) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  auto same = [=](i64 j) {{ return ((keys[i] ^ keys[j]) & ({mask})) == 0; }};
  if (i >= n - 1 || !same(i + 1) || (i && same(i - 1))) return;
  i64 size = 2;
  while (i + size < n && same(i + size)) ++size;
  const u64 turn = (offset + drawn) >> 2;
  Words words;
  for (i64 left = size - 1, k = 0; left > 0; --left, ++k) {{
    if (k % 4 == 0) words = philox(seed, turn + k / 4, i);
    const u32 other = words.w[k % 4] % (u32)(left + 1), kept = places[i + left];
    places[i + left] = places[i + other];
    places[i + other] = kept;
  }}
}}
"""
    tail = (i64(radix.count), i64(drawn))
    return Pass(KernelProgram(text, blocks(radix.count), 256, tail), (radix.keys, radix.values), scalars=True)


def _storing(radix: Radix, launch: Launch) -> Pass:
    out = launch.outputs[0]
    kind = c_name(out.dtype)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({kind}* out, const u32* places, i64 n, i64 step) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) out[i * step] = to<{kind}>((i64)places[i]);
}}
"""
    tail = (i64(out.numel), i64(out.strides[0]))
    return Pass(KernelProgram(text, blocks(out.numel), 256, tail), ((0, 0), radix.values))
