"""torch.cuda.amp: the older names of `torch.amp` for CUDA. Each use warns, as in PyTorch."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.cuda.amp import autocast_mode, common, grad_scaler
from flambeau.cuda.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from flambeau.cuda.amp.common import amp_definitely_not_available
from flambeau.cuda.amp.grad_scaler import GradScaler

explain_absent_names(globals(), "torch.cuda.amp")
