"""torch.amp: mixed precision: autocast, and gradients that a scale keeps from vanishing in float16."""

from __future__ import annotations

from flambeau.amp import autocast_mode, grad_scaler
from flambeau.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from flambeau.amp.grad_scaler import GradScaler
from flambeau.core.public_names import explain_absent_names

explain_absent_names(globals(), "torch.amp")
