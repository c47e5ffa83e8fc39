"""The package as a whole: what importing it does and does not, its version, names that it lacks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

import flambeau as torch
from flambeau.core.public_names import is_inner


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_opens_no_driver_and_imports_nothing_heavy() -> None:
    loaded = run(
        "import sys, flambeau\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(roots & {'torch', 'cupy', 'jax', 'scipy', 'cuda', 'nvmath', 'nccl', 'cudnn', 'pytest'}))\n"
        "print(flambeau.cuda.is_initialized())\n"
        "print('flambeau.driver.virtual' in sys.modules)"
    )
    assert loaded.splitlines() == ["[]", "False", "False"]


def test_importing_takes_what_a_program_needs_at_once() -> None:
    """bench/imports.py takes the time of it. Each module costs some 0.3 ms, each dataclass 0.7, ml_dtypes 8.

    A package whose file is a docstring alone is not counted.
    """
    later = (
        "dataclasses", "ml_dtypes", "multiprocessing", "numpy.random", "pathlib", "traceback", "flambeau.amp",
        "flambeau.core.ipc.shared_memory", "flambeau.distributed", "flambeau.multiprocessing", "flambeau.nn.modules.linear",
        "flambeau.observe.races", "flambeau.ops.multi_tensor.foreach", "flambeau.ops.multi_tensor.optimizer", "flambeau.optim",
        "flambeau.runtime.devices.device_ipc", "flambeau.serialization", "flambeau.tensor.functions.foreach_update", "flambeau.tensor.exchange.sharing",
    )  # fmt: skip
    found, count = run(
        "import sys, numpy; before = set(sys.modules)\n"
        "import flambeau; new = set(sys.modules) - before\n"
        f"print(sorted(new & {set(later)}))\n"
        "ours = [name for name in new if name.startswith('flambeau')]\n"
        "codes = [sys.modules[n].__loader__.get_code(n) for n in ours]\n"
        "print(len([code for code in codes if code is None or code.co_names != ('__doc__',)]))"  # None: compiled
    ).splitlines()
    assert found == "[]"
    assert int(count) <= 276


def test_without_a_gpu_nothing_pretends() -> None:
    said = run(
        "import flambeau as torch\n"
        "print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.memory_allocated())\n"
        "try: torch.ones(2, device='cuda')\n"
        "except RuntimeError as error: print('flambeau.virtual' in str(error))"
    )
    assert said.splitlines() == ["False 0 0", "True"]


def test_the_version_reads_like_pytorchs() -> None:
    major, minor, *_ = torch.__version__.split(".")
    assert (int(major), int(minor)) >= (2, 0)
    assert "flambeau" in torch.__version__
    assert torch.version.__version__ == torch.__version__


MODULES = [
    torch, torch.backends, torch.backends.cuda, torch.backends.cudnn, torch.cuda, torch.cuda.memory, torch.cuda.random,
    torch.fft, torch.linalg, torch.nn, torch.nn.functional, torch.random, torch.version,
]  # fmt: skip


@pytest.mark.parametrize(
    "where",
    [*MODULES, torch.ones(1), torch.cuda.Event()],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_an_absent_name_says_who_lacks_it(where: object) -> None:
    assert not hasattr(where, "no_such_name")
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        where.no_such_name  # noqa: B018


VALUES = [
    torch.device("cuda:1"), torch.float32, torch.bool, torch.Size([2, 3]), torch.ones(1).shape, torch.strided,
    torch.channels_last,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_travel_in_pickles_and_copies(value: object) -> None:
    assert repr(value).startswith(("device(", "torch."))
    back = pickle.loads(pickle.dumps(value))
    assert back == value
    assert type(back) is type(value)
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("module", [torch, torch.cuda], ids=["torch", "torch.cuda"])
def test_public_classes_and_functions_name_the_public_module_that_shows_them(module: ModuleType) -> None:
    shown = {
        x for name, x in vars(module).items() if isinstance(x, type | FunctionType) and x.__name__ == name
    }
    assert {torch.Tensor, torch.finfo, torch.NotSupportedError} <= shown or {torch.cuda.Stream} <= shown
    for x in shown:
        assert not is_inner(x.__module__), f"{x.__name__} says {x.__module__}"
        if isinstance(x, type) and not x.__module__.startswith("torch"):  # types of the documentation's names
            assert getattr(import_module(x.__module__), x.__name__) is x


ERRORS = [
    torch.DriverError, torch.InvalidAddressError, torch.NotSupportedError, torch.OutOfMemoryError, torch.RaceError,
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_tracebacks_name_errors_as_programs_catch_them(error: type[Exception]) -> None:
    shown = "".join(traceback.format_exception_only(error("why")))
    assert shown == f"flambeau.{error.__name__}: why\n"
    assert issubclass(error, RuntimeError)


def test_where_torch_is_flambeau_pickles_and_types_say_torch() -> None:
    said = run(
        "from flambeau.cli.import_hook import install; install()\n"
        "import pickle, torch\n"
        "values = torch.device('cuda:1'), torch.float32, torch.Size([2, 3]), torch.strided, torch.cuda.Stream, "
        "torch.add, torch.OutOfMemoryError, torch.UntypedStorage\n"
        "for x in values:\n"
        "    raw = pickle.dumps(x)\n"
        "    print(pickle.loads(raw) == x, b'torch' in raw, b'flambeau' in raw)\n"
        "for kind in (torch.device, torch.dtype, torch.Size, torch.cuda.Event, torch.NotSupportedError): print(kind)"
    )
    kinds = ["device", "dtype", "Size", "cuda.Event", "NotSupportedError"]
    assert said.splitlines() == ["True True False"] * 8 + [f"<class 'torch.{kind}'>" for kind in kinds]


def test_modules_imported_later_say_torch_too() -> None:
    said = run(
        "from flambeau.cli.import_hook import install; install()\n"
        "import sys; assert 'flambeau.testing.conformance' not in sys.modules\n"
        "import inspect\n"
        "from torch.testing import conformance\n"
        "import flambeau.testing.conformance as same\n"
        "print({x.__module__ for x in vars(same).values() if 'conformance' in getattr(x, '__module__', '')})\n"
        "print(conformance is same, inspect.getsource(same)[:3])"
    )
    assert said.splitlines() == ["{'torch.testing.conformance'}", 'True """']
