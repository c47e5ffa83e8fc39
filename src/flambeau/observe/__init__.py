"""Observers: drivers that wrap a driver. They detect races, record timelines and inject faults.

races holds the race detector's drivers, command_checks their checks and detector its state; order, clocks
and threads define happens-before; accesses and lifetimes are its shadow memory; graph_launches has captured
memory; findings and reports are its results. The folders hold its larger parts and the tracer. Modules are
imported at their first use.
"""

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
