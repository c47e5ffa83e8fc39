"""`detect_anomaly`: where in the forward pass a failing gradient comes from, and NaN refused."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.tape.mode import mode


class set_detect_anomaly:
    """Switch anomaly detection on or off; back at the end where it is a context manager.

    Nodes then remember where they were made, a failing backward says so, and (with `check_nan`) a gradient
    that is NaN raises RuntimeError.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._saved = _set(bool(mode), bool(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _set(*self._saved)


def _set(on: bool, check_nan: bool) -> tuple[bool, bool]:
    before = mode.anomaly, mode.check_nan
    mode.anomaly, mode.check_nan = on, check_nan
    return before


class detect_anomaly(set_detect_anomaly):
    """`set_detect_anomaly(True)` as a context manager; warns that it is slow."""

    def __init__(self, check_nan: bool = True) -> None:
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for "
            "debugging.",
            UserWarning,
            stacklevel=2,
        )
        self._check = check_nan
        self._saved = (mode.anomaly, mode.check_nan)

    def __enter__(self) -> None:
        self._saved = _set(True, self._check)

    def __exit__(self, *error: object) -> Any:
        _set(*self._saved)


def is_anomaly_enabled() -> bool:
    """Return True if anomaly detection is on."""
    return mode.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Return True if NaN is looked for while it is on."""
    return mode.check_nan
