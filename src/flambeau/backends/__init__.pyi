# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.backends."""


from typing import Any

from flambeau.backends.flagged import FlaggedModule as FlaggedModule
from flambeau.backends.products import Precision as Precision
from flambeau.backends import attention as attention
from flambeau.backends import cuda as cuda
from flambeau.backends import cudnn as cudnn
from flambeau.backends import flagged as flagged
from flambeau.backends import libraries as libraries
from flambeau.backends import mps as mps
from flambeau.backends import products as products

fp32_precision: Any
