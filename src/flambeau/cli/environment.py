"""The options that commands have in common: their validation, and their values from the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from flambeau.backends.products import follow_environment
from flambeau.driver.registry import check_virtual


def export_options(options: argparse.Namespace) -> None:
    """Set environment variables for the options, which override the environment for the program, children and ranks."""
    chosen = {
        "FLAMBEAU_DRIVER": options.driver,
        "FLAMBEAU_VIRTUAL_DEVICES": options.devices,
        "FLAMBEAU_VIRTUAL_PROFILE": options.profile,
        "FLAMBEAU_SCHEDULE": options.schedule,
        "FLAMBEAU_RACES": options.races,
        "FLAMBEAU_STRICT": "1" if options.strict else None,
        "FLAMBEAU_FLOAT32_PRECISION": options.float32_precision,
        "FLAMBEAU_COMPILE": options.compile,
    }
    os.environ.update({name: value for name, value in chosen.items() if value is not None})
    if options.float32_precision is not None:
        follow_environment()


def why_no_machine(options: argparse.Namespace) -> str:
    """Return a line about the options with which no virtual machine can be created; empty if there is no problem."""
    try:
        if options.devices is not None:
            text = options.devices.strip()
            check_virtual("devices", int(text) if text.isascii() and text.isdigit() else options.devices)
        if options.profile is not None:
            check_virtual("profile", options.profile)
        if options.schedule is not None:
            check_virtual("schedule", options.schedule)
    except ValueError as error:
        return str(error)
    return ""


def why_not_readable(file: Path) -> str:
    """Return the reason why a file cannot be read; empty if it can. A pipe is accepted."""
    if not file.exists():
        return "no such file"
    if file.is_dir():
        return "it is a folder"
    return "" if os.access(file, os.R_OK) else "permission denied"


def why_not_writable(file: Path) -> str:
    """Return the reason why a file cannot be written, checked before the program runs; empty if it can."""
    if not file.parent.is_dir():
        return "its folder does not exist"
    if file.is_dir():
        return "it is a folder"
    needed = [file] if file.exists() else []
    if file.is_file() or not needed:  # the new file is written next to it and replaces it
        needed.append(file.resolve().parent)
    return "" if all(os.access(path, os.W_OK) for path in needed) else "permission denied"
