"""`Settings`: which devices a machine has. Arguments of a call override the environment.

`flambeau run` writes its options into the environment of the program that it runs, so the order of precedence
(call, command line, environment) needs no third source here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau.core.frozen import Value
from flambeau.driver.driver_registry import why_no_gpu
from flambeau.runtime.memory.placement import DEFAULT, check_placement

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = 2  # the number of virtual GPUs if nothing specifies it
PROFILE = "a100-40g"
SCHEDULE = "earliest"
_DRIVERS = ("auto", "cuda", "virtual")
_RACES = ("off", "warn", "error")
VARIABLES = (
    "FLAMBEAU_COMPILE", "FLAMBEAU_DRIVER", "FLAMBEAU_EXCHANGE", "FLAMBEAU_FLOAT32_PRECISION",
    "FLAMBEAU_FULL_TRACEBACK", "FLAMBEAU_FUSE_FROM", "FLAMBEAU_GLOO",
    "FLAMBEAU_HUNT_SEED", "FLAMBEAU_HUNT_SEEDS", "FLAMBEAU_KERNEL_CACHE", "FLAMBEAU_LOGS", "FLAMBEAU_NATIVE",
    "FLAMBEAU_PEER_CANARY", "FLAMBEAU_PROMISE_STEPS", "FLAMBEAU_RACES", "FLAMBEAU_REPORT_FOLDER", "FLAMBEAU_SCHEDULE",
    "FLAMBEAU_STORE_SECRET", "FLAMBEAU_STRICT", "FLAMBEAU_TESTS", "FLAMBEAU_VIRTUAL_DATA", "FLAMBEAU_VIRTUAL_DEVICES",
    "FLAMBEAU_VIRTUAL_PLACEMENT", "FLAMBEAU_VIRTUAL_PROFILE",
)  # fmt: skip
"""The variables of the environment that Flambeau and its tests read."""


class Settings(Value):
    """The settings with which one machine is opened.

    Attributes:
        driver: "virtual", "cuda" (real GPUs), or "none" if nothing was requested and there are no real GPUs.
        data: False for virtual GPUs that simulate shapes and times and run no kernels.
        placement: The allocators' choice among free blocks (see `placement.py`).
        strict: True to withhold the certificate if the host may have used pinned memory unseen.
        said: The environment's variables that decided, as `NAME='value'`, for messages.
    """

    driver: str
    devices: int = DEVICES
    profile: str = PROFILE
    schedule: str = SCHEDULE
    races: str = "off"
    poison: bool | None = None
    data: bool = True
    placement: str = DEFAULT
    strict: bool = False
    said: tuple[str, ...] = ()


def from_environment() -> Settings:
    """Return the settings of the environment."""
    driver = _one_of("FLAMBEAU_DRIVER", _DRIVERS, "auto")
    if driver == "auto":
        asked = _get("FLAMBEAU_VIRTUAL_DEVICES") or _get("FLAMBEAU_VIRTUAL_PROFILE")
        driver = "virtual" if asked else "none" if why_no_gpu() else "cuda"
    if driver != "virtual":
        return Settings(driver, races=_races(), strict=_flag("FLAMBEAU_STRICT", False))
    return virtual_settings()


def virtual_settings(
    devices: int | None = None,
    profile: str | None = None,
    schedule: str | None = None,
    races: str | None = None,
    poison: bool | None = None,
    data: bool | None = None,
    placement: str | None = None,
    strict: bool | None = None,
) -> Settings:
    """Return the settings of a virtual machine. Arguments that are None take their value from the environment.

    Raises:
        ValueError: For a malformed argument or variable.
        TypeError: For an argument of another type.
    """
    if devices is not None and (not isinstance(devices, int) or isinstance(devices, bool)):
        raise TypeError(f"devices must be an int, not {type(devices).__name__}")
    if devices is not None and devices < 0:
        raise ValueError(f"devices must be 0 or more, got {devices}")
    if races is not None and races not in _RACES:
        raise ValueError(f"races={races!r}: must be one of {', '.join(_RACES)}")
    placement = _get("FLAMBEAU_VIRTUAL_PLACEMENT") or DEFAULT if placement is None else placement
    check_placement(placement)
    said = []
    if devices is None and (text := _get("FLAMBEAU_VIRTUAL_DEVICES")) is not None:
        said.append(f"FLAMBEAU_VIRTUAL_DEVICES={text!r}")
    if profile is None and (profile := _get("FLAMBEAU_VIRTUAL_PROFILE")) is not None:
        said.append(f"FLAMBEAU_VIRTUAL_PROFILE={profile!r}")
    if schedule is None and (schedule := _get("FLAMBEAU_SCHEDULE")) is not None:
        said.append(f"FLAMBEAU_SCHEDULE={schedule!r}")
    return Settings(
        "virtual",
        _count("FLAMBEAU_VIRTUAL_DEVICES") if devices is None else devices,
        PROFILE if profile is None else profile,
        SCHEDULE if schedule is None else schedule,
        _races() if races is None else races,
        poison,
        _flag("FLAMBEAU_VIRTUAL_DATA", True) if data is None else bool(data),
        placement,
        _flag("FLAMBEAU_STRICT", False) if strict is None else bool(strict),
        tuple(said),
    )


def kernel_cache() -> Path | None:
    """Return the folder of compiled CUDA kernels: FLAMBEAU_KERNEL_CACHE, or the user's cache folder.

    Returns None if the variable is "0" or the user has no home folder, as in some containers.
    """
    from pathlib import Path  # imported here because most programs do not need it

    asked = _get("FLAMBEAU_KERNEL_CACHE")
    if asked == "0":
        return None
    if asked is not None:
        return Path(os.path.expanduser(asked))
    rooms = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(rooms) / "flambeau" / "kernels" if not rooms.startswith("~") else None


def launch_blocking() -> bool:
    """Return True if CUDA_LAUNCH_BLOCKING makes the host wait for each launch."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "").strip() not in ("", "0")


def peer_canary(driver: str) -> bool:
    """Return True if the first copy between two devices is preceded by a test copy: FLAMBEAU_PEER_CANARY; by default on
    real GPUs.
    """
    asked = _get("FLAMBEAU_PEER_CANARY")
    if asked not in (None, "0", "1"):
        raise ValueError(f"FLAMBEAU_PEER_CANARY={asked!r}: must be 0 or 1")
    return asked == "1" if asked else driver == "cuda"


def visible_text() -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES, or None if it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def visible_devices(text: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the indices of the devices that CUDA_VISIBLE_DEVICES leaves visible, in its order.

    Its entries are indices or UUIDs; a prefix that fits one device is enough. As in CUDA, the first invalid entry ends
    the list, a device named twice empties it, and any text may follow the digits ("1gpu" is 1).
    """
    if text is None:
        return list(range(len(uuids)))
    by_uuid = text.startswith(("GPU-", "MIG-"))
    found: list[int] = []
    for entry in text.split(","):
        index = _by_uuid(entry.strip(), uuids) if by_uuid else _leading_int(entry.strip())
        if not 0 <= index < len(uuids):
            break
        if index in found:
            return []
        found.append(index)
    return found


def _by_uuid(prefix: str, uuids: Sequence[str]) -> int:
    fits = [i for i, uuid in enumerate(uuids) if prefix and uuid.startswith(prefix)]
    return fits[0] if len(fits) == 1 else -1


def _leading_int(text: str) -> int:
    """Return the number that the digits at the beginning of a text denote, as C's strtoul; -1 if there are none."""
    body = text[1:] if text.startswith("+") else text
    digits = body[: len(body) - len(body.lstrip("0123456789"))]
    return int(digits) if digits else -1


def _get(name: str) -> str | None:
    """Return an environment variable of Flambeau; None if it is unset or empty."""
    return os.environ.get(name, "").strip() or None


def _races() -> str:
    return _one_of("FLAMBEAU_RACES", _RACES, "off")


def _flag(name: str, default: bool) -> bool:
    return _one_of(name, ("0", "1"), "1" if default else "0") == "1"


def _one_of(name: str, allowed: Sequence[str], default: str) -> str:
    value = _get(name)
    if value is None:
        return default
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    return value


def _count(name: str) -> int:
    value = _get(name)
    if value is None:
        return DEVICES
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name}={value!r}: must be a whole number of devices, 0 or more")
    return int(value)


def unknown_variables() -> list[str]:
    """Return a message for each environment variable that begins with FLAMBEAU_ and has no meaning to Flambeau."""
    unknown = [name for name in sorted(os.environ) if name.startswith("FLAMBEAU_") and name not in VARIABLES]
    return [f"Flambeau has no variable {name}{_hint(name)}" for name in unknown]


def _hint(name: str) -> str:
    from difflib import get_close_matches  # imported here because it is slow to import

    ends = [known.removeprefix("FLAMBEAU_") for known in VARIABLES]
    near = get_close_matches(name.removeprefix("FLAMBEAU_"), ends, 1)
    return f"; did you mean FLAMBEAU_{near[0]}?" if near else ""
