"""torch._prims_common: rules of dtypes, shapes and strides that libraries import.

The other names of the module can be imported and raise NotSupportedError when they are used.
"""

from __future__ import annotations

from flambeau._prims_common.prim_dtypes import *  # noqa: F403
from flambeau._prims_common.prim_shapes import *  # noqa: F403
from flambeau.core.public_names import explain_absent_names

explain_absent_names(globals(), "torch._prims_common")
