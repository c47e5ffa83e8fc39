"""What CI reads: JSON by its schema, SARIF, GitHub's annotations, JUnit's XML; of every command, of odd programs."""

import copy
import io
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import jsonschema
import pytest
from cli_kit import environment, flambeau_run, program
from test_children import RACE
from warm_start import run_module

from flambeau.report import findings, github_annotations, sarif

SCHEMA = json.loads((Path(findings.__file__).parent / "schema.json").read_text())
RACY = f"{RACE}\nracing()\n"
CLEAN = "import torch\nprint(torch.ones(3, device='cuda').sum().item())\n"


def strict(schema):
    """The schema without room for more properties: what is written must be described."""
    schema = copy.deepcopy(schema)

    def close(node):
        if isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                node["additionalProperties"] = False
            for child in node.values():
                close(child)
        elif isinstance(node, list):
            for child in node:
                close(child)

    close(schema)
    return schema


def check(report):
    kind = jsonschema.Draft202012Validator
    kind.check_schema(SCHEMA)
    kind(SCHEMA).validate(report)
    kind(strict(SCHEMA)).validate(report)
    return report


def flambeau(folder, command, *arguments, **variables):
    line = [command, "--report", "report.json", "--sarif", "report.sarif", *arguments]
    done = run_module("flambeau", *line, env=environment(**variables), cwd=folder)
    report, log = (json.loads((folder / f"report.{kind}").read_text()) for kind in ("json", "sarif"))
    return done, check(report), check_sarif(log)


def check_sarif(log):
    """SARIF 2.1.0, section by section, as far as it is written here; the results."""
    assert log["version"] == "2.1.0" and set(log) == {"$schema", "version", "runs"}  # 3.13
    (run,) = log["runs"]
    assert set(run) <= {"tool", "invocations", "originalUriBaseIds", "columnKind", "results"}  # 3.14
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] and len({rule["id"] for rule in rules}) == len(rules)  # 3.19
    for rule in rules:  # 3.49
        assert rule["shortDescription"]["text"].endswith(".") and re.fullmatch(
            r"[A-Z][A-Za-z]+", rule["name"]
        )
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for base in run["originalUriBaseIds"].values():  # 3.14.14
        assert base["uri"].startswith("file:///") and base["uri"].endswith("/")
    (invocation,) = run["invocations"]
    assert isinstance(invocation["executionSuccessful"], bool)  # 3.20.14
    for result in run["results"]:  # 3.27
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["occurrenceCount"] >= 1 and result["message"]["text"]
        related = {location["id"] for location in result.get("relatedLocations", ())}
        linked = set(map(int, re.findall(r"(?<!\\)\[(?:[^\]\\]|\\.)*\]\((\d+)\)", result["message"]["text"])))
        assert linked == related  # 3.11.6
        assert all(re.fullmatch(r"[0-9a-f]{32}", value) for value in result["partialFingerprints"].values())
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            if "physicalLocation" in location:
                physical = location["physicalLocation"]
                assert physical["region"]["startLine"] >= 1  # 3.30.5
                check_uri(physical["artifactLocation"], run)
        for fix in result.get("fixes", ()):  # 3.55
            for change in fix["artifactChanges"]:
                check_uri(change["artifactLocation"], run)
                assert all("deletedRegion" in replacement for replacement in change["replacements"])
    return run


def check_uri(location, run):
    """3.4: a URI reference, relative to its base where it has one."""
    uri = location["uri"]
    assert re.fullmatch(r"[A-Za-z0-9._~:/%@!$&'()*+,;=-]+", uri) and not re.search(
        r"%(?![0-9A-F]{2})", uri
    ), uri
    if "uriBaseId" in location:
        assert not urlsplit(uri).scheme and not uri.startswith("/") and ".." not in uri.split("/")
    else:
        assert uri.startswith("file:///")


def file_of(location, run):
    """The file that a location names."""
    artifact = location["physicalLocation"]["artifactLocation"]
    base = run["originalUriBaseIds"][artifact["uriBaseId"]]["uri"] if "uriBaseId" in artifact else ""
    return unquote(urlsplit(urljoin(base, artifact["uri"])).path)


@pytest.mark.parametrize(
    ("races", "rule", "text"),
    [
        ("warn", "FLB001", RACY),
        ("error", "FLB001", RACY),
        (
            "warn",
            "FLB002",
            "import torch\nside = torch.cuda.Stream()\nx = torch.ones(9, device='cuda')\n"
            "side.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    y = x * 2\n"
            "del x\nz = torch.zeros(9, device='cuda')\ntorch.cuda.synchronize()\n",
        ),
        (
            "warn",
            "FLB003",
            "import torch\nh = torch.zeros(9).pin_memory()\nh.copy_(torch.ones(9, device='cuda'), non_blocking=True)\n"
            "print(h.sum().item())\n",
        ),
    ],
)
def test_a_race_is_a_result_on_both_lines(tmp_path, races, rule, text):
    path = program(tmp_path, text)
    done, report, run = flambeau(tmp_path, "run", "--races", races, path)
    assert done.returncode == (3 if races == "error" else 0), done.stderr
    (race,) = report["machines"][0]["certificate"]["races"]
    (result,) = run["results"]
    assert result["ruleId"] == rule and race["fix"]["text"] in result["message"]["text"].replace("\\", "")
    (first,), (second,) = result["relatedLocations"], result["locations"]
    for location, side in ((first, race["first"]), (second, race["second"])):
        assert file_of(location, run) == side["file"] == str(path)
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "program.py"
        assert physical["region"] == {"startLine": side["line"], "snippet": {"text": side["source"]}}
        assert path.read_text().splitlines()[side["line"] - 1].strip() == side["source"]


@pytest.mark.parametrize(
    "name",
    ["a b.py", "ünï.py", "100%.py", "a,b:c.py", "line\nbreak.py", "[x](1).py", "q'\"&?#.py", b"\xff.py"],
)
def test_odd_file_names(tmp_path, name):
    folder = tmp_path / "odd, folder: 50%"
    folder.mkdir()
    path = folder / os.fsdecode(name)
    path.write_text(RACY)
    done, report, run = flambeau(folder, "run", path.name, GITHUB_ACTIONS="true", PYTHONUTF8="1")
    (result,) = run["results"]
    assert os.fsencode(str(path)) == os.fsencode(
        report["machines"][0]["certificate"]["races"][0]["second"]["file"]
    )
    assert (
        unquote(file_of(result["locations"][0], run), errors="surrogateescape") == str(path)
        or name == b"\xff.py"
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    found = re.fullmatch(r"::error file=(.*?),line=(\d+),title=(.*?)::(.*)", line)
    assert found and not set(":,\n\r") & set(found[1]), line
    decoded = found[1].replace("%3A", ":").replace("%2C", ",").replace("%0A", "\n").replace("%25", "%")
    assert decoded == path.name or name == b"\xff.py"
    assert found[3] == "FLB001 Two streams use memory without an order" and "Fix%3A" not in found[4]


def test_a_program_outside_of_the_working_directory(tmp_path):
    (tmp_path / "here").mkdir()
    path = program(tmp_path, RACY)
    _, _, run = flambeau(tmp_path / "here", "run", path)
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": path.as_uri()}
    _, _, run = flambeau(tmp_path / "here", "run", path, GITHUB_WORKSPACE=str(tmp_path))
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "program.py", "uriBaseId": "SRCROOT"}


def test_a_module_and_a_program_that_goes_elsewhere(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(f"import os\nos.chdir('/')\n{RACY}")
    _, report, run = flambeau(tmp_path, "run", "-m", "pack")
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "pack/__main__.py"
    assert report["machines"][0]["certificate"]["races"][0]["first"]["place"] == "pack/__main__.py:10"


def test_code_without_a_file_has_a_name(tmp_path):
    done, _, run = flambeau(tmp_path, "run", program(tmp_path, f"exec({RACY!r})"), GITHUB_ACTIONS="true")
    (result,) = run["results"]
    (location,) = result["locations"]
    assert location == {"logicalLocations": [{"fullyQualifiedName": "<string>:10"}]}
    assert "::error title=FLB001" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        CLEAN,
        "",
        "import torch\ntorch.ones(1, device='cuda')\ntorch.cuda.current_stream().query()\n",
    ],
)
def test_runs_without_findings_are_logs_without_results(tmp_path, text):
    done, _, run = flambeau(tmp_path, "run", program(tmp_path, text), GITHUB_ACTIONS="true")
    assert (
        run["results"] == [] and run["invocations"][0]["executionSuccessful"] and "::error" not in done.stderr
    )
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert any("query()" in note for note in notes) is ("query" in text)


def test_a_program_that_races_and_fails_by_itself(tmp_path):
    done, report, run = flambeau(tmp_path, "run", program(tmp_path, f"{RACY}\nraise SystemExit(9)"))
    assert done.returncode == report["exit_status"] == 9 and len(run["results"]) == 1
    assert run["invocations"][0] | {"toolExecutionNotifications": []} == {
        "executionSuccessful": False, "exitCode": 9, "toolExecutionNotifications": []
    }  # fmt: skip


def test_a_thousand_races(tmp_path):
    lines = "".join(f"    y = x * {i}\n" for i in range(1000))
    text = "import torch\nside = torch.cuda.Stream()\nx = torch.zeros(9, device='cuda')\ntorch.cuda.synchronize()\n"
    text += f"x.fill_(1)\nwith torch.cuda.stream(side):\n{lines}torch.cuda.synchronize()\n"
    done, report, run = flambeau(tmp_path, "run", program(tmp_path, text), GITHUB_ACTIONS="true")
    assert len(report["machines"][0]["certificate"]["races"]) == len(run["results"]) == 1000
    assert done.stderr.count("::error ") == 10 and "::notice::Flambeau: 990 findings more" in done.stderr
    assert len({r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in run["results"]}) == 1000


def test_launch_has_one_result_for_all_ranks(tmp_path):
    done, report, run = flambeau(
        tmp_path, "launch", "--nproc-per-node", "2", program(tmp_path, RACY), GITHUB_ACTIONS="true"
    )
    assert report["kind"] == "launch" and [rank["exit_status"] for rank in report["ranks"]] == [0, 0]
    (result,) = run["results"]
    assert result["occurrenceCount"] == 2 and "Found in rank 0, rank 1." in result["message"]["text"]
    assert done.stderr.count("::error file=program.py,line=10,") == 1


def test_a_fix_serves_every_rank(tmp_path):
    lines = [
        "import os, torch",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        "side, x = torch.cuda.Stream(), torch.ones(1 << 20, device='cuda')",
        "with torch.cuda.stream(side):",
        "    y = x * 2",
        "torch.cuda.synchronize()",
    ]
    launch = "launch", "--nproc-per-node", "2"
    _, report, run = flambeau(tmp_path, *launch, program(tmp_path, "\n".join(lines)))
    races = [rank["machines"][0]["certificate"]["races"] for rank in report["ranks"]]
    (fix,) = {race["fix"]["code"] for (race,) in races}
    assert fix == "side.wait_stream(torch.cuda.default_stream())" in str(run["results"])
    repaired = program(tmp_path, "\n".join([*lines[:4], f"    {fix}", *lines[4:]]))
    assert flambeau(tmp_path, *launch, repaired)[2]["results"] == []


def test_children_are_in_all_forms(tmp_path):
    (tmp_path / "child.py").write_text(RACY)
    text = "import subprocess, sys, torch\nsubprocess.run([sys.executable, 'child.py'])\n"
    done, report, run = flambeau(tmp_path, "run", program(tmp_path, text), GITHUB_ACTIONS="true")
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "child.py"
    assert "::error file=child.py,line=10," in done.stderr and len(report["processes"]) == 1


def test_explore_has_races_and_failures(tmp_path):
    text = RACY.replace("\n\ndef race()", "\n    print(y[0].item())\n\ndef race()")
    done, report, run = flambeau(tmp_path, "explore", program(tmp_path, text), GITHUB_ACTIONS="true")
    assert done.returncode == 3 and report["exploration"]["complete"], done.stdout + done.stderr
    assert [result["ruleId"] for result in run["results"]] == ["FLB001", "FLB010"]
    (failure,) = report["exploration"]["failures"]
    assert failure["replay"] in done.stdout and failure["replay"] in run["results"][1]["message"]["text"]
    assert [failure["swaps"][0][side]["line"] for side in ("first", "second")] == [10, 8]
    assert "::error file=program.py,line=10,title=FLB010" in done.stderr


def test_explore_has_the_cause_of_other_outcomes(tmp_path):
    _, report, run = flambeau(
        tmp_path, "explore", program(tmp_path, "import random\nprint(random.random())\n")
    )
    (failure,) = report["exploration"]["failures"]
    assert failure["nondeterministic"] and [result["ruleId"] for result in run["results"]] == ["FLB011"]
    assert run["results"][0]["locations"] == []


def test_explore_has_the_error_of_the_recorded_run(tmp_path):
    done, _, run = flambeau(tmp_path, "explore", program(tmp_path, "raise ValueError('[no](1)')"))
    assert done.returncode == 3 and [result["ruleId"] for result in run["results"]] == ["FLB012"]


@pytest.mark.parametrize("option", ["--report", "--sarif"])
@pytest.mark.parametrize("command", ["run", "explore", "trace", "launch"])
def test_an_unwritable_place_is_refused_before_the_program_begins(tmp_path, command, option):
    path = program(tmp_path, "print('begun')")
    for place, why in (("none/x.json", "its folder does not exist"), (".", "it is a folder")):
        done = run_module("flambeau", command, option, place, path, env=environment(), cwd=tmp_path)
        assert done.returncode == 2 and "begun" not in done.stdout
        assert f"flambeau {command}: can't write {place!r}: {why}" in done.stderr


def test_annotations_are_for_workflows_alone(tmp_path):
    assert "::error" not in flambeau_run(tmp_path, program(tmp_path, RACY)).err
    assert (
        "::error" not in flambeau_run(tmp_path, program(tmp_path, RACY), env={"GITHUB_ACTIONS": "false"}).err
    )


def test_escapes_of_annotations():
    finding = findings.Finding(
        findings.MISSING_WAIT,
        findings.Spot("/r/a,b:%\r\n.py", 3),
        "100%\r\n",
        "x",
        findings.Spot("", 0),
        "::",
        "f",
    )
    document = {"kind": "run"}
    out = io.StringIO()
    original, findings.findings_of = findings.findings_of, lambda _: [finding]
    try:
        github_annotations.write_annotations(document, out, Path("/r"))
    finally:
        findings.findings_of = original
    title = "FLB001 Two streams use memory without an order"
    assert (
        out.getvalue() == f"::error file=a%2Cb%3A%25%0D%0A.py,line=3,title={title}::100%25%0D%0Ax:: Fix: f\n"
    )


def test_edits_are_insertions():
    edit = {"path": "/r/a b.py", "line": 4, "column": 2, "text": "  s.wait_stream(t)\n"}
    spot = findings.Spot("/r/a b.py", 5, "y = x")
    finding = findings.Finding(findings.MISSING_WAIT, spot, "b", "o", spot, "a", "f", (edit,))
    (change,) = sarif._result(finding, Path("/r"))["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"] == {"uri": "a%20b.py", "uriBaseId": "SRCROOT"}
    region = {"startLine": 4, "startColumn": 3, "endLine": 4, "endColumn": 3}
    assert change["replacements"] == [
        {"deletedRegion": region, "insertedContent": {"text": "  s.wait_stream(t)\n"}}
    ]


# -- pytest -------------------------------------------------------------------------------------------------

TESTS = f"""
{RACE}
import pytest

@pytest.mark.parametrize("size", [10, 20])
def test_racy(size):
    racing()

def test_swallowed():
    race()

def test_clean():
    torch.ones(3, device="cuda")

def test_fails():
    assert torch.ones(3, device="cuda").sum().item() == 4

def test_no_device(): pass
"""


def run_pytest(folder, *arguments, **variables):
    command = ["-p", "no:cacheprovider", "--rootdir", folder]
    command += [
        "--virtual-gpus=2",
        "--junitxml=junit.xml",
        "--gpu-report=report.json",
        "--gpu-sarif=report.sarif",
    ]
    done = run_module("pytest", *command, *arguments, env=environment(**variables), cwd=folder)
    cases = ET.parse(folder / "junit.xml").getroot().iter("testcase")
    properties = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        | {"": [c.tag for c in case]}
        for case in cases
    }
    report, log = (json.loads((folder / f"report.{kind}").read_text()) for kind in ("json", "sarif"))
    return done, properties, check(report), check_sarif(log)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_each_race_is_reported_once_over_all_workers(tmp_path, workers):
    program(tmp_path, TESTS, "test_it.py")
    done, cases, report, run = run_pytest(tmp_path, "--gpu-schedules=4", *workers, GITHUB_ACTIONS="true")
    assert done.returncode == 1
    summary = done.stdout.splitlines()[-1]
    assert "skipped" not in summary and "6 same race" in summary, (
        done.stdout
    )  # of two tests, three schedules each
    failed = [name for name, case in cases.items() if "failure" in case[""]]
    assert sorted(name.partition("[")[0] for name in failed) == [
        *["test_fails"] * 4, "test_racy", "test_racy", *["test_swallowed"] * 4
    ]  # fmt: skip
    assert not any("skipped" in case[""] for case in cases.values())
    for name in failed:
        assert cases[name]["flambeau_replay"].startswith("pytest --virtual-gpus 2 --gpu-schedule replay:")
        assert name.startswith("test_fails") or "and nothing orders them" in cases[name]["flambeau_races"]
    racy = {
        test["test"].partition("::")[2].partition("[")[0]
        for test in report["tests"]
        if test["machines"][0]["certificate"]["races"]
    }
    assert racy == {"test_racy", "test_swallowed"} and report["exit_status"] == 1
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "test_it.py"
    assert done.stdout.count("::error file=test_it.py,line=11,") == 1
    assert report["counts"]["runs"] == 24


def test_a_racy_test_that_passes_has_its_report_in_junit(tmp_path):
    program(tmp_path, TESTS, "test_it.py")
    done, cases, report, _ = run_pytest(tmp_path, "--gpu-races=warn", "-k", "racy or clean")
    assert done.returncode == 0 and report["counts"]["racy"] == 2
    assert "nothing orders them" in cases["test_racy[10]"]["flambeau_races"]
    assert "--gpu-races warn" in cases["test_racy[10]"]["flambeau_replay"]
    assert cases["test_clean"] == {"": []}


def test_a_replay_line_of_junit_repeats_the_failure(tmp_path):
    program(tmp_path, TESTS, "test_it.py")
    _, cases, _, _ = run_pytest(tmp_path, "-k", "racy and 10")
    line = cases["test_racy[10]"]["flambeau_replay"]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True, env=environment(), cwd=tmp_path,
        check=False,
    )  # fmt: skip
    assert "1 failed" in done.stdout and "RaceError" in done.stdout, done.stdout


def test_a_file_that_cannot_be_written_is_refused_before_tests_run(tmp_path):
    program(tmp_path, TESTS, "test_it.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--virtual-gpus=1", "--gpu-sarif=none/x"],
        capture_output=True, text=True, env=environment(), cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (
        done.returncode == 4 and "--gpu-sarif: can't write 'none/x': its folder does not exist" in done.stderr
    )
