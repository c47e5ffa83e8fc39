"""`compile_all`: programs that must compile for an H100. Needs NVRTC, and no GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.driver.cuda.device.program import KernelProgram

EACH_ALONE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
# How fast a kernel would run decides nothing here, and takes most of the time.
COMPILER = Compiler("sm_90a", None, () if EACH_ALONE else ("--Ofast-compile=max",))


def compile_all(programs: Iterable[KernelProgram]) -> None:
    """Raises DriverError, with the compiler's log, where one does not compile.

    They are one text, in namespaces, that has the prelude once. The exhaustive runs compile each as it is.
    """
    sources = list(dict.fromkeys([program.source for program in programs]))
    if EACH_ALONE or len(sources) < 2:
        compile_each(sources)
    else:
        compile_together(sources)


def compile_each(sources: Iterable[str]) -> None:
    for source in sources:
        assert COMPILER.cubin(source)[:4] == b"\x7fELF"


def compile_together(sources: list[str]) -> None:
    text = "".join([_enclosed(source, f"of_{i}") for i, source in enumerate(sources)])
    try:
        compile_each([text])
    except DriverError:
        compile_each(sources)  # whose log is of the one that is wrong
        raise


def _enclosed(source: str, name: str) -> str:
    macros = ["run", *re.findall(r"^\s*#\s*define\s+(\w+)", source, re.MULTILINE)]
    ends = "".join([f"#undef {macro}\n" for macro in macros])
    return f"#define run run_{name}\nnamespace {name} {{\n{source}\n}}\n{ends}"
