# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.backends."""


from typing import Any

from flambeau.backends.flagged import FlaggedModule as FlaggedModule
from flambeau.backends.matmul_flags import Precision as Precision
from flambeau.backends import attention_flags as attention_flags
from flambeau.backends import cpu as cpu
from flambeau.backends import cuda as cuda
from flambeau.backends import cudnn as cudnn
from flambeau.backends import flagged as flagged
from flambeau.backends import kleidiai as kleidiai
from flambeau.backends import library_flags as library_flags
from flambeau.backends import matmul_flags as matmul_flags
from flambeau.backends import mha as mha
from flambeau.backends import mkl as mkl
from flambeau.backends import mkldnn as mkldnn
from flambeau.backends import mps as mps
from flambeau.backends import nnpack as nnpack
from flambeau.backends import openmp as openmp
from flambeau.backends import opt_einsum as opt_einsum
from flambeau.backends import quantized as quantized
from flambeau.backends import xnnpack as xnnpack

fp32_precision: Any
