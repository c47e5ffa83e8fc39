"""The generator of docs/contents.md, which lists PyTorch's documented names and whether each exists.

    cd tests/goldens
    python -m tools.pages.contents_page torch_modules.txt torch_module_paths.txt > ../../docs/contents.md

The first file lists the public names of PyTorch's modules, one a line: `nn.Linear`. Each section is a function of that
list; `SECTIONS` has them in order. The second file lists the paths of all public modules, of which the last section
names the missing ones. Tests compare the page with the package, and both lists with PyTorch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flambeau
from flambeau.core.absent_names import advice_for, advice_for_module
from tools.pages.markdown_lines import wrap

HEADER = """# Coverage

<!-- Written by tools.pages.contents_page; do not edit. -->

This page lists what PyTorch's documentation names and whether Flambeau has it. It is for people who
port a program. Functions and methods of tensors are in [operators.md](operators.md). A missing
attribute raises AttributeError ("Flambeau lacks it") and a missing module ImportError, both with
the requested name and, like this page, with what to do instead:

```python
import flambeau as torch

hasattr(torch, "package")  # False, so programs that check for features keep working
```
"""

MODULES = (
    "nn", "nn.functional", "autograd", "cuda", "cuda.amp", "backends", "distributed", "distributions", "fft",
    "futures", "hub", "jit", "linalg", "nn.init", "onnx", "optim", "quantization", "distributed.rpc", "random",
    "sparse", "Storage", "utils.bottleneck", "utils.checkpoint", "utils.cpp_extension", "utils.data", "utils.dlpack",
    "utils.mobile_optimizer", "utils.model_zoo", "utils.tensorboard", "Tensor.refine_names", "finfo", "iinfo",
    "__config__",
)  # fmt: skip
"""The contents list of PyTorch 1.8's documentation, in its order."""

CALLED = {
    "Tensor.refine_names": "named tensors", "finfo": "type info: `finfo`", "iinfo": "type info: `iinfo`",
}  # fmt: skip
"""What the contents list calls them, where it is no module."""

WHY = {
    "Storage": "typed storages; use `Tensor.untyped_storage()`",
    "utils.bottleneck": "PyTorch has removed it, too",
    "utils.mobile_optimizer": "optimizes TorchScript for phones",
    "utils.tensorboard": "it needs the package tensorboard",
    "Tensor.refine_names": "a prototype in PyTorch",
}
"""Why a name is absent."""

RAISING = {
    "jit": "as with `PYTORCH_JIT=0`: functions run as Python; saving and loading raise",
    "onnx": "names only: exporting raises",
    "quantization": "names only: quantizing raises",
    "distributed.rpc": "names only: calls raise",
    "utils.cpp_extension": "names only: building raises",
}
"""What a module cannot do whose names exist."""

NOTES = (
    ("Automatic mixed precision examples", "training.md"),
    ("Autograd mechanics", "autograd.md"),
    ("Broadcasting semantics", "operators.md"),
    ("CPU threading and TorchScript inference", None),
    ("CUDA semantics", "virtual-gpu.md"),
    ("Distributed Data Parallel", "data-parallel.md"),
    ("Extending PyTorch", "subclasses.md"),
    ("Frequently Asked Questions", "memory.md"),
    ("Features for large-scale deployments", None),
    ("Multiprocessing best practices", "multiprocessing.md"),
    ("Reproducibility", "determinism.md"),
    ("Serialization semantics", "training.md"),
    ("Windows FAQ", None),
)
"""The notes of the same list, and our page on the matter."""


def page(theirs: Iterable[str], paths: Iterable[str]) -> str:
    """Return the page.

    Args:
        theirs: The public names of PyTorch's modules.
        paths: The paths of all public modules, such as `torch.nn.attention.bias`.
    """
    names = list(theirs)
    return "\n".join([HEADER, *[section(names) for section in SECTIONS], missing_modules(paths)])


def contents(names: Sequence[str]) -> str:
    """Return the list of contents: the modules that exist, and their missing names."""
    rows = [_row(module, names) for module in MODULES]
    head = "| PyTorch's name | in Flambeau | missing public names |\n|---|---|---|"
    return "## Modules\n\n" + "\n".join([head, *rows]) + "\n"


def _row(module: str, names: Sequence[str]) -> str:
    called = CALLED.get(module, f"`torch.{module}`")
    if find_object(module) is None:
        return f"| {called} | no: {WHY[module]} | |"
    lacking = "; ".join([_reason(module, name) for name in absent(names, module)])
    return f"| {called} | {RAISING.get(module, 'yes')} | {lacking} |"


def _reason(module: str, name: str) -> str:
    """Return a missing name with the advice that its error gives."""
    advice = advice_for(find_object(module), name)
    return f"`{name}` ({advice})" if advice else f"`{name}`"


def notes(names: Sequence[str]) -> str:
    """Return the notes of the contents list."""
    rows = [f"| {title} | {f'[{file}]({file})' if file else 'none'} |" for title, file in NOTES]
    return "## Notes\n\n" + "\n".join(["| PyTorch's note | page |\n|---|---|", *rows]) + "\n"


def others(names: Sequence[str]) -> str:
    """Return further modules of the list of names in which something is missing."""
    rest = sorted({name.rpartition(".")[0] for name in names} - set(MODULES))
    lines = [
        wrap(f"- `torch.{m}`: {'; '.join([_reason(m, n) for n in gone])}.", indent="  ") + "\n"
        for m in rest
        if (gone := absent(names, m))
    ]
    return "## Missing from other modules\n\n" + "".join(lines)


def missing_paths(paths: Iterable[str]) -> list[str]:
    """Return the modules that are missing here, without those below another missing one."""
    gone = {path for path in paths if not has_file(path)}
    return sorted(path for path in gone if path.rpartition(".")[0] not in gone)


def has_file(path: str) -> bool:
    """Return True if the package has the file of a module. Does not import it."""
    file = Path(flambeau.__file__).parent.joinpath(*path.split(".")[1:])
    return file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()


def missing_modules(paths: Iterable[str]) -> str:
    """Return the missing modules, by what to do instead."""
    by_advice: dict[str, list[str]] = {}
    for path in missing_paths(paths):
        by_advice.setdefault(advice_for_module(path) or "", []).append(f"`{path}`")
    lines = [
        wrap(f"- {advice}: {', '.join(by_advice[advice])}.", indent="  ") + "\n"
        for advice in sorted(by_advice)
    ]
    return (
        "## Missing modules of PyTorch 2.13\n\n"
        "These public modules are missing, and those below them. Packages that only name some of them can\n"
        "import these: each use of their names raises NotSupportedError. The import of the others raises\n"
        "ImportError. Both say what to do instead, as each item does before its names.\n\n" + "".join(lines)
    )


SECTIONS: tuple[Callable[[Sequence[str]], str], ...] = (contents, notes, others)


def find_object(path: str) -> Any:
    """Return the object `torch.path` of this package; None if it is absent."""
    here: Any = flambeau
    walked = "flambeau"
    for part in path.split("."):
        walked = f"{walked}.{part}"
        if inspect.ismodule(here) and not hasattr(here, part) and find_spec(walked) is not None:
            try:
                import_module(walked)
            except ImportError:  # the package that the module imports is not installed
                return None
        here = getattr(here, part, None)
        if here is None:
            return None
    return here


def absent(names: Sequence[str], module: str) -> list[str]:
    """Return those of a module's names that are missing here."""
    room = find_object(module)
    own = [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == module]
    return sorted((name for name in own if not hasattr(room, name)), key=str.lower)


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    names, paths = (Path(file).read_text().split() for file in arguments)
    sys.stdout.write(page(names, paths))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
