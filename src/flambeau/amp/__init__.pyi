# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.amp."""


from flambeau.amp.grad_scaler import GradScaler as GradScaler
from flambeau.amp.autocast_mode import autocast as autocast
from flambeau.amp import autocast_mode as autocast_mode
from flambeau.amp.autocast_mode import custom_bwd as custom_bwd
from flambeau.amp.autocast_mode import custom_fwd as custom_fwd
from flambeau.amp import grad_scaler as grad_scaler
from flambeau.amp.autocast_mode import is_autocast_available as is_autocast_available

