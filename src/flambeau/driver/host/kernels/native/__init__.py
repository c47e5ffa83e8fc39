"""Native code for CPUs: the CUDA forms of operator definitions, compiled by a C++ compiler into a shared library.

The library is optional. Where it is next to these modules, or `FLAMBEAU_NATIVE` names another, the CPU and virtual GPUs
run its kernels in place of NumPy's implementations, for the launches that it has a kernel for. Other programs import
none of these modules.

source_generator      writes the C++ source from the table of operators
build                 compiles it: `python -m flambeau.driver.host.kernels.native.build FOLDER`
kernel_library        finds and loads the shared library
kernel_names          names of kernels in the library
bodies                selects the body of a launch
element_bodies        bodies of `Expression` forms
expression_operators  statements of expressions of several operators
transposes            bodies of copies that read along one dimension and write along another
lists                 bodies of `Lists` forms: optimizers, foreach functions
folds                 bodies of `Fold` forms: reductions
scans                 bodies of `Scan` forms: running sums and products
row_bodies            bodies of softmax and normalization of rows
added_rows            sums of rows at places, for index_add and gradients of embeddings
top_elements          the largest or smallest elements of rows, for topk
include/              C++ headers that are part of the source
"""

from __future__ import annotations

import os

VARIABLE = "FLAMBEAU_NATIVE"
STEM = "flambeau_native"
"""The beginning of the names of libraries."""


def chosen_library() -> str:
    """Return the value of `FLAMBEAU_NATIVE`; "" if it is not set."""
    return os.environ.get(VARIABLE, "").strip()


def may_have_library() -> bool:
    """Return False if a look into the folder of this package shows that the program computes with NumPy alone."""
    chosen = chosen_library()
    return chosen != "off" and (chosen != "" or _has_library(os.path.dirname(__file__)))


def _has_library(folder: str) -> bool:
    return any(name.startswith(STEM) for name in os.listdir(folder))
