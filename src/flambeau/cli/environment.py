"""The options that commands have in common: their validation, and their values from the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from flambeau.backends.matmul_flags import follow_environment
from flambeau.driver.driver_registry import check_virtual


def add_machine_options(parser: argparse.ArgumentParser, *, for_ranks: bool = False) -> None:
    """Add the options that `export_options` exports.

    Args:
        parser: The command's parser.
        for_ranks: True if the command starts ranks, each of which gets the options.
    """
    parser.add_argument(
        "--driver",
        choices=("auto", "cuda", "virtual"),
        help="cuda: real GPUs; virtual: virtual GPUs; auto (default): real ones if there are any",
    )
    parser.add_argument(
        "--devices", metavar="N", help=f"number of virtual GPUs{' of this node' if for_ranks else ''}"
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="model of the virtual GPUs: a100-40g, h100, ... or a TOML file"
    )
    policies = "earliest, random:SEED, adversarial:SEED, pct:SEED:DEPTH"
    parser.add_argument(
        "--schedule",
        metavar="S",
        help=f"order of commands on virtual GPUs: {policies}{'' if for_ranks else ', replay:TOKEN'}",
    )
    parser.add_argument(
        "--races",
        choices=("off", "warn", "error"),
        help=f"race detection{' in each rank' if for_ranks else ''}: off, report races, or raise RaceError",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="give no certificate if the host may have used pinned memory through a view, which is not seen",
    )
    add_computation_options(parser)


def add_computation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of how devices compute, which `export_computation_options` exports."""
    parser.add_argument(
        "--float32-precision",
        choices=("highest", "high", "medium"),
        help="highest: float32 products do not round to TF32; high (default), medium: they do",
    )
    parser.add_argument(
        "--compile",
        choices=("on", "off"),
        help="off: functions of torch.compile launch each operator by itself, as eager code",
    )


def export_options(options: argparse.Namespace) -> None:
    """Set environment variables for the options, which override the environment for the program, children and ranks."""
    chosen = {
        "FLAMBEAU_DRIVER": options.driver,
        "FLAMBEAU_VIRTUAL_DEVICES": options.devices,
        "FLAMBEAU_VIRTUAL_PROFILE": options.profile,
        "FLAMBEAU_SCHEDULE": options.schedule,
        "FLAMBEAU_RACES": options.races,
        "FLAMBEAU_STRICT": "1" if options.strict else None,
    }
    os.environ.update({name: value for name, value in chosen.items() if value is not None})
    export_computation_options(options)


def export_computation_options(options: argparse.Namespace) -> None:
    """Set environment variables for the options of how devices compute."""
    chosen = {"FLAMBEAU_FLOAT32_PRECISION": options.float32_precision, "FLAMBEAU_COMPILE": options.compile}
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
