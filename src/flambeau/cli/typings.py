"""`flambeau types`: write stubs by which editors and type checkers read `import torch` as Flambeau."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from flambeau.core.files import replace_file
from flambeau.core.public_names import is_inner

_PACKAGE = Path(__file__).parents[1]
_OWN = ("cli", "report", "shim")  # packages that no program imports


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "types",
        help=summary,
        description="Write a package torch of stubs, each of which names a module of Flambeau. Editors and type "
        "checkers that find it read `import torch` as Flambeau: pyright and Pylance look in the folder typings, "
        "mypy in the folders of mypy_path.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", nargs="?", default=Path("typings"),
        help="the folder to write to (default: typings)",
    )  # fmt: skip
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Write the stubs. Returns the exit status."""
    count = 0
    for path, text in torch_stubs():
        target = options.folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, text, durable=False)
        except OSError as error:
            print(f"flambeau types: can't write {str(target)!r}: {error.strerror}", file=sys.stderr)
            return 1
        count += 1
    print(f"{options.folder / 'torch'}: {count} stubs written")
    return 0


def torch_stubs() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each stub."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        parts = path.relative_to(_PACKAGE).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(("flambeau", *(parts[:-1] if package else parts)))
        private = any(part[0] == "_" for part in name.split("."))
        if private or is_inner(name) or parts[0] in _OWN:
            continue
        text = f"from {name} import *\n"
        if name == "flambeau":
            text += f"from {name} import __version__ as __version__\n"
        yield Path("torch", *parts).with_suffix(".pyi"), text
