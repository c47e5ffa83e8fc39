"""Drivers that hold a driver: race detector, timeline, fault injection. Imported when first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flambeau.observe.races import attach_detector
    from flambeau.observe.reports import Certificate, Race, RaceWarning

__all__ = ["Certificate", "Race", "RaceWarning", "attach_detector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flambeau.observe' has no attribute '{name}'", name=name)
    return getattr(
        import_module(f"flambeau.observe.{'races' if name == 'attach_detector' else 'reports'}"), name
    )
