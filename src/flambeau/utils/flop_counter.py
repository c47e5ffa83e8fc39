"""torch.utils.flop_counter: names that can be imported; using one raises NotSupportedError.

PyTorch counts in its dispatcher below autograd, which Flambeau lacks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.names import explain_absent_names

__all__ = ["FlopCounterMode", "register_flop_formula"]

_HERE = "torch.utils.flop_counter"
_ADVICE = "torch.profiler counts the operations of each kernel with with_flops=True."
explain_absent_names(globals(), _HERE)

FlopCounterMode = absent_class(_HERE, "FlopCounterMode", _ADVICE)
register_flop_formula = absent_function(_HERE, "register_flop_formula", _ADVICE)
