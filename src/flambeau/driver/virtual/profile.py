"""Profiles: the figures of one GPU model and its host, read from TOML files. A new profile needs no code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from flambeau.core.brief import brief
from flambeau.driver.virtual.host_time import host_names

_FOLDER = Path(__file__).parent / "profiles"
ALIASES = {"v100": "v100-16g", "a100": "a100-40g"}
LINK_RULES = ("all", "none", "cube-mesh")
ALGORITHMS = ("nccl", "ring", "tree", "hierarchical")
_MOST_NS = 10**10  # simulated time has 63 bits of nanoseconds; a slower device would exceed them
_LEAST_RATE, _LEAST_SHARE = 1e6, 1e-3
_MOST = 1 << 53  # limit of all other integers


@dataclass(frozen=True)
class Rates:
    """Peak operations a second by kind of arithmetic. None stands for a kind that the device lacks: it runs at the rate
    of float32.
    """

    float32: float
    float64: float
    float16: float
    bfloat16: float | None = None
    tf32: float | None = None
    float8: float | None = None


@dataclass(frozen=True)
class Efficiency:
    """The share of the peak that large products reach, by kind of arithmetic, and of the memory bandwidth."""

    float32: float
    float64: float
    float16: float
    bfloat16: float
    tf32: float
    float8: float
    bandwidth: float


@dataclass(frozen=True)
class Links:
    """The connections of a device to the host and to peers: bytes a second in one direction, latencies in ns.

    Attributes:
        pageable: Rate from memory that is not pinned; `pageable_out` of copies to such memory.
        host_copy: Rate at which one core empties the staging buffer.
        copy_in_ns: Latency of a copy from the host; `copy_out_ns` of one to the host.
        ring: Bytes a second that all rings of a collective move together.
        ring_ll: The limit of `ring` in NCCL's protocol LL.
    """

    pcie: float
    pageable: float
    pageable_out: float
    host_copy: float
    copy_in_ns: int
    copy_out_ns: int
    rule: str
    peer: float
    peer_latency_ns: int
    ring: float
    ring_ll: float


@dataclass(frozen=True)
class Costs:
    """Host time of driver calls (a group of collectives, a poll) and device time of a command's start, in ns.

    Attributes:
        kernel_ns: Latency of a kernel; `node_ns` of a kernel of a graph behind another one.
    """

    call_ns: int
    collective_ns: int
    poll_ns: int
    sync_ns: int
    alloc_ns: int
    kernel_ns: int
    node_ns: int
    host_call_ns: int


@dataclass(frozen=True)
class Cluster:
    """Nodes of `node` GPUs on a network, in bytes a second and ns; see Note [Collectives of a cluster].

    `algorithm` is that of all_reduce: "nccl", "ring", "tree" or "hierarchical".
    """

    node: int
    rail: float
    algorithm: str
    base_ns: int
    hop_ns: int
    rail_hop_ns: int
    tree_share: float


@dataclass(frozen=True)
class Profile:
    """One GPU model. Sizes are in bytes, rates in units a second, the clock in kHz as in CUDA.

    Attributes:
        reserved: The part of `memory` that a context takes before the first allocation.
        queue: The number of commands that a stream holds before the host waits.
        cluster: The network of a profile of many nodes; None for one node.
        host: The modelled host, "pytorch" or "flambeau"; None for "pytorch". See Note [The host's time].
        host_factor: The host's times are multiplied by it; None for 1.

    A file's key `base` names another profile, whose keys hold where the file has none.
    """

    name: str
    major: int
    minor: int
    memory: int
    reserved: int
    sms: int
    threads_per_sm: int
    shared_memory_per_sm: int
    clock_khz: int
    l2: int
    l2_bandwidth: float
    bandwidth: float
    queue: int
    rates: Rates
    efficiency: Efficiency
    links: Links
    costs: Costs
    cluster: Cluster | None = None
    host: str | None = None
    host_factor: float | None = None


def profile_names() -> list[str]:
    """Return the names of the built-in profiles, without aliases."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_profile(name: str) -> Profile:
    """Return the profile of that name, or of the TOML file at that path.

    Raises:
        ValueError: If the name is unknown, or the file is missing or malformed. The message names file, key
            and reason.
    """
    if not isinstance(name, str):
        raise ValueError(f"profile must be a name or the path of a TOML file, not {type(name).__name__}")
    if "/" in name or name.endswith(".toml"):
        return _of_file(Path(name))
    return _own(ALIASES.get(name, name))


def profile_table(name: str) -> dict[str, Any]:
    """Return the keys of a profile, as its file has them, with None for those that it may leave out."""
    return asdict(load_profile(name))


@cache
def _own(name: str) -> Profile:
    """Return a built-in profile, which is cached because reading it is slow."""
    if name not in profile_names():
        raise ValueError(
            f"no profile is called {name!r}; there are {', '.join(profile_names())}, "
            f"{' and '.join(ALIASES)}, or the path of a TOML file"
        )
    return _of_file(_FOLDER / f"{name}.toml")


def _of_file(path: Path) -> Profile:
    profile: Profile = _read(Profile, _table(path), str(path), "")
    _check(profile, str(path))
    return profile


def _table(path: Path) -> dict[str, Any]:
    """Return the table of a file, merged over the table of its base."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # tomllib recurses for nested values
        raise ValueError(f"profile {str(path)!r} cannot be read: {error}") from None
    base = table.pop("base", None)
    if base is None:
        return table
    if (
        not isinstance(base, str)
        or base not in profile_names()
        or "base" in (under := tomllib.loads((_FOLDER / f"{base}.toml").read_text()))
    ):
        raise ValueError(
            f"profile {str(path)!r}: 'base' must be the name of a profile without one, not {brief(base)}"
        )
    return under | table


def _read(record: Any, table: Mapping[str, Any], file: str, prefix: str) -> Any:
    """Build a record from a table; the record's annotations are the schema."""
    hints = get_type_hints(record)
    names = [field.name for field in fields(record)]
    for key in table:
        if key not in names:
            raise ValueError(
                f"profile {file!r}: unknown key {brief(prefix + key)}; there are {', '.join(names)}"
            )
    values = {}
    for field in fields(record):
        if field.name in table:
            values[field.name] = _value(hints[field.name], table[field.name], file, prefix + field.name)
        elif field.default is not None:
            raise ValueError(f"profile {file!r}: the key {prefix + field.name!r} is missing")
    return record(**values)


def _value(hint: Any, value: Any, file: str, key: str) -> Any:
    hint = next((kind for kind in get_args(hint) if kind is not NoneType), hint)
    if hasattr(hint, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise ValueError(f"profile {file!r}: {key!r} must be a table, not {brief(value)}")
        return _read(hint, value, file, key + ".")
    if hint is str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"profile {file!r}: {key!r} must be a non-empty string, not {brief(value)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
        kind = "an integer" if hint is int else "a number"
        raise ValueError(f"profile {file!r}: {key!r} must be {kind}, not {brief(value)}")
    least, most = _limits(hint, key)
    if not least <= value <= most:
        raise ValueError(
            f"profile {file!r}: {key!r} must be finite, at least {least} and at most {most}, not {brief(value)}"
        )
    return value if hint is int else float(value)


def _limits(hint: Any, key: str) -> tuple[float, float]:
    """Return the least and the greatest number that a key may have."""
    if hint is int:
        return 0, _MOST_NS if key.endswith("_ns") else _MOST
    if key.startswith("efficiency.") or key == "cluster.tree_share":
        return _LEAST_SHARE, 1
    if key == "host_factor":
        return 0.01, 100
    return _LEAST_RATE, 1e21


def _check(profile: Profile, file: str) -> None:
    """Check the constraints that involve several values."""
    for key in ("major", "memory", "sms", "threads_per_sm", "clock_khz", "queue", "costs.poll_ns"):
        value: Any = profile
        for part in key.split("."):
            value = getattr(value, part)
        if value < 1:
            raise ValueError(f"profile {file!r}: {key!r} must be at least 1, not {value}")
    if profile.memory >= 1 << 40:
        raise ValueError(f"profile {file!r}: 'memory' must be less than 1 TiB, not {profile.memory} bytes")
    if profile.reserved >= profile.memory:
        raise ValueError(f"profile {file!r}: 'reserved' must be less than 'memory', not {profile.reserved}")
    if profile.host is not None and profile.host not in host_names():
        raise ValueError(
            f"profile {file!r}: 'host' must be one of {', '.join(host_names())}, not {brief(profile.host)}"
        )
    if profile.links.rule not in LINK_RULES:
        raise ValueError(
            f"profile {file!r}: 'links.rule' must be one of {', '.join(LINK_RULES)}, "
            f"not {brief(profile.links.rule)}"
        )
    if profile.cluster is not None:
        if profile.cluster.algorithm not in ALGORITHMS:
            raise ValueError(
                f"profile {file!r}: 'cluster.algorithm' must be one of {', '.join(ALGORITHMS)}, "
                f"not {brief(profile.cluster.algorithm)}"
            )
        if profile.cluster.node < 1:
            raise ValueError(f"profile {file!r}: 'cluster.node' must be at least 1, not 0")
