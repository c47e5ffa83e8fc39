"""Recurrent cells: each thread computes the gates of one element of the state, forward or backward."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, i64
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.protocol import Launch

_SIGMOID = "__device__ __forceinline__ C sigmoid(C x) { return 1 / (1 + exp_(-x)); }"


def _cell(body: str) -> Callable[[Launch, CudaDevice], KernelProgram]:
    """Return a builder of kernels that apply `body` to each element of a cell.

    `body` is C++ about outputs y0, y1, ... and inputs x0, x1, ... at one element. READ(k, g) is gate g of input
    k, or 0 for a state. WRITE(k, g, value) stores. MORE is the fifth input, or 0.
    """

    def build(launch: Launch, device: CudaDevice) -> KernelProgram:
        metas = launch.operands
        state = min(metas, key=lambda x: x.shape[1])
        walk = Walked(state.shape, [x.strides for x in metas])
        written = len(launch.outputs)
        names = [f"y{k}" for k in range(written)] + [f"x{k}" for k in range(len(metas) - written)]
        declared = [f"{'' if k < written else 'const '}E* {name}" for k, name in enumerate(names)]
        declared.append(walk.parameter("o"))
        declared += [f"i64 {name}_gate" for name in names] + ["i64 n"]
        places = "".join([f"  {name} += o[{k}];\n" for k, name in enumerate(names)])
        text = f"""
typedef {c_name(state.dtype)} E; typedef {c_name(computing(state.dtype))} C;
#define READ(k, g) to<C>(x##k[g * x##k##_gate])
#define MORE {"READ(4, 0)" if len(launch.inputs) > 4 else "C(0)"}
#define WRITE(k, g, value) y##k[g * y##k##_gate] = to<E>(value)
{_SIGMOID}
extern "C" __global__ void __launch_bounds__(256) run({", ".join(declared)}) {{
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {walk.locate("i", "o")}
{places}{body}
}}
"""
        return KernelProgram(
            text, blocks(walk.count), 256, (walk.value, *_gates(metas, state), i64(walk.count))
        )

    return build


def _gates(metas: tuple[Meta, ...], state: Meta) -> list[bytes]:
    """Return the distance between the gates of one element, for each operand."""
    return [i64(x.strides[1] * state.shape[1]) for x in metas]


_LSTM = """  const C i_ = sigmoid(READ({gates}, 0)), f = sigmoid(READ({gates}, 1));
  const C g = tanh_(READ({gates}, 2)), o_ = sigmoid(READ({gates}, 3));
  const C cell = READ({cell}, 0), next = f * cell + i_ * g, t = tanh_(next);
"""
_GRU = """  const C r = sigmoid(READ({x}, 0) + READ({h}, 0)), z = sigmoid(READ({x}, 1) + READ({h}, 1));
  const C hn = READ({h}, 2), next = tanh_(READ({x}, 2) + r * hn), state = READ({state}, 0);
"""

lstm_cell = _cell(_LSTM.format(gates=0, cell=1) + "  WRITE(0, 0, o_ * t);\n  WRITE(1, 0, next);")
lstm_cell_backward = _cell(
    _LSTM.format(gates=2, cell=3)
    + """  const C grad = READ(0, 0), whole = READ(1, 0) + grad * o_ * (1 - t * t);
  WRITE(0, 0, whole * g * i_ * (1 - i_));
  WRITE(0, 1, whole * cell * f * (1 - f));
  WRITE(0, 2, whole * i_ * (1 - g * g));
  WRITE(0, 3, grad * t * o_ * (1 - o_));
  WRITE(1, 0, whole * f);"""
)
gru_cell = _cell(_GRU.format(x=0, h=1, state=2) + "  WRITE(0, 0, next + z * (state - next));")
gru_cell_backward = _cell(
    _GRU.format(x=1, h=2, state=3)
    + """  const C grad = READ(0, 0), by_new = grad * (1 - z) * (1 - next * next);
  const C by_z = grad * (state - next) * z * (1 - z), by_r = by_new * hn * r * (1 - r);
  WRITE(0, 0, by_r);
  WRITE(0, 1, by_z);
  WRITE(0, 2, by_new);
  WRITE(1, 0, by_r);
  WRITE(1, 1, by_z);
  WRITE(1, 2, by_new * r);
  WRITE(2, 0, grad * z + MORE);"""
)
