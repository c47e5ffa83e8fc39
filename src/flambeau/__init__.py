"""Flambeau: the CUDA runtime that PyTorch's documentation describes, on real and on virtual GPUs.

`import flambeau as torch` runs torch programs. Importing opens no driver and imports no GPU package.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from math import e, inf, nan, pi
from typing import Any as _Any

if not _sys.platform.startswith(("linux", "darwin")) or _os.uname().machine not in (
    "x86_64", "aarch64", "arm64",
):  # fmt: skip
    _here = f"{_sys.platform} ({_os.uname().machine})" if hasattr(_os, "uname") else _sys.platform
    raise ImportError(
        f"Flambeau runs on Linux (x86-64, aarch64) and on macOS, not on {_here}: its memory is mapped as there"
    )

# pytest loads the package of a plugin through its hook for assertions, which would parse each module of ours.
if hasattr(__loader__, "_must_rewrite"):
    __loader__._must_rewrite.discard("flambeau")

from flambeau import _ops, autograd, backends, cuda, fft, linalg, nn, random, special, version
from flambeau.autograd.anomaly_mode import is_anomaly_check_nan_enabled, is_anomaly_enabled
from flambeau.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from flambeau.backends.matmul_flags import get_float32_matmul_precision, set_float32_matmul_precision
from flambeau.core import dtype as _dtypes
from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.errors import (
    AcceleratorError,
    DriverError,
    HostMemoryError,
    InvalidAddressError,
    NotSupportedError,
    OutOfMemoryError,
    RaceError,
)
from flambeau.core.public_names import lacking as _lacking
from flambeau.core.public_names import publish as _publish
from flambeau.core.size import Size
from flambeau.core.torch_alias import install_alias_finder as _install_alias_finder
from flambeau.runtime.generator import Generator
from flambeau.runtime.streams.accelerator_event import Event
from flambeau.runtime.streams.accelerator_stream import Stream
from flambeau.runtime.system import virtual
from flambeau.tensor import (
    attributes as _attributes,
)
from flambeau.tensor import (
    predicates as _predicates,
)
from flambeau.tensor import (
    printing as _printing,
)
from flambeau.tensor import (
    promotion as _promotion,
)
from flambeau.tensor import (
    settings as _settings,
)
from flambeau.tensor import (
    storages as _storages,
)
from flambeau.tensor import (
    subclasses as _tensor_subclasses,
)
from flambeau.tensor.arguments import public as _public
from flambeau.tensor.arguments import torch_function as _overriding
from flambeau.tensor.exchange import constructor as _constructor
from flambeau.tensor.exchange import interop as _interop
from flambeau.tensor.exchange import pickling as _pickling
from flambeau.tensor.exchange import share as _share
from flambeau.tensor.exchange import transfer as _transfer
from flambeau.tensor.functions import arithmetic as _arithmetic
from flambeau.tensor.functions import creation as _creation
from flambeau.tensor.functions import dunders as _dunders
from flambeau.tensor.functions import indexing as _indexing
from flambeau.tensor.functions import joining as _joining
from flambeau.tensor.functions import matmul as _matmul
from flambeau.tensor.functions import random as _random
from flambeau.tensor.functions import reduction as _reduction
from flambeau.tensor.functions import sample_statistics as _statistics
from flambeau.tensor.functions import sorting as _sorting
from flambeau.tensor.functions import sparse_names as _sparse_names
from flambeau.tensor.functions import special as _special
from flambeau.tensor.functions import spectral as _spectral
from flambeau.tensor.functions import tensor_names as _tensor_names
from flambeau.tensor.functions import view_copies as _view_copies
from flambeau.tensor.functions import views as _views
from flambeau.tensor.tensor import Tensor
from flambeau.torch_version import TorchVersion as _TorchVersion

__version__ = _TorchVersion(version.__version__)
newaxis = None
ops = _ops.ops  # PyTorch's; `import flambeau.ops` still finds the package of Flambeau's operators
globals().update({d.name: d for d in (*_dtypes.DTYPES, *_dtypes.NAMED_DTYPES)} | _dtypes.ALIASES)
globals().update(_public.functions)
_share.announce(lambda: _import_module("flambeau.multiprocessing.reductions"), nn.Parameter)
_overriding.announce(
    _public.functions,
    *map(vars, (fft, linalg, nn.functional, special)),
    {"__name__": autograd.__name__, "grad": autograd.grad},
)
_publish(globals())
_install_alias_finder()
if (
    "FLAMBEAU_REPORT_FOLDER" in _os.environ
):  # a child of `flambeau run`: see Note [Reports of child processes]
    _import_module("flambeau.report.child_reports").join_reports()
if _os.environ.get("FLAMBEAU_RACES", "off") in (
    "warn",
    "error",
):  # what threads do before a device is used counts, too
    _import_module("flambeau.observe.handovers").watch_process()
if "IPython" in _sys.modules:  # see docs/notebooks.md
    _import_module("flambeau.report.notebook").install()


_LATER = {  # what is imported when it is first asked for: modules, and functions of modules
    "load": "flambeau.serialization", "save": "flambeau.serialization", "serialization": "", "utils": "",
    "optim": "", "amp": "", "profiler": "", "multiprocessing": "", "distributed": "", "futures": "",
    "accelerator": "", "get_device_module": "flambeau.accelerator", "cpu": "", "library": "",
    "_library": "", "_tensor": "", "_tensor_str": "", "storage": "", "mps": "", "mtia": "", "xpu": "",
    "distributions": "", "func": "", "vmap": "flambeau.func", "testing": "", "_utils": "", "overrides": "", "_C": "",
    "onnx": "", "sparse": "", "ao": "", "quantization": "", "_subclasses": "",
    "types": "", "compiler": "", "_dynamo": "", "_inductor": "", "compile": "flambeau.nn.compilation",
    "functional": "", "fx": "", "jit": "", "quasirandom": "", "__config__": "", "_jit_internal": "",
    "Future": "flambeau.futures", "lobpcg": "flambeau.linalg._lobpcg",
    "default_generator": "flambeau.random", "GradScaler": "flambeau.amp",
    "doctor": "flambeau.runtime.devices.doctor", "autocast": "flambeau.amp",
    "classes": "", "_VF": "", "segment_reduce": "flambeau.tensor.sparse.segment_reduce",
    "export": "", "nested": "", "masked": "", "signal": "", "torch_version": "",
    "_vmap_internals": "", "_functorch": "", "_guards": "",
    "from_file": "flambeau.tensor.storages", "StorageBase": "flambeau.tensor.storages",
    "hub": "", "Tag": "flambeau._library.user_operators",
    "ScriptModule": "flambeau.jit", "ScriptFunction": "flambeau.jit",
    "PyTorchFileReader": "flambeau._C", "PyTorchFileWriter": "flambeau._C",
} | dict.fromkeys(
    (
        "autocast_decrement_nesting", "autocast_increment_nesting", "clear_autocast_cache", "get_autocast_cpu_dtype",
        "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
        "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled",
        "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype",
    ),
    "flambeau.amp.autocast_mode",
) | dict.fromkeys(
    (
        "SymBool", "SymFloat", "SymInt", "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not",
        "sym_sqrt", "sym_sum",
    ),
    "flambeau._symbolic",
) | dict.fromkeys(
    (
        "_shape_as_tensor", "_softmax_backward_data", "affine_grid_generator", "cond", "convolution", "fill",
        "frobenius_norm", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "is_signed",
        "native_batch_norm", "native_dropout", "native_group_norm", "native_layer_norm", "norm_except_dim",
        "nuclear_norm", "while_loop",
    ),
    "flambeau._native_functions",
) | dict.fromkeys(
    (
        "_assert_async", "_check", "_check_index", "_check_is_size", "_check_not_implemented", "_check_tensor_all",
        "_check_tensor_all_with", "_check_type", "_check_value", "_check_with",
    ),
    "flambeau._checks",
) | dict.fromkeys(
    ("_sample_dirichlet", "_standard_gamma", "_standard_gamma_grad", "binomial"), "flambeau.distributions.rejection"
) | dict.fromkeys(
    ("_convert_indices_from_coo_to_csr", "_convert_indices_from_csr_to_coo"), "flambeau.tensor.sparse.index_conversion"
) | dict.fromkeys(
    (
        "AnyType", "AwaitType", "BoolType", "ClassType", "ComplexType", "ConcreteModuleType", "DeviceObjType",
        "DictType", "EnumType", "FloatType", "FutureType", "InferredType", "IntType", "InterfaceType", "ListType",
        "NoneType", "NumberType", "OptionalType", "PyObjectType", "RRefType", "StreamObjType", "StringType",
        "SymBoolType", "SymIntType", "TensorType", "TupleType", "UnionType",
    ),
    "flambeau._jit_types",
)  # fmt: skip


_raise_absence = _lacking("torch")


def load_ipython_extension(shell: _Any) -> None:
    """Install the notebook's displays, as an import under IPython does; `%load_ext flambeau` calls it."""
    _import_module("flambeau.report.notebook").install(shell)


def unload_ipython_extension(shell: _Any) -> None:
    """Undo `load_ipython_extension`; `%unload_ext flambeau` calls it."""
    _import_module("flambeau.report.notebook").uninstall(shell)


def _list_public_names() -> list[str]:
    """Return the names that `from torch import *` binds, as in PyTorch: no submodules, and none of Flambeau alone."""
    own = {
        "DriverError", "HostMemoryError", "InvalidAddressError", "NotSupportedError", "RaceError", "annotations",
        "doctor", "fork_rng", "load_ipython_extension", "unload_ipython_extension", "virtual",
    }  # fmt: skip
    modules = {name for name, value in globals().items() if isinstance(value, type(_sys))}
    modules |= {name for name, where in _LATER.items() if not where}
    modules.discard("export")  # PyTorch lists this one
    return [name for name in __dir__() if not name.startswith("_") and name not in own | modules]


def __getattr__(name: str) -> _Any:
    if name == "__all__":
        return _list_public_names()
    if name == "torch":  # packages write torch.torch.Tensor
        return _sys.modules[__name__]
    where = (
        "flambeau.tensor.functions.foreach_functions" if name.startswith("_foreach_") else _LATER.get(name)
    )
    if where is not None:
        found = getattr(_import_module(where), name) if where else _import_module(f"flambeau.{name}")
        _publish({"__name__": __name__, name: found})
        globals()[name] = found
        return found
    _raise_absence(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
