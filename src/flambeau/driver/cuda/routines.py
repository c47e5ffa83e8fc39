"""`TABLE`: builders of routines by the names that `Routine` forms give."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.driver.api import Launch
from flambeau.driver.cuda import histogram, indexing, joining, permutation, ranks, searching, sorting, unique
from flambeau.driver.cuda.device import Device
from flambeau.driver.cuda.passes import Plan
from flambeau.driver.cuda.program import Program

TABLE: dict[str, Callable[[Launch, Device], Program | Plan]] = {
    **histogram.ROUTINES,
    **indexing.ROUTINES,
    **joining.ROUTINES,
    **permutation.ROUTINES,
    **ranks.ROUTINES,
    **searching.ROUTINES,
    **sorting.ROUTINES,
    **unique.ROUTINES,
}
