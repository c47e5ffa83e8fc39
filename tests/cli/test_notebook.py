"""IPython: races at the end of a cell, cells as call sites, tracebacks without our frames, machines as HTML."""

import builtins
import re
import subprocess
import sys
import traceback
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import flambeau
from flambeau.observe.tracing.timeline import Timeline
from flambeau.report.machine_page import RecentTimeline
from flambeau.report.notebook import install, program_frames, uninstall
from flambeau.runtime import system

ROOT = Path(__file__).parents[2]
RACE = """side = torch.cuda.Stream()
x = torch.zeros(1000, device="cuda")
with torch.cuda.stream(side):
    y = x * 2
"""


class Cells:
    """Runs cells in a shell, and keeps what the last one printed and displayed."""

    def __init__(self, shell):
        self.shell, self.text, self.html, self.result = shell, "", [], None

    def __call__(self, cell):
        number = self.shell.execution_count
        with capture_output() as captured:
            self.result = self.shell.run_cell(cell, store_history=True)
        self.text = captured.stdout
        self.html = [each.data["text/html"] for each in captured.outputs]
        self.text += "".join([each.data["text/plain"] for each in captured.outputs])
        return f"In [{number}]"


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    before = {module: set(vars(module)) for module in (sys, builtins)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        patch.setattr(sys, "path", list(sys.path))
        found = InteractiveShell.instance(config=config)
        install(found)
        install(found)  # once is enough
        yield found
        uninstall(found)
        InteractiveShell.clear_instance()
        for module in (sys, builtins):  # prompts, `display`, ...
            for name in set(vars(module)) - before[module]:
                delattr(module, name)


@pytest.fixture
def cells(shell):
    shell.user_ns["torch"] = flambeau
    yield Cells(shell)
    shell.run_line_magic("xmode", "Context")
    shell.reset()
    sys.last_value = sys.last_traceback = None


@pytest.fixture
def machine(cells):
    with flambeau.virtual(races="warn") as found:
        cells.shell.user_ns["machine"] = found
        yield found


def test_a_race_is_reported_at_the_end_of_its_cell(cells, machine):
    first = cells(RACE)
    assert cells.text.startswith("1 race found:")
    assert (
        f"first:  {first}, line 2: writes" in cells.text and f"second: {first}, line 4: reads" in cells.text
    )
    assert (
        f"Before {first}, line 4 insert" in cells.text and f"stream created at {first}, line 1" in cells.text
    )
    assert "y = x * 2" in cells.text
    assert len(cells.html) == 1 and "1 race found" in cells.html[0] and f"{first}, line 4" in cells.html[0]
    cells("z = 1")
    assert (cells.text, cells.html) == ("", [])
    second = cells("w = y + 1")
    assert (
        cells.text.startswith("1 race found:")
        and f"{first}, line 4" in cells.text
        and f"{second}, line 1" in cells.text
    )


def test_displaying_a_result_is_the_access_of_its_cell(cells, machine):
    cells(RACE)
    number = cells("z = 1\ny[:3]")
    assert "tensor([" in cells.text and f"second: {number}, line 2: reads" in cells.text
    number = cells("print(y[:3])")
    assert f"second: {number}, line 1: reads" in cells.text


def test_a_clean_cell_displays_nothing(cells, machine):
    cells("x = torch.zeros(3, device='cuda') * 2")
    assert (cells.text, cells.html) == ("", [])


def test_races_of_a_machine_closed_in_the_cell_are_reported(cells):
    number = cells(
        "with torch.virtual(races='warn'):\n" + "".join([f"    {line}\n" for line in RACE.splitlines()])
    )
    assert cells.text.startswith("1 race found:") and f"{number}, line 5" in cells.text


def test_a_race_error_is_shown_once(cells):
    with flambeau.virtual(races="error"):
        number = cells(RACE)
        assert type(cells.result.error_in_exec) is flambeau.RaceError
        assert "----> 4     y = x * 2" in cells.text and "/flambeau/" not in cells.text.replace(str(ROOT), "")
        assert cells.text.count(f"second: {number}, line 4") == 1 and cells.html == []
        cells("z = 1")
        assert cells.text == ""


def test_a_race_error_that_the_cell_swallows_is_reported(cells):
    with flambeau.virtual(races="error"):
        number = cells(
            "try:\n" + "".join([f"    {line}\n" for line in RACE.splitlines()]) + "except RuntimeError: pass"
        )
        assert (
            cells.result.success
            and cells.text.startswith("1 race found:")
            and f"{number}, line 5" in cells.text
        )


def test_tracebacks_hide_flambeau(cells):
    cell = "try:\n    torch.mm(torch.ones(3), torch.ones(3))\nexcept RuntimeError as e:\n    raise ValueError('mine') from e"
    cells("torch.mm(torch.ones(3), torch.ones(3))")
    assert "self must be a matrix" in cells.text and "matmul.py" not in cells.text
    names = [frame.name for frame in traceback.extract_tb(sys.last_traceback)]
    assert names[-1] == "mm"  # a debugger sees all frames
    cells(cell)
    assert (
        "----> 2     torch.mm" in cells.text and "----> 4     raise" in cells.text and ".py" not in cells.text
    )
    cause = cells.result.error_in_exec.__cause__
    assert len(traceback.extract_tb(cause.__traceback__)) > 1  # the exception itself is unchanged
    cells("%xmode Verbose")
    cells(cell)
    assert ".py" in cells.text


def test_other_errors_are_shown_as_before(cells):
    cells("1/0")
    assert "----> 1 1/0" in cells.text and "ZeroDivisionError" in cells.text
    cells("def f(:\n  pass")
    assert "SyntaxError" in cells.text
    cells("raise SystemExit(3)")
    assert "SystemExit" in cells.text


def test_program_frames_of_a_traceback_without_program():
    try:
        flambeau.mm(flambeau.ones(3), flambeau.ones(3))
    except RuntimeError as error:
        own = error.__traceback__.tb_next
        assert [frame.name for frame in traceback.extract_tb(program_frames(error.__traceback__))] == [
            "test_program_frames_of_a_traceback_without_program"
        ]
    assert program_frames(own) is own and program_frames(None) is None


# -- HTML -----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects the text."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], set(), ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in ("br", "rect", "path", "marker") or tag == "marker":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_machine_is_shown_with_races_and_timeline(cells, machine):
    number = cells(RACE.replace("x * 2", "x * (2 if '<script>&' else 3)"))
    cells("torch.cuda.synchronize()\nmachine")
    (html,) = [each for each in cells.html if "Timeline" in each] or [machine._repr_html_()]
    page = Page(html)
    assert "script" not in page.tags and "svg" in page.tags
    assert "2 x NVIDIA A100-SXM4-40GB (virtual: profile a100-40g, schedule earliest)" in page.text
    assert (
        "1 race found" in page.text
        and f"{number}, line 4: mul on side stream 1 of cuda:0 reads them" in page.text
    )
    assert "x * (2 if '<script>&' else 3)" in page.text and "simulated" in page.text
    assert "side stream 1" in page.text and "allocated now" in page.text
    assert '#e03131" stroke-width="2.5"' in html  # racing commands are red
    machine.close()
    page = Page(machine._repr_html_())
    assert "closed" in page.text and "1 race found" in page.text and "allocated at the end" in page.text


def test_a_certificate_is_shown_with_what_it_rests_on(cells, machine):
    cells("x = torch.zeros(3, device='cuda') * 2")
    certificate = machine.certificate()
    page = Page(certificate._repr_html_())
    assert certificate.race_free and page.text == "".join(
        str(certificate).replace("\n  - ", "\n").split("\n")
    )
    assert page.text in Page(machine._repr_html_()).text
    cells("x.sum().item() if torch.cuda.current_stream().query() else 0")
    certificate = machine.certificate()
    page = Page(certificate._repr_html_())
    assert "not certified" in page.text and certificate.violated[0] in page.text
    cells("machine.certificate()")
    assert str(certificate) in cells.text
    cells(RACE)
    (race,) = machine.certificate().races
    page = Page(race._repr_html_())
    assert race.fix.where in page.text and race.fix.code in page.text
    assert "Nothing orders these two uses of 4,000 bytes of cuda:0" in page.text
    assert re.fullmatch(r"Before In \[\d+\], line \d+ insert", race.fix.where)


def test_a_machine_without_races_says_so(cells):
    with flambeau.virtual() as machine:
        assert machine.certificate() is None
        flambeau.ones(3, device="cuda")
        assert "not detected" in Page(machine._repr_html_()).text
    with flambeau.virtual(devices=0, races="warn") as machine:
        assert machine.certificate() is None and machine._repr_html_() is None


def test_a_recent_timeline_marks_the_same_races(cells, machine):
    whole, recent = Timeline(), RecentTimeline(40)
    machine.driver.on_command = lambda record: (whole.add(record), recent.add(record))
    cells(RACE)
    for number in range(30):
        cells(f"with torch.cuda.stream(side): z = x * {number}\nside.record_event()\nx.add_(z)")
    flambeau.cuda.synchronize()
    races = machine.certificate().races
    machine.close()
    assert recent.dropped and len(recent) <= 40 and len(races) > 10
    kept = {record.seq for record in recent.records}
    expected = [[r if r and r.seq in kept else None for r in sides] for _, *sides in whole.racing(races)]
    assert [sides for _, *sides in recent.racing(races)] == expected
    assert any(all(sides) for sides in expected)


# -- installing -----------------------------------------------------------------------------------------------


def test_uninstalling_leaves_the_shell_as_it_was(cells):
    uninstall(cells.shell)
    try:
        watching = len(system._watchers)
        with (
            flambeau.virtual(races="warn") as machine,
            pytest.warns(UserWarning, match="RaceWarning|nothing orders"),
        ):
            cells(RACE)
            assert (cells.text, machine._repr_html_()) == ("", None)
            machine.close()
        cells("torch.mm(torch.ones(3), torch.ones(3))")
        assert "matmul.py" in cells.text
        uninstall(cells.shell)  # may be called again
    finally:
        install(cells.shell)
    assert len(system._watchers) == watching + 1


BESIDE = """
import sys, flambeau
assert "flambeau.report.notebook" not in sys.modules and not flambeau.runtime.system._watchers
import IPython
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
import flambeau.report.notebook
flambeau.report.notebook.install()  # IPython is imported, and runs no shell
assert not flambeau.runtime.system._watchers
shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
shell.run_cell("%load_ext flambeau")
assert len(flambeau.runtime.system._watchers) == 1
shell.run_cell("%unload_ext flambeau")
assert not flambeau.runtime.system._watchers
"""
WITHIN = """
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
shell.run_cell("import flambeau as torch; torch.virtual(races='warn')")
shell.run_cell('''CELL''')
""".replace("CELL", RACE)


@pytest.mark.parametrize(
    ("program", "said"), [(BESIDE, ""), (WITHIN, "1 race found:")], ids=["beside", "within"]
)
def test_importing_under_ipython_installs(tmp_path, program, said):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (said in done.stdout) and done.stderr == "", done.stderr
