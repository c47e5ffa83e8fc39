# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.cuda.amp."""


from flambeau.cuda.amp.grad_scaler import GradScaler as GradScaler
from flambeau.cuda.amp.common import amp_definitely_not_available as amp_definitely_not_available
from flambeau.cuda.amp.autocast_mode import autocast as autocast
from flambeau.cuda.amp import autocast_mode as autocast_mode
from flambeau.cuda.amp import common as common
from flambeau.cuda.amp.autocast_mode import custom_bwd as custom_bwd
from flambeau.cuda.amp.autocast_mode import custom_fwd as custom_fwd
from flambeau.cuda.amp import grad_scaler as grad_scaler

