"""torch.utils.cpp_extension: importable, so that programs which build extensions only if they can run."""

from __future__ import annotations

from shutil import which

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

CUDA_HOME = CUDNN_HOME = ROCM_HOME = ROCM_VERSION = HIP_HOME = SYCL_HOME = None
IS_HIP_EXTENSION = False
_HERE = "torch.utils.cpp_extension"
_ADVICE = (
    "It needs the C++ library of PyTorch: define the operator by torch.library or torch.autograd.Function."
)

BuildExtension = absent_class(_HERE, "BuildExtension", _ADVICE)
CUDAExtension = absent_function(_HERE, "CUDAExtension", _ADVICE)
CppExtension = absent_function(_HERE, "CppExtension", _ADVICE)
SyclExtension = absent_function(_HERE, "SyclExtension", _ADVICE)
check_compiler_is_gcc = absent_function(_HERE, "check_compiler_is_gcc", _ADVICE)
check_compiler_ok_for_platform = absent_function(_HERE, "check_compiler_ok_for_platform", _ADVICE)
get_compiler_abi_compatibility_and_version = absent_function(
    _HERE, "get_compiler_abi_compatibility_and_version", _ADVICE
)
get_cxx_compiler = absent_function(_HERE, "get_cxx_compiler", _ADVICE)
get_default_build_root = absent_function(_HERE, "get_default_build_root", _ADVICE)
include_paths = absent_function(_HERE, "include_paths", _ADVICE)
library_paths = absent_function(_HERE, "library_paths", _ADVICE)
load = absent_function(_HERE, "load", _ADVICE)
load_inline = absent_function(_HERE, "load_inline", _ADVICE)
remove_extension_h_precompiler_headers = absent_function(
    _HERE, "remove_extension_h_precompiler_headers", _ADVICE
)


def is_ninja_available() -> bool:
    """Return True if the build tool ninja is on the search path."""
    return which("ninja") is not None


def verify_ninja_availability() -> None:
    """Raise RuntimeError unless the build tool ninja is on the search path."""
    if not is_ninja_available():
        raise RuntimeError("Ninja is required to load C++ extensions (pip install ninja to get it)")


explain_absent_names(globals(), _HERE)
