"""The fixes of races: lines in the program's own names, which remove the race where they are inserted."""

import ast
import os
import random
import re
import sys
from pathlib import Path

import pytest
from fix_kit import apply, certificate_of, random_program, write

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.callsite import line_of, place
from flambeau.runtime import system
from flambeau.testing.ranks import ranks

ROUNDS = 4  # a race may hide another
SEEDS = range(300 if os.environ.get("FLAMBEAU_TESTS") == "exhaustive" else 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_fixes_of_random_programs_remove_their_races(tmp_path, seed):
    path = write(tmp_path, random_program(random.Random(seed)))
    for _ in range(ROUNDS):
        found = certificate_of(path)
        if not found.races:
            return
        for race in found.races:
            ast.parse(race.fix.code)
            assert race.fix.lines and race.fix.edits, race
        apply(found.races, path)
    pytest.fail(f"{path.read_text()}\n{found}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_verified_fix_removes_its_race_alone(tmp_path, seed):
    text = random_program(random.Random(seed))
    path = write(tmp_path, text)
    for race in [race for race in certificate_of(path).races if race.fix.verified]:
        apply([race], path)
        pairs = [(line_of(r.first.site), line_of(r.second.site)) for r in certificate_of(path).races]
        assert (moved(race.first, race.fix), moved(race.second, race.fix)) not in pairs, path.read_text()
        write(tmp_path, text)


def moved(access, fix):
    """The line of an access once a fix is inserted."""
    line = line_of(access.site)
    return line + sum(edit.text.count("\n") for edit in fix.edits if edit.line <= line)


CASES = {
    "attributes of an instance": (
        """
        class Loader:
            def __init__(self):
                self.copies, self.compute = torch.cuda.Stream(), torch.cuda.Stream()
            def step(self, x):
                with torch.cuda.stream(self.copies):
                    x.fill_(1)
                with torch.cuda.stream(self.compute):
                    return x * 2  # here
        x = torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        Loader().step(x)
        """,
        "self.compute.wait_stream(self.copies)",
    ),
    "the next stream of a ring waits for all others": (
        """
        streams, x = [torch.cuda.Stream() for _ in range(3)], torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        for s in streams * 2:
            with torch.cuda.stream(s):
                x.add_(1)  # here
        """,
        "for other in streams:\n    s.wait_stream(other)",
    ),
    "a join of several streams": (
        """
        streams, x = [torch.cuda.Stream() for _ in range(3)], torch.zeros(3, 64, device="cuda")
        torch.cuda.synchronize()
        for i, s in enumerate(streams):
            with torch.cuda.stream(s):
                x[i].fill_(i)
        x.sum()  # here
        """,
        "\n".join(f"torch.cuda.current_stream().wait_stream(streams[{i}])" for i in range(3)),
    ),
    "freed memory in a loop": (
        """
        side = torch.cuda.Stream()
        for i in range(3):
            batch = torch.full((1024,), float(i), device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                batch.sum()  # here
        """,
        "batch.record_stream(side)",
    ),
    "freed memory of a function's argument": (
        """
        def use(t):
            return (t + 1) * 2  # here
        side = torch.cuda.Stream()
        for i in range(3):
            batch = torch.full((1024,), float(i), device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                use(batch)
        """,
        "t.record_stream(torch.cuda.current_stream())",
    ),
    "freed memory that backward reads": (
        """
        side, w = torch.cuda.Stream(), torch.ones(1024, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        for i in range(4):
            with torch.cuda.stream(side):
                batch = torch.full((1024,), float(i), device="cuda")  # here
            torch.cuda.current_stream().wait_stream(side)
            loss = (w * batch).sum()
            loss.backward()
        """,
        "side.wait_stream(torch.cuda.default_stream())",
    ),
    "freed memory without a name": (
        """
        side = torch.cuda.Stream()
        x = torch.ones(1024, device="cuda")
        with torch.cuda.stream(side):
            pass
        def make():
            return x * 2
        for i in range(2):
            y = [make()]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                [t.sum() for t in y]
            del y[:]
            torch.ones(1024, device="cuda")  # here
        """,
        "torch.cuda.current_stream().wait_stream(side)",
    ),
    "a stream that only the first use names": (
        """
        def fill(x):
            own = torch.cuda.Stream()
            with torch.cuda.stream(own):
                x.fill_(1)  # after
        x = torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        fill(x)
        x.sum()
        """,
        "torch.cuda.default_stream(own.device).wait_stream(own)",
    ),
    "a stream without a name": (
        """
        x = torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            x.fill_(1)
        x.sum()  # here
        """,
        "torch.cuda.current_stream().wait_stream(side_1)",
    ),
    "the host reads too early": (
        """
        h, x = torch.zeros(64).pin_memory(), torch.ones(64, device="cuda")
        def fetch(side):
            with torch.cuda.stream(side):
                h.copy_(x, non_blocking=True)
            if (h
                    .sum()) > 1:  # here-1
                pass
        torch.cuda.synchronize()
        fetch(torch.cuda.Stream())
        """,
        "side.synchronize()",
    ),
    "a capture that forks too late": (
        """
        x, side, graph = torch.ones(64, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                y = x * 2
            z = x + 1
            y.add_(1)  # here
            here.wait_stream(side)
        graph.replay()
        """,
        "torch.cuda.current_stream().wait_stream(side)",
    ),
    "on the first of several devices": (
        """
        s, t = torch.cuda.Stream(0), torch.cuda.Stream(1)
        x, y = torch.zeros(64, device="cuda:0"), torch.zeros(64, device="cuda:1")
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        with torch.cuda.stream(t):
            y.fill_(1)
        with torch.cuda.device(0):
            y.sum()  # here
        """,
        "torch.cuda.current_stream(1).wait_stream(t)",
    ),
    "a caller outside of the block that selects the device": (
        """
        side, x = torch.cuda.Stream(1), torch.ones(64, device="cuda:1")
        torch.cuda.synchronize(1)
        def check(x):
            with torch.cuda.device(1):
                while x.sum() < 0:
                    pass
        with torch.cuda.stream(side):
            x.add_(1)
        check(x)  # here
        """,
        "torch.cuda.current_stream(1).wait_stream(side)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fix_in_the_programs_own_names(tmp_path, name):
    text, code = CASES[name]
    path = write(tmp_path, text)
    race = certificate_of(path).races[0]
    assert race.fix.code == code and race.fix.verified, str(race)
    lines = path.read_text().splitlines()
    mark = next(i for i, line in enumerate(lines, 1) if "# here" in line or "# after" in line)
    mark += int(lines[mark - 1].rpartition("# here")[2] or 0) if "# here" in lines[mark - 1] else 1
    assert race.fix.edits[-1].line == mark
    for _ in range(ROUNDS):
        apply(certificate_of(path).races or [race], path)
        if not certificate_of(path).races:
            return
    pytest.fail(path.read_text())


LOADER = """
class Loader:
    def __init__(self, n):
        self.side, self.left = torch.cuda.Stream(), n
    def fetch(self):
        self.left -= 1
        with torch.cuda.stream(self.side):
            return torch.zeros(64).pin_memory().to("cuda", non_blocking=True) if self.left >= 0 else None
    def __iter__(self):
        {iter}
    def __next__(self):
        batch = self.fetch()
        if batch is None:
            raise StopIteration
        batch.record_stream(torch.cuda.current_stream())
        return batch
for batch in Loader(3):
    batch.sum()
"""


@pytest.mark.parametrize(
    "iter",
    ["return self", "while (b := self.fetch()) is not None:\n"
                    "            b.record_stream(torch.cuda.current_stream())\n            yield b"],
)  # fmt: skip
def test_a_loaders_fix_names_the_line_where_batches_leave(tmp_path, iter):
    path = write(tmp_path, LOADER.replace("{iter}", iter))
    said, wait = str(certificate_of(path).races[0]), "torch.cuda.current_stream().wait_stream(self.side)"
    assert "synchronize()" in said and f": {wait}." in said.partition("insert instead")[2], said
    lines = path.read_text().splitlines()
    at = [int(n) for n in re.findall(r"program\.py:(\d+)", said.partition("insert instead")[2])]
    assert {lines[number - 1].split()[0] for number in at} <= {"yield", "return"}, said
    for number in sorted(at, reverse=True):
        indent = lines[number - 1][: -len(lines[number - 1].lstrip())]
        lines.insert(number - 1, indent + wait)
    path.write_text("\n".join(lines))
    assert not certificate_of(path).races


def test_a_stream_that_a_suspended_generator_selected_is_explained(tmp_path):
    text = """
    def parts(n):
        side = torch.cuda.Stream()
        for i in range(n):
            with torch.cuda.stream(side):
                x = torch.full((4,), float(i), device="cuda")
                yield x
    total = torch.zeros((), device="cuda")
    for part in parts(2):
        total += part.sum()
    """
    path = write(tmp_path, text)
    note = certificate_of(path).races[0].note
    assert "the block of program.py:7" in note and "suspended in it at program.py:9" in note, note
    path.write_text(path.read_text().replace("            yield x", "        yield x"))
    assert all("suspended" not in race.note for race in certificate_of(path).races)


def test_works_of_a_list_are_all_waited_for():
    def program():
        dist.init_process_group("nccl")
        x = [torch.ones(64, device="cuda") for _ in range(2)]
        works = [dist.all_reduce(t, async_op=True) for t in x]
        x[0].sum()
        for work in works:
            work.wait()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    with torch.virtual(2, races="warn"):
        ranks(program, 2)
        race = system.accelerator().detector.certificate().races[0]
    assert race.fix.lines == ("for work in works:", "    work.wait()") and race.fix.verified


def race_of_ranks(program):
    def rank():
        dist.init_process_group("nccl")
        x = torch.ones(64, device="cuda")
        program(x)
        x.sum()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    with torch.virtual(2, races="warn"):
        ranks(rank, 2)
        return system.accelerator().detector.certificate().races[0]


def test_works_that_a_list_loses_are_waited_for_before():
    def program(x):
        works = []
        works.append(dist.all_reduce(x, async_op=True))
        works.clear()  # here

    fix = race_of_ranks(program).fix
    assert fix.lines == ("for work in works:", "    work.wait()") and not fix.verified
    line = Path(fix.edits[0].path).read_text().splitlines()[fix.edits[0].line - 1]
    assert line.endswith("works.clear()  # here")


def test_a_work_that_nothing_holds_is_named_by_its_line():
    race = race_of_ranks(lambda x: dist.all_reduce(x, async_op=True))
    assert race.fix.lines == ("torch.cuda.synchronize()",)
    assert "keep the work and call its wait()" in race.fix.hint and place(race.first.site) in race.fix.hint


@pytest.mark.parametrize(
    ("imports", "cuda"),
    [
        ("from flambeau import cuda as c", "c"),
        ("import flambeau.cuda", "flambeau.cuda"),
        ("import torch", "torch.cuda"),
    ],
)
def test_a_fix_spells_torch_as_the_program_does(tmp_path, imports, cuda):
    path = tmp_path / "program.py"
    path.write_text(f"{imports}\ndef work(x, side, select):\n    with select(side):\n        return x * 2\n")
    code = compile(path.read_text().replace("import torch", "import flambeau as torch"), str(path), "exec")
    names = {}
    exec(code, names)
    with torch.virtual(races="warn"):
        x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
        names["work"](x, side, torch.cuda.stream)
        (race,) = system.accelerator().detector.certificate().races
    assert race.fix.code == f"side.wait_stream({cuda}.default_stream())"


def test_a_program_without_source_is_described_in_words():
    text = "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    x * 2\n"
    with torch.virtual(races="warn"):
        exec(text, {"torch": torch, "x": torch.zeros(64, device="cuda")})
        (race,) = system.accelerator().detector.certificate().races
    assert race.fix.lines == () == race.fix.edits
    assert race.fix.text.startswith(
        "On side stream 1 of cuda:0, call stream.wait_stream(torch.cuda.default_stream(0))"
    )


def test_a_wait_in_the_test_of_a_loop_is_not_certain(tmp_path):
    text = """
    x, side, other = torch.zeros(64, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    steps = 0
    with torch.cuda.stream(other):
        while steps < 3 and (x * 2) is not None:
            with torch.cuda.stream(side):
                x.fill_(1)
            steps += 1
    """
    certificate = certificate_of(write(tmp_path, text))
    race = next(race for race in certificate.races if race.second.operator == "mul")
    assert not race.fix.verified and "run again" in race.fix.text


def test_a_report_keeps_no_tensor_alive():
    def program():
        x, side, big = (
            torch.zeros(64, device="cuda"),
            torch.cuda.Stream(),
            torch.zeros(1 << 20, device="cuda"),
        )
        with torch.cuda.stream(side):
            x.fill_(1)
        before = torch.cuda.memory_allocated()
        del big
        return before - torch.cuda.memory_allocated()

    with torch.virtual(races="warn"):
        assert program() == 4 << 20
        assert len(system.accelerator().detector.certificate().races) == 1


def test_a_report_runs_nothing_of_the_program(tmp_path):
    text = """
    class Strange:
        def __getattr__(self, name):
            raise SystemExit(name)
        @property
        def stream(self):
            raise SystemExit("stream")
        def __eq__(self, other):
            raise SystemExit("eq")
    class Meta(type):
        def __getattr__(cls, name):
            raise SystemExit(name)
    class Stranger(metaclass=Meta):
        pass
    def main(strange, stranger, s):
        x = torch.zeros(64, device="cuda")
        with torch.cuda.stream(s):
            x.fill_(1)
    main(Strange(), Stranger(), torch.cuda.Stream())
    """
    (race,) = certificate_of(write(tmp_path, text)).races
    assert race.fix.code == "s.wait_stream(torch.cuda.default_stream())"


@pytest.mark.parametrize("name", ["test_use.py", "use_test.py", "conftest.py", "use.py"])
def test_a_fix_repairs_the_tested_code_not_its_test(tmp_path, monkeypatch, name):
    library = tmp_path / "library.py"
    library.write_text(
        "import flambeau as torch\n"
        "class Filler:\n"
        "    def __init__(self):\n"
        "        self.side = torch.cuda.Stream()\n"
        "    def fill(self, x):\n"
        "        with torch.cuda.stream(self.side):\n"
        "            x.fill_(1)\n"
    )
    use = tmp_path / name
    use.write_text(
        "import flambeau as torch\n"
        "from library import Filler\n"
        "x, filler = torch.zeros(64, device='cuda'), Filler()\n"
        "torch.cuda.synchronize()\n"
        "filler.fill(x)\n"
        "y = x + 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "library", raising=False)
    (race,) = certificate_of(use).races
    (edit,) = race.fix.edits
    assert edit.path == str(use if name == "use.py" else library), race.fix.text
    apply([race], Path(edit.path))
    monkeypatch.delitem(sys.modules, "library")
    assert certificate_of(use).race_free
