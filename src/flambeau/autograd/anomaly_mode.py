"""`detect_anomaly`: find the forward operation whose gradient failed or became NaN."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.tape.mode import mode


class set_detect_anomaly:
    """Enable or disable anomaly detection. As a context manager, it restores the setting at the end.

    Nodes then store the stack of their creation, which the error of a failing backward shows. With `check_nan`, a NaN
    in a gradient raises RuntimeError.
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
