"""Drivers that hold a driver: race detector, timeline, fault injection."""

from flambeau.observe.races import observed
from flambeau.observe.reports import Certificate, Race, RaceWarning

__all__ = ["Certificate", "Race", "RaceWarning", "observed"]
