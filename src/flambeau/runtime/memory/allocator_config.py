"""`Policy`: how an allocator rounds, splits, caches and releases memory. PyTorch's settings, under PyTorch's names.

A policy is read from a text like `max_split_size_mb:128,roundup_power2_divisions:8`, which the environment gives
as PYTORCH_ALLOC_CONF or, by its older name, PYTORCH_CUDA_ALLOC_CONF.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from flambeau.core.frozen import Value

KIB, MIB = 1 << 10, 1 << 20
ROUND: Final = 512
WITHIN: Final = ROUND - 1  # mask of the bits below the rounding
SMALL_REQUEST: Final = 1 << 20  # the largest request of the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB  # from this size on a request gets a separate segment
LARGE_SEGMENT = 20 * MIB
ROUND_SEGMENT = 2 * MIB

TOO_MUCH = 1 << 60
"""A request of so many bytes is refused unheard, as in PyTorch."""

_INTERVALS = 16  # intervals of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class Policy(Value):
    """The settings of a caching allocator. Sizes are in bytes.

    Attributes:
        max_split: Blocks of this size or more are oversize: not split, and only for requests of similar size. 0 for no
            limit.
        oversize_slack: How much larger than the request an oversize block may be.
        divisions: Number of steps per power of two to which requests are rounded up: one number, or one for each power
            from 1 MiB on. () rounds to 512 bytes.
        collect_above: The share of the allowed memory above which idle segments are released before a new one is
            allocated. 0 for never.
        large_segment: Size of a segment for requests between 1 and 10 MiB.
        fraction: The share of the device's memory that may be reserved.
        caching: False to release each block when it is freed.
        pinned_cap: Limit of cached pinned memory; None for no limit.
        expandable: Let segments grow if the driver has virtual-memory calls (see `expandable_segments.py`).
    """

    max_split: int = 0
    oversize_slack: int = LARGE_SEGMENT
    divisions: tuple[int, ...] = ()
    collect_above: float = 0.0
    large_segment: int = LARGE_SEGMENT
    fraction: float = 1.0
    caching: bool = True
    pinned_cap: int | None = None
    expandable: bool = False

    def round_up(self, nbytes: int) -> int:
        """Return the bytes that a request of `nbytes` bytes occupies after rounding."""
        if self.divisions and nbytes > ROUND * (steps := self._steps(nbytes)) > ROUND:
            step = (1 << nbytes.bit_length() - 1) // steps
            return -nbytes // step * -step
        return -nbytes // ROUND * -ROUND

    def segment_size(self, size: int) -> int:
        """Return the size of the segment that the driver allocates for a rounded request."""
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        return self.large_segment if size < LARGE_REQUEST else -size // ROUND_SEGMENT * -ROUND_SEGMENT

    def is_oversize(self, size: int) -> bool:
        return bool(self.max_split) and size >= self.max_split

    def keeps_whole(self, size: int) -> bool:
        """Return True if this size is oversize and segments do not grow: such blocks serve only requests of about their
        size.
        """
        return self.is_oversize(size) and not self.expandable

    def _steps(self, nbytes: int) -> int:
        if len(self.divisions) == 1:
            return self.divisions[0]
        interval = nbytes.bit_length() - 1 - 20
        return self.divisions[min(max(interval, 0), _INTERVALS - 1)]

    @property
    def text(self) -> str:
        """Return the settings that differ from the defaults, in the form of the environment variable."""
        parts = []
        if self.max_split:
            parts.append(f"max_split_size_mb:{self.max_split // MIB}")
        if self.oversize_slack != LARGE_SEGMENT:
            parts.append(f"max_non_split_rounding_mb:{self.oversize_slack // MIB}")
        if len(self.divisions) == 1:
            parts.append(f"roundup_power2_divisions:{self.divisions[0]}")
        elif self.divisions:
            steps = ",".join(f"{1 << i}:{n}" for i, n in enumerate(self.divisions[:-1]))
            parts.append(f"roundup_power2_divisions:[{steps},>:{self.divisions[-1]}]")
        if self.collect_above:
            parts.append(f"garbage_collection_threshold:{self.collect_above:g}")
        if self.large_segment != LARGE_SEGMENT:
            parts.append(f"large_segment_size_mb:{self.large_segment // MIB}")
        if self.fraction != 1:
            parts.append(f"per_process_memory_fraction:{self.fraction:g}")
        if self.expandable:
            parts.append("expandable_segments:True")
        return ",".join(parts)


def policy_of(text: str) -> Policy:
    """Return the policy that a settings text describes.

    Raises:
        ValueError: For an option or a value that PyTorch has not.
    """
    policy = Policy()
    for name, value in _options(text):
        read = _READERS.get(name)
        if read is None:
            known = ", ".join(sorted(_READERS))
            raise ValueError(f"Unrecognized CachingAllocator option: {name}. There are {known}.")
        policy = policy.with_(**read(name, value))
    return policy


def from_environment(environment: Mapping[str, str] = os.environ) -> Policy:
    """Return the policy that PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) and PYTORCH_NO_CUDA_MEMORY_CACHING
    describe.

    Raises:
        ValueError: For a malformed one, named.
    """
    policy = Policy()
    for variable in VARIABLES:
        text = environment.get(variable, "").strip()
        if text:
            try:
                policy = policy_of(text)
            except ValueError as error:
                raise ValueError(f"{variable}={text!r}: {error}") from None
            break
    if environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") not in ("", "0"):
        policy = policy.with_(caching=False)
    return policy


def _options(text: str) -> list[tuple[str, str]]:
    """Return `name:value` pairs; a value may be a list in brackets."""
    text = "".join(text.split())
    pairs = re.findall(r"([\w]+):(\[[^\]]*\]|[^,\[\]]+)(?:,|$)", text)
    if ",".join(f"{name}:{value}" for name, value in pairs) != text.strip(","):
        raise ValueError(f"Error parsing CachingAllocator options: {text!r} is not a list of name:value")
    return pairs


_FLAGS = (
    "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_use_background_threads",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom",
)  # fmt: skip
_NUMBERS = ("pinned_max_round_threshold_mb", "pinned_num_register_threads", "pinned_reserve_segment_size_mb")
_MOST = 1 << 43  # MiB


# -- readers: what one option changes -----------------------------------------------------------------------------


def _number(name: str, value: str, least: int = 0) -> int:
    if not (value.isascii() and value.isdigit()) or not least <= int(value) <= _MOST:
        raise ValueError(
            f"CachingAllocator option {name} must be a whole number from {least} on, not {value!r}"
        )
    return int(value)


def _share(name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ValueError(f"{name} must be a number above 0 and at most 1, not {value!r}")
    return share


def _threshold(name: str, value: str) -> dict[str, Any]:
    share = _share(name, value)
    if share == 1:
        raise ValueError(f"{name} must be a number above 0 and below 1, not {value!r}")
    return {"collect_above": share}


def _oversize(name: str, value: str) -> int:
    least = LARGE_SEGMENT // MIB
    if _number(name, value) < least:
        raise ValueError(f"CachingAllocator option {name} too small, must be >= {least}")
    return int(value) * MIB


def _large_segment(name: str, value: str) -> dict[str, Any]:
    least = LARGE_REQUEST // MIB
    if _number(name, value) <= least:
        raise ValueError(f"CachingAllocator option large_segment_size_mb too small, must be > {least}")
    return {"large_segment": int(value) * MIB}


def _divisions(name: str, value: str) -> dict[str, Any]:
    if not value.startswith("["):
        return {"divisions": (_power(name, value),)}
    steps = [0] * _INTERVALS
    for i, pair in enumerate(value.strip("[]").split(",")):
        key, _, number = pair.partition(":")
        n = _power(name, number)
        if key == ">":
            last = max((j for j in range(_INTERVALS) if steps[j]), default=-1)
            steps[last + 1 :] = [n] * (_INTERVALS - last - 1)
            break
        at = _power(name, key).bit_length() - 1
        for j in range(0 if i == 0 else at, min(at + 1, _INTERVALS)):
            steps[j] = n
    return {"divisions": tuple(n or 1 for n in steps)}


def _power(name: str, value: str) -> int:
    number = _number(name, value, 1)
    if number & number - 1:
        raise ValueError(f"For {name}, the numbers must be powers of 2, not {value}")
    return number


def _flag(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"Expected True/False for {name}, not {value!r}")
    return value == "True"


def _backend(name: str, value: str) -> dict[str, Any]:
    if value != "native":
        raise ValueError(f"backend:{value}: Flambeau has the native backend alone")
    return {}


def _check_ignored(name: str, value: str) -> dict[str, Any]:
    """Check a setting that PyTorch has and that has no effect here, because Flambeau's allocators work differently."""
    if name in _NUMBERS:
        _number(name, value)
    else:
        _flag(name, value)
    return {}


_READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "max_split_size_mb": lambda n, v: {"max_split": _oversize(n, v)},
    "max_non_split_rounding_mb": lambda n, v: {"oversize_slack": _oversize(n, v)},
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": _large_segment,
    "per_process_memory_fraction": lambda n, v: {"fraction": _share(n, v)},
    "expandable_segments": lambda n, v: {"expandable": _flag(n, v)},
    "backend": _backend,
    "pinned_max_cached_size_mb": lambda n, v: {"pinned_cap": _number(n, v) * MIB},
    **dict.fromkeys((*_FLAGS, *_NUMBERS), _check_ignored),
}
