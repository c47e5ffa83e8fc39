# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.utils."""


from flambeau.utils import checkpoint as checkpoint
from flambeau.utils import cpp_extension as cpp_extension
from flambeau.utils import data as data
from flambeau.utils import deterministic as deterministic
from flambeau.utils import dlpack as dlpack
from flambeau.utils import flop_counter as flop_counter
from flambeau.utils import hooks as hooks
from flambeau.utils import model_zoo as model_zoo
from flambeau.utils import module_tracker as module_tracker
from flambeau.utils._swap_tensors import swap_tensors as swap_tensors
from flambeau.utils import weak as weak

