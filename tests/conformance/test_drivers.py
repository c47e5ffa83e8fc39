"""Every driver keeps the driver's contract: `flambeau.testing.conformance`, case by case."""

import os

import pytest

from flambeau.driver.driver_registry import open_driver
from flambeau.driver.host import HostDriver
from flambeau.driver.virtual import VirtualDriver
from flambeau.runtime.devices import configuration
from flambeau.testing import conformance

SCHEDULES = (
    "earliest", "random:0", "random:1", "random:2", "adversarial:0", "adversarial:1", "pct:0:3", "pct:1:1",
)  # fmt: skip
DRIVERS = {"host": HostDriver} | {
    f"virtual-{schedule}": lambda schedule=schedule: VirtualDriver(2, schedule=schedule)
    for schedule in SCHEDULES
}
DRIVERS["virtual-poison"] = lambda: VirtualDriver(2, "v100", poison=True)
DRIVERS["virtual-unlinked"] = lambda: VirtualDriver(2, "rtx4090")


@pytest.mark.parametrize("case", conformance.cases, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", DRIVERS)
def test_contract(name, case):
    driver = DRIVERS[name]()
    case(driver)
    driver.close()


@pytest.mark.gpu
@pytest.mark.parametrize("case", conformance.cases, ids=lambda case: case.__name__)
def test_contract_on_real_gpus(case):
    if (
        case is conformance.mem_alloc_out_of_memory_leaves_all_as_it_was
        and "PYTEST_XDIST_WORKER" in os.environ
    ):
        pytest.skip("other processes use the GPU's memory")
    driver = open_driver("cuda", kernel_cache=configuration.kernel_cache())
    case(driver)
    driver.close()


def test_every_call_has_a_case():
    calls = [
        name
        for name in vars(conformance.Driver)
        if not name.startswith("_") and name not in ("name", "observes_blocks")
    ]
    names = " ".join(case.__name__ for case in conformance.cases)
    missing = [call for call in calls if call not in names]
    assert not missing
