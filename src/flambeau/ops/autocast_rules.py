"""Rules of autocast, which an operator's definition or a public function names. `tensor/autocast.py` applies them.

PyTorch's lists say, for each kind of device, which functions take their inputs in the lower precision, which in
float32, and which in the widest dtype among them.
"""

from __future__ import annotations

from typing import Literal

from flambeau.core.frozen import Record

Policy = Literal["", "lower", "float32", "widest", "volumes", "as_is", "refuse"]


class AutocastRule(Record):
    """The dtypes to which autocast casts the inputs of an operator or a function, for each kind of device.

    Attributes:
        cuda: Rule for tensors on CUDA devices. "": no cast. "lower": cast to the lower precision. "float32": cast to
            float32. "widest": cast to float32 if an input is float32, else to the lower precision. "volumes": cast to
            float32 if the first input has five dimensions. "as_is": no cast, also for operators inside of the function.
            "refuse": raise.
        cpu: The class of the operator for tensors on the CPU.
    """

    cuda: Policy = ""
    cpu: Policy = ""


UNCHANGED = AutocastRule()
LOWER = AutocastRule("lower", "lower")
LOWER_ON_CUDA = AutocastRule(cuda="lower")
FLOAT32 = AutocastRule("float32", "float32")
FLOAT32_ON_CUDA = AutocastRule(cuda="float32")
FLOAT32_ON_CPU = AutocastRule(cpu="float32")
WIDEST_ON_CUDA = AutocastRule(cuda="widest")
VOLUMES_ON_CPU = AutocastRule(cpu="volumes")
AS_IS_ON_CPU = AutocastRule(cpu="as_is")
