"""Copies of many tensors in one launch: gradients to the flat tensor of a bucket, and back.

Each target takes its source's elements as its own dtype: as they are, or times one number. The sources are the
one list of operands: a target is not read, so memory that was never written may be one.
"""

from __future__ import annotations

from flambeau.ops.multi_tensor.foreach import foreach

foreach_copy = foreach("_foreach_copy", lambda f, o, x, s: (x[0],), lambda o: 1, lambda o: ())
foreach_scaled = foreach(
    "_foreach_scaled", lambda f, o, x, s: (x[0] * s[0],), lambda o: 1, lambda o: (0.375,)
)
