"""Call sites: the user's line, through any depth of this package."""

import os
import subprocess
import sys
from pathlib import Path

from race_kit import kernel, machine, meta

from flambeau.core import callsite
from flambeau.driver.protocol import Launch


def test_the_site_of_a_command_is_the_users_line():
    gpu, _ = machine()
    a = gpu.mem_alloc(0, 64)
    exe = gpu.load(Launch(kernel("fill_"), (meta((4, 4)),), ()), 0)
    gpu.launch(exe, [a], [], 1)
    gpu.launch(exe, [a], [], gpu.stream_create(0, 0))  # this line
    (race,) = gpu.detector.races
    line = test_the_site_of_a_command_is_the_users_line.__code__.co_firstlineno + 5
    assert race.second.place.endswith(f"test_sites.py:{line}")
    assert race.first.place.endswith(f"test_sites.py:{line - 1}")
    assert "# this line" in str(race)


def test_a_line_of_no_file_has_a_place_and_no_source():
    scope = {"caller": callsite.caller}
    exec(
        compile(
            "def ask():\n    return between()\n\ndef between():\n    return caller()", "<made up>", "exec"
        ),
        scope,
    )
    found = scope["ask"]()
    assert callsite.place(found) == "<made up>:2"
    assert callsite.source(found) == ""


def test_the_outermost_line_of_a_program_is_searched_for_once(tmp_path):
    """Nobody calls it; it is known after the first search all the same."""
    program = tmp_path / "program.py"
    program.write_text(
        "from flambeau.core import callsite as sites\n"
        "search, searches = sites._slow_caller, []\n"
        "sites._slow_caller = lambda *given: searches.append(given) or search(*given)\n"
        "for _ in range(3):\n"
        "    place = sites.place(sites.caller(0))\n"
        "print(len(searches), place)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(callsite.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert done.stdout == "1 program.py:5\n"
