"""Programs as files whose races are looked for, and whose fixes are inserted. And random ones."""

from __future__ import annotations

import linecache
import random
import textwrap
from collections.abc import Sequence
from pathlib import Path

import flambeau
from flambeau.observe.reports import Certificate, Race
from flambeau.report.fix_diff import apply_edits
from flambeau.runtime import system


def certificate_of(path: Path) -> Certificate:
    """What the race detector says of the program in a file, on two virtual GPUs."""
    linecache.clearcache()
    code = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    with flambeau.virtual(devices=2, races="warn"):
        exec(code, {"__name__": "__main__"})
        for index in range(2):
            flambeau.cuda.synchronize(index)
        driver = system.accelerator()
        found: Certificate = driver.detector.certificate()  # type: ignore[attr-defined]
    return found


def write(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text("import flambeau as torch\nimport flambeau.nn.functional as F\n" + textwrap.dedent(text))
    return path


def apply(races: Sequence[Race], path: Path) -> None:
    """Insert what the races' fixes propose for the program."""
    edits = [edit for race in races for edit in race.fix.edits]
    assert edits and {edit.path for edit in edits} == {str(path)}, races
    path.write_text("".join(apply_edits(path.read_text().splitlines(keepends=True), edits)))


# -- random programs ------------------------------------------------------------------------------------------

WRITES = ["x.fill_(1.0)", "x.add_(1)", "x.copy_(h, non_blocking=True)", "x += 1", "x[:] = 3", "x.relu_()"]
READS = [
    "ys.append(x * 2)",
    "y = F.relu(x); ys.append(y)",
    "ys.append(torch.cat([\n    x,\n    x,\n]))",
    "ys.extend([x + i for i in range(2)])",
    "if True: ys.append(x + 1)",
    "f = lambda: x * 2\nys.append(f())",
    "ys.append(twice(x))",
    "if len(ys) > 99:\n    pass\nelif float(x.sum()) >= 0:\n    ys.append(x)",
    "try:\n    ys.append(-x)\nfinally:\n    ys.append(None)",
]

HOLDERS = """
ys = []
def twice(t):
    return t * 2
class Inner:
    __slots__ = ("stream",)
class Holder:
    def __init__(self):
        self.copies = torch.cuda.Stream()
        self._own = torch.cuda.Stream()
        self.inner = Inner()
        self.inner.stream = torch.cuda.Stream()
        self.pool = [torch.cuda.Stream(), torch.cuda.Stream()]
        self.named = {"copy": torch.cuda.Stream()}
    @property
    def forbidden(self):
        raise RuntimeError("a report must not run the program's code")
SIDE = torch.cuda.Stream()
"""
STREAMS = {
    "function": [
        "SIDE",
        "local",
        "holder.copies",
        "holder.pool[1]",
        "holder.named['copy']",
        "holder.inner.stream",
    ],
    "method": [
        "SIDE",
        "local",
        "self.copies",
        "self._own",
        "self.pool[0]",
        "self.named['copy']",
        "self.inner.stream",
    ],
}


def _indented(text: str, depth: int = 1) -> str:
    return textwrap.indent(text, "    " * depth)


def _on(stream: str, text: str) -> str:
    return f"with torch.cuda.stream({stream}):\n{_indented(text)}" if stream else text


def random_program(draw: random.Random) -> str:
    """A program with a race: two uses of `x` on different streams, at least one a write, that nothing orders."""
    kind = draw.choice(["function", "method", "module"])
    names = STREAMS["method" if kind == "method" else "function"]
    first, second = draw.sample([*names, "", "torch.cuda.Stream()"], 2)
    uses = [draw.choice(WRITES), draw.choice(WRITES + READS)]
    draw.shuffle(uses)
    parts = [_on(first, uses[0]), _on(second, uses[1])]
    if draw.random() < 0.3:  # the first use in a function of its own, with a stream that is its own, too
        own = f"def work(x, h):\n    mine = torch.cuda.Stream()\n{_indented(_on('mine', uses[0]))}\n"
        parts[0] = "work(x, h)" if first else parts[0]
    else:
        own = ""
    body = "\n".join(parts)
    if draw.random() < 0.4:
        body = f"for step in range(3):\n{_indented(body)}"
    setup = (
        'x = torch.zeros(1024, device="cuda")\nh = torch.zeros(1024).pin_memory()\nlocal = torch.cuda.Stream()\n'
        "torch.cuda.synchronize()\n"
    )
    end = "\ntorch.cuda.synchronize()\n"
    if kind == "method":
        run = f"class Program(Holder):\n    def run(self):\n{_indented(setup + body + end, 2)}\nProgram().run()\n"
    elif kind == "function":
        run = f"def main(holder):\n{_indented(setup + body + end)}\nmain(Holder())\n"
    else:
        run = f"holder = Holder()\n{setup}{body}{end}"
    return HOLDERS + own + run
