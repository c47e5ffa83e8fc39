"""Logs that the environment asks for: FLAMBEAU_LOGS=fusion."""

from __future__ import annotations

import os
import sys


def is_logged(topic: str) -> bool:
    """Return True if FLAMBEAU_LOGS, a list separated by commas, names the topic."""
    return topic in os.environ.get("FLAMBEAU_LOGS", "").split(",")


def log(topic: str, text: str) -> None:
    """Write a text to stderr, after the name of its topic."""
    print(f"{topic}: {text}", file=sys.stderr)
