# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.optim.lr_scheduler."""


from flambeau.optim.lr_scheduler.combined_schedulers import ChainedScheduler as ChainedScheduler
from flambeau.optim.lr_scheduler.curves import ConstantLR as ConstantLR
from flambeau.optim.lr_scheduler.curves import CosineAnnealingLR as CosineAnnealingLR
from flambeau.optim.lr_scheduler.curves import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from flambeau.optim.lr_scheduler.cycles import CyclicLR as CyclicLR
from flambeau.optim.lr_scheduler.curves import ExponentialLR as ExponentialLR
from flambeau.optim.lr_scheduler.base import LRScheduler as LRScheduler
from flambeau.optim.lr_scheduler.curves import LambdaLR as LambdaLR
from flambeau.optim.lr_scheduler.curves import LinearLR as LinearLR
from flambeau.optim.lr_scheduler.curves import MultiStepLR as MultiStepLR
from flambeau.optim.lr_scheduler.curves import MultiplicativeLR as MultiplicativeLR
from flambeau.optim.lr_scheduler.cycles import OneCycleLR as OneCycleLR
from flambeau.optim.lr_scheduler.curves import PolynomialLR as PolynomialLR
from flambeau.optim.lr_scheduler.plateau import ReduceLROnPlateau as ReduceLROnPlateau
from flambeau.optim.lr_scheduler.combined_schedulers import SequentialLR as SequentialLR
from flambeau.optim.lr_scheduler.curves import StepLR as StepLR
from flambeau.optim.lr_scheduler import base as base
from flambeau.optim.lr_scheduler import combined_schedulers as combined_schedulers
from flambeau.optim.lr_scheduler import curves as curves
from flambeau.optim.lr_scheduler import cycles as cycles
from flambeau.optim.lr_scheduler import plateau as plateau

