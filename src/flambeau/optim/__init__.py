"""torch.optim: optimizers, rates' schedules, averaged weights."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.optim import lr_scheduler, swa_utils
from flambeau.optim.adadelta import Adadelta
from flambeau.optim.adafactor import Adafactor
from flambeau.optim.adagrad import Adagrad
from flambeau.optim.adam import Adam, AdamW
from flambeau.optim.adamax import Adamax
from flambeau.optim.asgd import ASGD
from flambeau.optim.lbfgs import LBFGS
from flambeau.optim.muon import Muon
from flambeau.optim.nadam import NAdam
from flambeau.optim.optimizer import Optimizer
from flambeau.optim.optimizer_helpers import swap_in_optimizer_params_and_state
from flambeau.optim.radam import RAdam
from flambeau.optim.rmsprop import RMSprop
from flambeau.optim.rprop import Rprop
from flambeau.optim.sgd import SGD
from flambeau.optim.sparse_adam import SparseAdam

_explain_absent_names(globals(), "torch.optim")
