"""Stands first on PYTHONPATH in the children of `flambeau run`; gives way to Flambeau (see cli/import_hook.py)."""

import sys

from flambeau.cli.import_hook import install
from flambeau.cli.tracebacks import shorten_tracebacks

del sys.modules["torch"]
install()
shorten_tracebacks()
import torch  # noqa: E402
