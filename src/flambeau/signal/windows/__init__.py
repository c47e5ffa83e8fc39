"""torch.signal.windows: window functions of M points. `sym=False` gives the first M of M + 1 points."""

from flambeau.core.public_names import explain_absent_names
from flambeau.signal.windows import windows
from flambeau.signal.windows.windows import (
    bartlett,
    blackman,
    cosine,
    exponential,
    gaussian,
    general_cosine,
    general_hamming,
    hamming,
    hann,
    kaiser,
    nuttall,
)

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming",
    "hann", "kaiser", "nuttall",
]  # fmt: skip

explain_absent_names(globals(), "torch.signal.windows")
