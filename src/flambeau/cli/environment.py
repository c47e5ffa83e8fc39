"""The options that a command and its program have in common, as the program's environment has them."""

from __future__ import annotations

import argparse
import os


def export_options(options: argparse.Namespace) -> None:
    """Options go before the environment, and reach the program, its children and its ranks through it."""
    chosen = {
        "FLAMBEAU_DRIVER": options.driver,
        "FLAMBEAU_VIRTUAL_DEVICES": options.devices,
        "FLAMBEAU_VIRTUAL_PROFILE": options.profile,
        "FLAMBEAU_SCHEDULE": options.schedule,
        "FLAMBEAU_RACES": options.races,
    }
    os.environ.update({name: value for name, value in chosen.items() if value is not None})
