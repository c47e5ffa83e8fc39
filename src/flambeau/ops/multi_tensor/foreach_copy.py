"""Copies of many tensors in one launch: gradients to the flat tensor of a bucket, and back.

Each target receives its source's elements, converted to its own dtype, or these times one number. Only the sources are
operands. Targets are not read, so they may be memory that was never written.
"""

from __future__ import annotations

from flambeau.ops.multi_tensor.foreach import foreach

foreach_copy = foreach("_foreach_copy", lambda f, o, x, s: (x[0],), lambda o: 1, lambda o: ())
foreach_scaled = foreach(
    "_foreach_scaled", lambda f, o, x, s: (x[0] * s[0],), lambda o: 1, lambda o: (0.375,)
)
