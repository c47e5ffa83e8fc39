# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.testing.soundness."""


from flambeau.testing.soundness.program_generator import FEATURES as FEATURES
from flambeau.testing.soundness.hunt import Hunt as Hunt
from flambeau.testing.soundness.model import Model as Model
from flambeau.testing.soundness.programs import Program as Program
from flambeau.testing.soundness.program_steps import Step as Step
from flambeau.testing.soundness import device_steps as device_steps
from flambeau.testing.soundness import executor as executor
from flambeau.testing.soundness import forcing as forcing
from flambeau.testing.soundness.program_generator import generate as generate
from flambeau.testing.soundness import gradient_steps as gradient_steps
from flambeau.testing.soundness import graph_steps as graph_steps
from flambeau.testing.soundness import host_steps as host_steps
from flambeau.testing.soundness import hunt as hunt
from flambeau.testing.soundness import indexed_steps as indexed_steps
from flambeau.testing.soundness import model as model
from flambeau.testing.soundness import order_steps as order_steps
from flambeau.testing.soundness import program_checks as program_checks
from flambeau.testing.soundness import program_generator as program_generator
from flambeau.testing.soundness import program_steps as program_steps
from flambeau.testing.soundness import programs as programs
from flambeau.testing.soundness import tensor_steps as tensor_steps
from flambeau.testing.soundness import thread_steps as thread_steps
from flambeau.testing.soundness import values as values

