"""`flambeau completion`: bash completes by the script; the scripts of other shells name every option."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flambeau.cli.main import build_parser, main

pytest.importorskip("shtab", reason="the package shtab is not installed")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (found,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


def complete(file: Path, folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of `words`."""
    asked = " ".join(f"'{word}'" for word in words)
    text = (
        f"source {file}; COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}; COMP_LINE='{' '.join(words)}'\n"
        "function_name=$(complete -p flambeau | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        '$function_name; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flambeau.bash"
    file.write_text(script("bash", capsys))
    (tmp_path / "train.py").touch()
    assert complete(file, tmp_path, "flambeau", "ex") == ["explore"]
    assert set(complete(file, tmp_path, "flambeau", "")) == {*subcommands()}
    assert complete(file, tmp_path, "flambeau", "run", "--rac") == ["--races"]
    assert complete(file, tmp_path, "flambeau", "run", "--races", "") == ["off", "warn", "error"]
    assert complete(file, tmp_path, "flambeau", "run", "tr") == ["train.py"]
    assert complete(file, tmp_path, "flambeau", "run", "--report", "tr") == ["train.py"]
    assert complete(file, tmp_path, "flambeau", "completion", "f") == ["fish"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flambeau.fish").write_text(script("fish", capsys))

    def offered(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source flambeau.fish; complete -C '{line}'"],
            capture_output=True, text=True, cwd=tmp_path, check=True,
        )  # fmt: skip
        return [entry.partition("\t")[0] for entry in done.stdout.splitlines()]

    assert offered("flambeau ex") == ["explore"]
    assert offered("flambeau run --rac") == ["--races"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for name, parser in subcommands().items():
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        for option in (o for action in shown for o in action.option_strings):
            spelled = option.lstrip("-") if shell == "fish" else option
            assert re.search(rf"(?<![\w-]){re.escape(spelled)}(?![\w-])", text), (name, option)
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_without_shtab_it_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
