"""`torch.jit` as PyTorch has it with `PYTORCH_JIT=0`: one program, run by PyTorch's CPU build and by Flambeau."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flambeau as torch

PROGRAM = """
import inspect, typing, warnings
warnings.simplefilter("ignore")
import torch
import torch._jit_internal as internal
from torch.jit import Final
from typing import Dict, List, Optional, Tuple, Union

jit = torch.jit


def show(label, run):
    try:
        result = run()
    except Exception as error:
        if type(error).__name__ != "NotSupportedError":  # see test_what_needs_a_compiler_raises
            print(label, type(error).__name__, str(error) if not isinstance(error, TypeError) else "")
    else:
        print(label, result)


def double(x):
    return 2 * x


def fail():
    raise KeyError("x")


class Scripted(jit.ScriptModule):
    size: Final[int]

    def __init__(self):
        super().__init__()
        self.size = 3
        self.linear = torch.nn.Linear(2, 3)

    @jit.script_method
    def forward(self, x):
        return self.linear(x)

    @jit.unused
    def a(self):
        return 1

    @jit.ignore(drop=True)
    def b(self):
        return 2

    @jit.ignore
    def c(self):
        return 3

    @jit.export
    def d(self):
        return 4

    @jit.unused
    @property
    def e(self):
        return 5


module, scripted, x = torch.nn.Linear(2, 2), Scripted(), torch.arange(4.0).reshape(2, 2)
for made in (jit.script, lambda f: jit.trace(f, (x,)), lambda f: jit.trace_module(f, {"forward": x})):
    show("same", lambda: [made(each) is each for each in (double, module, scripted, Scripted)])
show("as a decorator", lambda: jit.script(double)(x).tolist())
show("not a module", lambda: jit.script(3))
show("methods", lambda: [scripted(x).shape, scripted.a(), scripted.b(), scripted.c(), scripted.d(), scripted.e])
show("modifiers", lambda: [internal.get_torchscript_modifier(getattr(scripted, name)) for name in "abcd"])
show("modifier", lambda: [internal.get_torchscript_modifier(f) for f in (double, 3)])
show("ignored", lambda: [internal.is_ignored_fn(getattr(Scripted, name)) for name in "abcd"])
show("repr", lambda: repr(scripted))
show("bases", lambda: [c.__name__ for c in jit.TopLevelTracedModule.__mro__[:4]])
show("recursive", lambda: [jit.RecursiveScriptModule(), issubclass(jit.RecursiveScriptModule, jit.ScriptModule)])
show("ignore", lambda: jit.ignore(3))
show("interface", lambda: jit.interface(3))
show("states", lambda: [jit.is_scripting(), jit.is_tracing(), internal.is_scripting()])
show("annotate", lambda: [jit.annotate(List[int], [3]), jit.Attribute(3, int), jit._unwrap_optional(2)])
show("unwrap", lambda: jit._unwrap_optional(None))
show("fork", lambda: jit.wait(jit.fork(double, x)).tolist())
show("fork", lambda: jit.fork(double, x=x).wait().tolist())
show("fork fails", lambda: jit.fork(fail))
show("future", lambda: isinstance(jit.fork(double, x), torch.Future))
wrapper = jit.script_if_tracing(double)
show("if tracing", lambda: [wrapper(x).tolist(), wrapper.__original_fn is double, wrapper.__name__])
show("strategy", lambda: [jit.set_fusion_strategy([("STATIC", 3)]), jit.set_fusion_strategy([("DYNAMIC", 1)])])
show("strategy", lambda: jit.set_fusion_strategy([("X", 3)]))
show("onednn", lambda: [jit.onednn_fusion_enabled(), jit.enable_onednn_fusion(True), jit.onednn_fusion_enabled()])
show("fuser", lambda: jit.fuser("fuserX").__enter__())
for block in (jit.fuser("fuser1"), jit.optimized_execution(False), jit.strict_fusion()):
    with block:
        show("block", lambda: double(x).tolist())
show("script function", lambda: jit.ScriptFunction())
show("errors", lambda: [[c.__name__ for c in e.__mro__] for e in (jit.Error, jit.TracerWarning, jit.TracingCheckError)])
show("error", lambda: str(jit.TracingCheckError("graphs", "values", "more")))
show("error", lambda: str(jit.TracingCheckError(None, None)))
show("tracer warnings", lambda: jit.TracerWarning.ignore_lib_warnings())
show("load", lambda: jit.load("/no/such/file"))
show("load", lambda: jit.load("/"))
show("freeze", lambda: jit.freeze(module))
show("freeze", lambda: jit.freeze(scripted.train()))
show("optimize", lambda: jit.optimize_for_inference(module))
chosen = internal.boolean_dispatch("flag", 1, False, lambda x, flag=False: "t", lambda x, flag=False: "f", "m", "n")
show("dispatch", lambda: [chosen(1), chosen(1, True), chosen(1, flag=True), chosen.__name__, chosen.__module__])
show("broadcasting", lambda: internal.BroadcastingList2[int])

values = [1, 1.5, "a", None, x, [], [1], [1, "a"], [[1], []], [None, 2], {}, {"a": 1}, {1: [2]}, (), (1,), (1, "a"), (1, 2, 3)]
kinds = [
    int, str, torch.Tensor, List[int], list[int], List[List[int]], List[Optional[int]], Dict[str, int], dict[int, list[int]],
    Tuple[int], Tuple[int, str], Optional[int], Union[int, List[int]], int | str, (int, List[int]), (List[int], Dict[str, int]),
    List, list, Dict, Tuple, Optional[List[str]],
]
for kind in kinds:
    for value in values:
        show(f"isinstance {value!r:.20} {kind}", lambda: jit.isinstance(value, kind))

from torch.jit._script import ScriptModule
from torch.jit._trace import TracedModule
show("submodules", lambda: [ScriptModule is jit.ScriptModule, TracedModule is jit.TracedModule])
for name in ("script", "trace", "trace_module", "freeze", "save", "load", "fork", "ignore", "unused", "isinstance", "set_fusion_strategy"):
    show(name, lambda: list(inspect.signature(getattr(jit, name)).parameters))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jit") / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*command: str) -> list[str]:
    env = os.environ | {"PYTORCH_JIT": "0", "PYTHONPATH": str(Path(torch.__file__).parents[1])}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_jit_agrees_with_pytorch_without_its_compiler(program: Path) -> None:
    expected = run(str(program))
    assert len(expected) > 400
    assert run("-m", "flambeau", "run", "--races", "off", str(program)) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "advice"),
    [
        ("save", (None, "file"), "state_dict"),
        ("load", (b"",), "state_dict"),
        ("freeze", (torch.jit.ScriptModule().eval(),), "no graph to freeze"),
        ("optimize_for_inference", (torch.jit.ScriptModule(),), "Use the module as it is"),
        ("run_frozen_optimizations", (None,), "Use the module as it is"),
        ("export_opnames", (None,), "lists no operators"),
        ("CompilationUnit", ("def f(x): return x\n",), "Write the functions in Python"),
    ],
)
def test_what_needs_a_compiler_raises(name: str, arguments: tuple[object, ...], advice: str) -> None:
    with pytest.raises(torch.NotSupportedError, match=advice):
        getattr(torch.jit, name)(*arguments)
