"""Commands in the pages exist: their options, files, modules, make targets and extras. The guides' own test runs
theirs.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from flambeau.cli.main import COMMANDS as COMMANDS_OF_FLAMBEAU
from flambeau.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = ("flambeau", "python", "pytest", "make", "pip")
FENCE = re.compile(r"^ *```(?:sh|console)?\n(.*?)^ *```$", re.M | re.S)
INLINE = re.compile(r"`((?:flambeau|make|python -m|pytest|pip install)\s[^`]*)`")


def commands() -> list[tuple[str, str]]:
    """Return the page and the text of each command, without variables before it and what follows `&&` and `#`."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
        for line in [*lines, *(" ".join(code.split()) for code in INLINE.findall(text))]:
            for part in re.split(r"\s&&\s", line.removeprefix("$ ").split(" #")[0]):
                part = re.sub(r"^(\w+=\S*\s+)+", "", part.strip())
                if part.split(" ")[0] in COMMANDS:
                    found.append((page.name, part))
    return sorted(set(found))


FOUND = commands()


@pytest.mark.parametrize(("page", "command"), FOUND, ids=map(":".join, FOUND))
def test_command_of_a_page_exists(page: str, command: str, pytestconfig: pytest.Config) -> None:
    name, *words = shlex.split(command.replace("...", ""))
    if name == "flambeau":
        check_flambeau(words)
    elif name == "python":
        check_python(words)
    elif name == "make":
        targets = re.findall(r"^([\w./-]+)(?: [\w./-]+)*:", (ROOT / "Makefile").read_text(), flags=re.M)
        assert {word for word in words if "=" not in word} <= set(targets)
    elif name == "pytest":
        known = {option for action in options_of(pytestconfig) for option in action}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known
    else:
        check_pip(words)


def check_flambeau(words: list[str]) -> None:
    """Parse the options, of a sentence's command without its program as well."""
    if len(words) == 1:  # the name of a command, in a sentence
        assert words[0] in COMMANDS_OF_FLAMBEAU
        return
    try:
        build_parser(words[0]).parse_args(words)
    except SystemExit as ended:  # code 0: --help
        if ended.code:
            build_parser(words[0]).parse_args([*words, "program.py"])


def check_python(words: list[str]) -> None:
    """Check that the module or file exists."""
    if words[0] == "-m":
        assert find_spec(words[1]) is not None or any(
            (ROOT / "tests").rglob(f"{words[1].rpartition('.')[2]}.py")
        )
    elif words[0] != "-c":
        assert (ROOT / words[0]).is_file()


def check_pip(words: list[str]) -> None:
    """Check that the extras are ours."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
        assert set(names.split(",")) <= set(extras)


def options_of(config: pytest.Config) -> list[list[str]]:
    parser = config._parser
    groups = [parser._anonymous, *parser._groups]
    return [option.names() for group in groups for option in group.options]
