# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.optim."""


from flambeau.optim.asgd import ASGD as ASGD
from flambeau.optim.adadelta import Adadelta as Adadelta
from flambeau.optim.adafactor import Adafactor as Adafactor
from flambeau.optim.adagrad import Adagrad as Adagrad
from flambeau.optim.adam import Adam as Adam
from flambeau.optim.adam import AdamW as AdamW
from flambeau.optim.adamax import Adamax as Adamax
from flambeau.optim.lbfgs import LBFGS as LBFGS
from flambeau.optim.muon import Muon as Muon
from flambeau.optim.nadam import NAdam as NAdam
from flambeau.optim.optimizer import Optimizer as Optimizer
from flambeau.optim.radam import RAdam as RAdam
from flambeau.optim.rmsprop import RMSprop as RMSprop
from flambeau.optim.rprop import Rprop as Rprop
from flambeau.optim.sgd import SGD as SGD
from flambeau.optim.sparse_adam import SparseAdam as SparseAdam
from flambeau.optim import adadelta as adadelta
from flambeau.optim import adafactor as adafactor
from flambeau.optim import adagrad as adagrad
from flambeau.optim import adam as adam
from flambeau.optim import adamax as adamax
from flambeau.optim import asgd as asgd
from flambeau.optim import by_parameter as by_parameter
from flambeau.optim import counters as counters
from flambeau.optim import elementwise_optimizer as elementwise_optimizer
from flambeau.optim import lbfgs as lbfgs
from flambeau.optim import lr_scheduler as lr_scheduler
from flambeau.optim import muon as muon
from flambeau.optim import nadam as nadam
from flambeau.optim import optimizer as optimizer
from flambeau.optim import optimizer_helpers as optimizer_helpers
from flambeau.optim import post_local_sgd as post_local_sgd
from flambeau.optim import radam as radam
from flambeau.optim import rmsprop as rmsprop
from flambeau.optim import rprop as rprop
from flambeau.optim import sgd as sgd
from flambeau.optim import sparse_adam as sparse_adam
from flambeau.optim import swa_utils as swa_utils
from flambeau.optim.optimizer_helpers import swap_in_optimizer_params_and_state as swap_in_optimizer_params_and_state
from flambeau.optim import zero_redundancy as zero_redundancy

