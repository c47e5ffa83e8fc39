"""The text of a profile's TOML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def profile_text(profile: Mapping[str, Any], remarks: Mapping[str, str], head: Sequence[str]) -> str:
    """Return a TOML file that `load_profile` reads back as `profile`.

    Args:
        profile: Keys with numbers and strings, and tables of them. Keys with None are left out.
        remarks: Dotted key -> remark at the end of its line.
        head: Lines of the comment at the top.
    """
    lines = [f"# {line}".rstrip() for line in head]
    present = {key: value for key, value in profile.items() if value is not None}
    tables = {key: value for key, value in present.items() if isinstance(value, Mapping)}
    lines += [_line(key, value, remarks.get(key)) for key, value in present.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [_line(k, v, remarks.get(f"{name}.{k}")) for k, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


def _line(key: str, value: object, remark: str | None) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return f"{key} = {text}" + (f"  # {remark}" if remark else "")
