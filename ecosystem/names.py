"""Collector of PyTorch's public names that installed packages use and Flambeau lacks.

    python -m ecosystem.names collect SITE_PACKAGES ... > used.json     # any interpreter; imports nothing of theirs
    python -m ecosystem.names present used.json > pytorch.json          # with PyTorch: the names that it has
    python -m flambeau run -m ecosystem.names rank used.json pytorch.json

Packages are read, not run: attribute chains such as `torch.nn.functional.relu`, imports such as `from torch.fx import
Node`, and names of methods that PyTorch's Tensor has and that no function, class or attribute of the package defines.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOTS = ("torch", "functorch", "torchgen")


def collect(folders: Sequence[str]) -> dict[str, list[str]]:
    """Return the dotted names below `torch` that packages use: name -> packages.

    Args:
        folders: Folders of installed packages (site-packages).
    """
    used: dict[str, set[str]] = defaultdict(set)
    for folder in map(Path, folders):
        for entry in sorted(folder.iterdir()):
            files = (
                [entry] if entry.suffix == ".py" else sorted(entry.rglob("*.py")) if entry.is_dir() else []
            )
            package = entry.stem
            if package in ROOTS or entry.name.endswith((".dist-info", ".libs")):
                continue
            for file in files:
                for name in read_names(file):
                    used[name].add(package)
    return {name: sorted(packages) for name, packages in sorted(used.items())}


def read_names(file: Path) -> Iterator[str]:
    """Yield the dotted names below `torch` in one source file, and `Tensor.x` for each attribute `x` of a value."""
    text = file.read_text(errors="replace")
    if "torch" not in text:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    nodes = list(ast.walk(tree))
    aliases = {"torch": "torch"}
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.split(".")[0] == "torch":
                    yield item.name
                    aliases[item.asname or "torch"] = item.name if item.asname else "torch"
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] == "torch"
        ):
            yield str(node.module)
            for item in node.names:
                if item.name != "*":
                    aliases[item.asname or item.name] = f"{node.module}.{item.name}"
                    yield f"{node.module}.{item.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute):
            chain = read_chain(node)
            if chain and chain[0] in aliases:
                yield ".".join([aliases[chain[0]], *chain[1:]])
            else:
                yield f"torch.Tensor.{node.attr}"


def read_chain(node: ast.expr) -> list[str]:
    """Return the parts of `a.b.c`, empty if the expression begins with anything but a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*([node.id, *reversed(parts)] if isinstance(node, ast.Name) else [])]


def find(name: str) -> bool:
    """Return True if a dotted name leads to a value of the running `torch`."""
    parts = name.split(".")
    try:
        value: Any = importlib.import_module(parts[0])
    except ImportError:
        return False
    for index, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except Exception:
            try:
                value = importlib.import_module(".".join(parts[:index]))
            except Exception:
                return False
    return True


def main(arguments: Sequence[str]) -> None:
    """Run one of the three steps."""
    step, *paths = arguments
    if step == "collect":
        print(json.dumps(collect(paths), indent=0))
        return
    warnings.simplefilter("ignore")
    used: dict[str, list[str]] = json.loads(Path(paths[0]).read_text())
    if step == "present":
        print(json.dumps([name for name in used if find(name)], indent=0))
        return
    names = set(json.loads(Path(paths[1]).read_text()))
    lacking = [name for name in used if name in names and not find(name)]
    print(f"{len(names) - len(lacking)} of {len(names)} names that packages use")
    for name in sorted(lacking, key=lambda name: (-len(used[name]), name)):
        print(f"{len(used[name]):3}  {name:60} {', '.join(used[name])[:80]}")


if __name__ == "__main__":
    main(sys.argv[1:])
