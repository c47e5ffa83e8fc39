"""torch.version: `__version__` is the version of PyTorch whose behaviour Flambeau follows, with a suffix that names
Flambeau.

Programs that compare `torch.__version__` see 2.13; those that print it see whose it is.
"""

from flambeau.core.public_names import explain_absent_names

flambeau = "0.1.0"
__version__ = f"2.13.0+flambeau{flambeau}"
cuda = "13.0"  # the CUDA whose driver API is modelled and, on real GPUs, used
git_version = "unknown"
hip = rocm = xpu = None
debug = False

explain_absent_names(globals(), "torch.version")
