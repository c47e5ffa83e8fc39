"""Set-up for every test: Hypothesis profiles, one BLAS thread, no leftovers between tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
for name in ("FLAMBEAU_DRIVER", "FLAMBEAU_VIRTUAL_DEVICES", "FLAMBEAU_VIRTUAL_PROFILE", "FLAMBEAU_RACES", "FLAMBEAU_SCHEDULE"):
    os.environ.pop(name, None)  # a test says itself which devices it wants

# Deterministic by default, so that a failure repeats; `make test-all` draws new and many more examples.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=60, derandomize=True, **_common)
settings.register_profile("exhaustive", max_examples=1000, **_common)
settings.load_profile(os.environ.get("FLAMBEAU_TESTS", "default"))
