"""Stands first on PYTHONPATH in the children of `flambeau run`; gives way to Flambeau (see cli/finder.py)."""

import sys

from flambeau.cli.finder import install

del sys.modules["torch"]
install()
import torch  # noqa: E402
