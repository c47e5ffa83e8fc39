"""`randperm`: the places of random 64-bit keys in their order."""

from __future__ import annotations

from flambeau.core.random import Policy
from flambeau.driver.api import Launch
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.elements import blocks, file, i64
from flambeau.driver.cuda.passes import Layout, Pass, Plan
from flambeau.driver.cuda.program import Program, c_name
from flambeau.driver.cuda.radix import Radix


def randperm(launch: Launch, device: Device) -> Plan:
    """params: meta of the output, policy. Scalars: seed, offset."""
    out, policy = launch.outputs[0], launch.params[1]
    assert isinstance(policy, Policy)
    work = Layout()
    radix = Radix(work, out.numel, wide=True, bits=64)
    draw = f"""{file("random.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(u64* keys, u64 seed, u64 offset, i64 n) {{
  deal<2, u64>(seed, offset, n,
    [](const Words& x, u64 (&v)[2]) {{
      v[0] = x.w[0] | (u64)x.w[1] << 32;
      v[1] = x.w[2] | (u64)x.w[3] << 32;
    }},
    [=](i64 i, u64 v) {{ keys[i] = v; }});
}}
"""
    grid = policy.threads(out.numel) // Policy.BLOCK
    drawing = Pass(Program(draw, (grid, 1, 1), 256, (i64(out.numel),)), (radix.source,), scalars=True)
    kind = c_name(out.dtype)
    text = f"""
extern "C" __global__ void __launch_bounds__(256) run({kind}* out, const u32* places, i64 n, i64 step) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) out[i * step] = to<{kind}>((i64)places[i]);
}}
"""
    storing = Pass(
        Program(text, blocks(out.numel), 256, (i64(out.numel), i64(out.strides[0]))), ((0, 0), radix.values)
    )
    return Plan((drawing, *radix.passes, storing), work.nbytes, radix.zeroed)


ROUTINES = {"randperm": randperm}
