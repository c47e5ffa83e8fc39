"""Exchange with other libraries over a libcuda that only succeeds: what real GPUs' tensors say, without one."""

from __future__ import annotations

from pathlib import Path

from test_null_driver import library, run

assert library  # a fixture

PROGRAM = """
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
import flambeau as torch
x = torch.zeros(3, 4, device="cuda:1").t()
print(x.__dlpack_device__())
about = x.__cuda_array_interface__
print(about["version"], about["data"] == (x.data_ptr(), False), about["strides"], about["stream"])
y = torch.from_dlpack(x)
print(y.data_ptr() == x.data_ptr(), y.device, y.stride())

class Array:
    def __init__(self, x):
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "stream": 0x5550}

with torch.cuda.device(1):
    z = torch.as_tensor(Array(x))
print(z.data_ptr() == x.data_ptr(), z.device, z.stride(), z.dtype)
s = torch.cuda.ExternalStream(0x5550, device=1)
print(s.cuda_stream == 0x5550, s == torch.cuda.get_stream_from_external(0x5550, 1), s == torch.cuda.Stream(1))
own = torch.cuda.Stream(1)
print(torch.cuda.ExternalStream(own.cuda_stream, 1) == own, torch.cuda.ExternalStream(1, 1) == torch.cuda.default_stream(1))
with torch.cuda.stream(s):
    print(x.__cuda_array_interface__["stream"] == 0x5550)
    x.__dlpack__(stream=1)
for stream in (0, 2, "1"):
    try:
        x.__dlpack__(stream=stream)
    except (BufferError, TypeError) as error:
        print(error)
"""


def test_tensors_streams_and_arrays(library: Path) -> None:
    assert run(library, PROGRAM, devices=2).splitlines() == [
        "(2, 1)", "3 True (4, 16) 1", "True cuda:1 (1, 4)", "True cuda:1 (1, 4) torch.float32", "True True False",
        "True True", "True", "unsupported stream on CUDA: 0.", "per-thread default stream is not supported.",
        "stream must be ``int`` or ``none``",
    ]  # fmt: skip
