"""The reference pages of the site, from the code: Python names, commands, variables, the report's schema."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from typing import Any

from flambeau.cli import main
from flambeau.runtime.devices import configuration

VIRTUAL = (
    ("flambeau.runtime.system", "virtual", "flambeau.virtual"),
    ("flambeau.runtime.system", "VirtualMachine", ""),
    ("flambeau.observe.reports", "Certificate", "flambeau.observe.reports.Certificate"),
    ("flambeau.observe.reports", "Race", "flambeau.observe.reports.Race"),
    ("flambeau.observe.reports", "RaceAccess", "flambeau.observe.reports.RaceAccess"),
    ("flambeau.observe.reports", "Fix", "flambeau.observe.reports.Fix"),
    ("flambeau.observe.faults", "Fault", "flambeau.observe.faults.Fault"),
    ("flambeau.runtime.devices.doctor", "doctor", "flambeau.doctor"),
)
TESTING = (
    ("flambeau.testing.ranks", "ranks", "flambeau.testing.ranks"),
    ("flambeau.testing.cluster", "cluster", "flambeau.testing.cluster.cluster"),
    ("flambeau.testing.explore", "explore", "flambeau.testing.explore"),
    ("flambeau.testing.exploration", "Exploration", ""),
    ("flambeau.testing.failures", "Failure", ""),
    ("flambeau.testing.outcome", "Outcome", ""),
    ("flambeau.testing.closeness", "assert_close", "flambeau.testing.assert_close"),
)
# name -> meaning, for every name in `configuration.VARIABLES`
VARIABLES = {
    "FLAMBEAU_COMPILE": "`off`: functions of `torch.compile` launch each operator by itself.",
    "FLAMBEAU_DRIVER": "`auto` (default), `cuda` (never falls back) or `virtual`.",
    "FLAMBEAU_EXCHANGE": "Address of the coordinator that pairs the collectives of ranks. `flambeau "
    "launch` sets it.",
    "FLAMBEAU_FLOAT32_PRECISION": "`highest`, `high` (default) or `medium`: whether float32 products "
    "round to TF32.",
    "FLAMBEAU_FULL_TRACEBACK": "`1`: tracebacks show Flambeau's own frames, also in child processes.",
    "FLAMBEAU_FUSE_FROM": "Bytes of a tensor from which on compiled functions fuse operators: 33554432 by default.",
    "FLAMBEAU_GLOO": "`tcp`: the backend gloo never uses MPI.",
    "FLAMBEAU_HUNT_SEED": "Seed of the random programs in Flambeau's own tests.",
    "FLAMBEAU_HUNT_SEEDS": "Number of random programs in Flambeau's own tests.",
    "FLAMBEAU_KERNEL_CACHE": "Folder of compiled kernels of real GPUs.",
    "FLAMBEAU_LOGS": "`fusion`: print what compiled functions fuse.",
    "FLAMBEAU_NATIVE": "`on`, `off` or a folder: the library of native kernels for the CPU and virtual GPUs.",
    "FLAMBEAU_PEER_CANARY": "`1` or `0`: force or skip the check of copies between two real GPUs.",
    "FLAMBEAU_PROMISE_STEPS": "Number of steps of the long run in the tests of the allocator's promises.",
    "FLAMBEAU_RACES": "`off`, `warn` (collect and report) or `error` (raise).",
    "FLAMBEAU_REPORT_FOLDER": "Folder in which child processes leave their races. `flambeau run` sets it.",
    "FLAMBEAU_SCHEDULE": "`earliest` (default), `random:SEED`, `adversarial:SEED`, `pct:SEED:DEPTH` or "
    "`replay:TOKEN`.",
    "FLAMBEAU_STORE_SECRET": "Secret that a process must know to use the ranks' store. `flambeau "
    "launch` sets it.",
    "FLAMBEAU_STRICT": "`1`: uses of pinned memory that the detector cannot see withhold the certificate.",
    "FLAMBEAU_TESTS": "`exhaustive`: Flambeau's own tests run more examples.",
    "FLAMBEAU_VIRTUAL_DATA": "`0`: simulate shapes, memory and times only; reading a value raises.",
    "FLAMBEAU_VIRTUAL_DEVICES": "Number of virtual GPUs; 0 means that CUDA is not available.",
    "FLAMBEAU_VIRTUAL_PLACEMENT": "`default`, `pytorch` or `random:SEED`: which free block serves a request.",
    "FLAMBEAU_VIRTUAL_PROFILE": "Name of the modelled GPU, such as `h100`, or a TOML file.",
}


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in the site."""
    return {
        "reference/virtual.md": _python_page(
            "Virtual GPUs from Python",
            "This page lists the functions and classes with which a program opens virtual GPUs and "
            "reads what they "
            "prove. It is for people who write tests. The [tutorial](../tutorial.md) introduces them.",
            VIRTUAL,
        ),
        "reference/testing.md": _python_page(
            "Test kit",
            "This page lists what Flambeau offers to tests: ranks as threads, simulated clusters, "
            "exploration of "
            "orders. [Test many ranks](../howto-ranks.md) shows their use.",
            TESTING,
        ),
        "reference/commands.md": commands_page(),
        "reference/environment.md": environment_page(),
        "reference/report.md": schema_page(),
    }


# -- Python names


def _python_page(title: str, purpose: str, names: tuple[tuple[str, str, str], ...]) -> str:
    parts = [f"# {title}\n\n{purpose}\n"]
    parts += [
        _describe(getattr(import_module(module), name), public or name) for module, name, public in names
    ]
    return "\n".join(parts)


def _describe(found: Any, name: str) -> str:
    """Return the section of one function or class: signature, docstring, public methods."""
    short = name.rpartition(".")[2]
    parts = [f"## {name}\n", _code(f"{short}{_signature(found)}", "python"), _docstring(found)]
    for method, value in vars(found).items() if inspect.isclass(found) else ():
        if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            called = method if isinstance(value, property) else f"{method}{_signature(value)}"
            parts += [f"### {short}.{method}\n", _code(called, "python"), _docstring(value)]
    return "\n".join(parts)


def _signature(found: Any) -> str:
    try:
        signature = inspect.signature(inspect.unwrap(found))
    except (TypeError, ValueError):
        return "(...)"
    parameters = [value for name, value in signature.parameters.items() if name != "self"]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    return text if len(text) < 80 else text.replace("(", "(\n    ", 1).replace(", ", ",\n    ")


def _docstring(found: Any) -> str:
    """Return the docstring as Markdown: sections are lists of names and meanings."""
    lines: list[str] = []
    for line in (inspect.getdoc(found) or "").splitlines():
        section = re.fullmatch(r"(Args|Attributes|Returns|Raises|Source|Note|Example):", line)
        item = re.fullmatch(r" {4}(\*{0,2}[\w., ]+): (.*)", line)
        if section:
            lines += ["", f"**{section[1]}**", ""]
        elif item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line.strip())
    return "\n".join(lines) + "\n"


def _code(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


# -- commands


def commands_page() -> str:
    """Return the page of every command with all of its options, from the parsers."""
    parts = [
        "# Commands\n\nThis page lists every command with all options, for people who know what they "
        "look for. The "
        "[how-to guides](../howto-ci.md) show the commands in use.\n"
    ]
    for name, parser in _parsers(main.build_parser()):
        parts.append(f"## {name}\n")
        if parser.description:
            parts.append(f"{_plain(parser.description)}\n")
        parts.append(_code(re.sub(r"^usage: ", "", _usage(parser))))
        rows = [_option(action) for action in parser._actions if action.help != argparse.SUPPRESS]
        parts.append("| option | meaning |\n| --- | --- |\n" + "\n".join(row for row in rows if row) + "\n")
        if parser.epilog:
            parts.append(f"{_plain(parser.epilog)}\n")
    return "\n".join(parts)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a parser and those of its subcommands, each with its full name."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from _parsers(child)


def _usage(parser: argparse.ArgumentParser) -> str:
    return parser.format_usage().strip()


def _option(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return ""
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    value = " ".join(value) if isinstance(value, tuple) else value
    takes = f" {value}" if action.nargs != 0 and action.option_strings else ""
    name = ", ".join(action.option_strings) + takes if action.option_strings else value
    text = _plain((action.help or "") % {**vars(action), "prog": ""})
    return f"| `{name}` | {text} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


# -- environment


def environment_page() -> str:
    """Return the page of every variable that Flambeau reads.

    Raises:
        LookupError: If a variable of the code has no meaning here, or the other way round.
    """
    if set(VARIABLES) != set(configuration.VARIABLES):
        raise LookupError(
            f"described: {sorted(set(VARIABLES) ^ set(configuration.VARIABLES))} differ from the code's"
        )
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items())
    return (
        "# Environment variables\n\nThis page lists the variables that Flambeau reads, for people who "
        "configure jobs. A "
        "setting in a call has precedence over the command line, and the command line over the "
        "environment.\n\n"
        f"| variable | meaning |\n| --- | --- |\n{rows}\n\n"
        "Flambeau also reads variables of CUDA and PyTorch: `CUDA_VISIBLE_DEVICES`, `CUDA_LAUNCH_BLOCKING`, "
        "`PYTORCH_NO_CUDA_MEMORY_CACHING`, `PYTORCH_ALLOC_CONF`. The commands warn of a variable that "
        "begins with "
        "`FLAMBEAU_` and is not in this list.\n"
    )


# -- the report's schema


def schema_page() -> str:
    """Return the page of the JSON report, one table for each kind of object."""
    schema = json.loads(files("flambeau.report").joinpath("schema.json").read_text("utf-8"))
    parts = [
        "# Report schema\n\nThis page lists the properties of the JSON that `--report FILE` writes, for "
        "people who read "
        "it by program. [Reports for CI](../ci.md) explains the parts and the version rule.\n",
        "## Report\n",
        _properties(schema),
    ]
    for name, definition in schema["$defs"].items():
        parts += [f"## {name}\n", f"{definition.get('description', '')}\n", _properties(definition)]
    return "\n".join(parts)


def _properties(definition: dict[str, Any]) -> str:
    required = definition.get("required", ())
    rows = [
        f"| `{name}` | {_type(value)} | {'yes' if name in required else 'no'} | "
        f"{value.get('description', '').replace('|', chr(92) + '|')} |"
        for name, value in definition.get("properties", {}).items()
    ]
    return "| property | type | required | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    found = value.get("type") or " or ".join(_type(one) for one in value.get("oneOf", value.get("anyOf", ())))
    return " or ".join(found) if isinstance(found, list) else found or "any"
