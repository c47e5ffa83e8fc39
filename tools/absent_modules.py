"""Writes src/flambeau/core/absent_modules/names.txt: what can be imported from PyTorch's modules and raises when used.

    python tools/absent_modules.py

It needs PyTorch's CPU build, and imports all modules of the packages that core/public_names.py lists. The table has the
modules that Flambeau has no file for, and the names that its other modules lack.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from flambeau.core.public_names import LISTED

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "src/flambeau/core/absent_modules/names.txt"
# What programs do not import: PyTorch's own tools and tests.
SKIPPED = re.compile(
    r"torch\.onnx\._internal|torch\.distributed\.(_tools|benchmarks|examples|_local_tensor|debug|tensor\._ops|pipelining\._)"
    r"|torch\._dynamo\.(polyfills|repro|test_|debug_utils|skip_torch|variables\.|graph_|pgo|aot_compile|cpython)"
    r"|torch\._functorch\._|torch\.ao\.ns\.|torch\._export|.*\.test|.*__main__$"
)
# Packages whose private names libraries import.
PRIVATE = ("torch.distributed", "torch.jit", "torch._subclasses", "torch.fx.experimental")
# Modules whose absent names `hasattr` denies, because programs ask for features by them.
COMPLETE = {"torch.distributed", "torch.distributed.rpc"}


def find_modules() -> Iterator[str]:
    """Yield the names of all modules of the packages, in order."""
    import torch

    root = Path(torch.__file__).parent
    for package in LISTED:
        base = root.joinpath(*package.split(".")[1:])
        files = sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]
        for file in files:
            parts = file.relative_to(root).with_suffix("").parts
            name = ".".join(["torch", *parts]).removesuffix(".__init__")
            if not SKIPPED.match(name):
                yield name


def import_quietly(name: str) -> ModuleType | None:
    """Return a module, None if it cannot be imported here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (ImportError, RuntimeError, AttributeError):
            return None


def read_definitions(module: ModuleType) -> list[str]:
    """Return the names that the source of a module binds at its top level."""
    names: dict[str, None] = {}

    def visit(statements: list[ast.stmt]) -> None:
        for each in statements:
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names[each.name] = None
            elif isinstance(each, ast.ImportFrom):
                passed = {alias.asname or alias.name: None for alias in each.names}
                names.update(dict.fromkeys(vars(module)) if "*" in passed else passed)
            elif isinstance(each, ast.Assign | ast.AnnAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                names.update({target.id: None for target in targets if isinstance(target, ast.Name)})
            elif isinstance(each, ast.If | ast.Try | ast.With):
                for body in ("body", "orelse", "finalbody"):
                    visit(getattr(each, body, []))
                for handler in getattr(each, "handlers", []):
                    visit(handler.body)

    visit(ast.parse(Path(str(module.__file__)).read_text()).body)
    private = module.__name__.startswith(PRIVATE)
    return [
        name for name in names if name in vars(module) and (name[0] != "_" or (private and name[:2] != "__"))
    ]


def describe(module: ModuleType, name: str, tables: dict[str, dict[str, str]]) -> str | None:
    """Return the kind of a name as the table writes it; None if it is not listed.

    Args:
        module: PyTorch's module.
        name: A name that its source binds.
        tables: The kinds that are known so far, by module.
    """
    value = vars(module)[name]
    if isinstance(value, ModuleType):
        return None
    if type(value) in (bool, int, str) and name.isupper() and name != "TYPE_CHECKING":
        return f"= {value!r}"
    owner = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(owner, str) or not owner.startswith("torch."):
        return None
    source = inspect.getsource(module)
    defined = re.search(rf"^\s*(class|(async )?def) {name}\b", source, re.MULTILINE)
    elsewhere = owner != module.__name__ and getattr(value, "__name__", None) == name
    if elsewhere and (is_present(owner, name) or name in tables.get(owner, {})):
        passes_on = hasattr(module, "__path__") or not re.search(r"^(class|def) ", source, re.MULTILINE)
        return f"from {owner}" if passes_on or name in getattr(module, "__all__", ()) else None
    if not defined and owner != module.__name__ and not SKIPPED.match(owner):
        return None
    if isinstance(value, type):
        return "error" if issubclass(value, BaseException) else "class"
    return "def"


def is_present(module: str, name: str) -> bool:
    """Return True if a module of Flambeau has a name without the table."""
    real = f"flambeau{module.removeprefix('torch')}"
    try:
        found = import_quietly(real) if importlib.util.find_spec(real) else None
    except ModuleNotFoundError:
        return False
    return found is not None and hasattr(found, name)


def is_file(module: str) -> bool:
    """Return True if Flambeau has a file for a module of PyTorch."""
    try:
        return importlib.util.find_spec(f"flambeau{module.removeprefix('torch')}") is not None
    except ModuleNotFoundError:
        return False


def takes_names(module: str) -> bool:
    """Return True if the table's names can be added to a module that Flambeau has a file for."""
    found = import_quietly(f"flambeau{module.removeprefix('torch')}")
    return module not in COMPLETE and "__getattr__" in vars(found)


def collect() -> dict[str, dict[str, str]]:
    """Return what the table lists: module -> name -> kind."""
    modules = {name: module for name in find_modules() if (module := import_quietly(name)) is not None}
    tables: dict[str, dict[str, str]] = {}
    for _round in range(3):  # names lead to names of other modules
        for name, module in modules.items():
            present = is_file(name)
            names = [] if present and not takes_names(name) else read_definitions(module)
            kinds: dict[str, Any] = {
                each: describe(module, each, tables)
                for each in names
                if not (present and is_present(name, each))
            }
            tables[name] = {each: kind for each, kind in kinds.items() if kind}
    return {name: kinds for name, kinds in tables.items() if kinds or not is_file(name)}


def write_block(module: str, kinds: dict[str, str]) -> str:
    """Return the lines of one module."""
    lines = [module]
    lines += [f"{name} {kind}" for name, kind in kinds.items() if kind[0] == "="]
    for kind in sorted({kind for kind in kinds.values() if kind[0] != "="}):
        names = " ".join(sorted(name for name, each in kinds.items() if each == kind))
        lines.append(f"{kind}: {names}" if kind.startswith("from ") else f"{kind} {names}")
    return "\n".join(lines)


def main() -> None:
    """Write the table."""
    TABLE.write_text("")  # what is absent is absent while the table is empty
    TABLE.write_text(
        "\n\n".join(write_block(module, kinds) for module, kinds in sorted(collect().items())) + "\n"
    )


if __name__ == "__main__":
    main()
