"""PyTorch's distributions check their arguments here, whatever ran before in this process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _checked_arguments() -> None:
    """Check arguments, as PyTorch does by default. Its compiler ends that for the process when it is first used."""
    torch = pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    torch.distributions.Distribution.set_default_validate_args(True)
