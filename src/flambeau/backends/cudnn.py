"""torch.backends.cudnn: the flags of convolutions and recurrent layers.

enabled (True): whether library routines may be used. benchmark (False): whether they may be chosen by
timing. deterministic (False): whether only deterministic ones may. allow_tf32 (True): whether float32 may be
rounded to TF32 inside them.
"""

from __future__ import annotations

import sys

from flambeau.backends.flagged import Flag, FlaggedModule


class _Cudnn(FlaggedModule):
    enabled = Flag("cudnn_enabled")
    benchmark = Flag("cudnn_benchmark")
    deterministic = Flag("cudnn_deterministic")
    allow_tf32 = Flag("cudnn_allow_tf32")


sys.modules[__name__].__class__ = _Cudnn
