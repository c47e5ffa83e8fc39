# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.jit."""


from typing import Any, NoReturn

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from flambeau.distributed.future import Future
class Error(Exception):
    ...
class CompilationUnit:

    def __init__(self, lang: str | None=..., _frames_up: int=...) -> None:
        ...
def annotate(the_type: Any, the_value: Any) -> Any:
    ...
def Attribute(value: Any, type: Any) -> Any:
    ...
def isinstance(obj: object, target_type: Any) -> bool:
    ...
def script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    ...
def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    ...
def wait(future: Future[Any]) -> Any:
    ...
class strict_fusion:

    def __enter__(self) -> None:
        ...

    def __exit__(self, *exception: object) -> None:
        ...
def set_fusion_strategy(strategy: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    ...
def enable_onednn_fusion(enabled: bool) -> None:
    ...
def onednn_fusion_enabled() -> bool:
    ...
@contextmanager
def fuser(name: str) -> Iterator[None]:
    ...
@contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    ...
def freeze(mod: Any, preserved_attrs: list[str] | None=..., optimize_numerics: bool=...) -> NoReturn:
    ...
def optimize_for_inference(mod: Any, other_methods: list[str] | None=...) -> NoReturn:
    ...
def run_frozen_optimizations(mod: Any, optimize_numerics: bool=..., preserved_methods: list[str] | None=...) -> NoReturn:
    ...
def export_opnames(m: Any) -> NoReturn:
    ...
def save(m: Any, f: Any, _extra_files: dict[str, Any] | None=...) -> NoReturn:
    ...
def load(f: Any, map_location: Any=..., _extra_files: dict[str, Any] | None=..., _restore_shapes: bool=...) -> NoReturn:
    ...
from flambeau.distributed.future import Future as Future
from flambeau.core.errors import NotSupportedError as NotSupportedError
from flambeau.jit._script import RecursiveScriptModule as RecursiveScriptModule
from flambeau.jit._script import ScriptFunction as ScriptFunction
from flambeau.jit._script import ScriptModule as ScriptModule
from flambeau.jit._script import ScriptWarning as ScriptWarning
from flambeau.jit._trace import TopLevelTracedModule as TopLevelTracedModule
from flambeau.jit._trace import TracedModule as TracedModule
from flambeau.jit._trace import TracerWarning as TracerWarning
from flambeau.jit._trace import TracingCheckError as TracingCheckError
from flambeau.jit._internal import export as export
from flambeau.jit._internal import ignore as ignore
from flambeau.jit._script import interface as interface
from flambeau.jit._internal import is_scripting as is_scripting
from flambeau.jit._trace import is_tracing as is_tracing
from flambeau.jit._script import script as script
from flambeau.jit._script import script_method as script_method
from flambeau.jit._trace import trace as trace
from flambeau.jit._trace import trace_module as trace_module
from flambeau.jit._internal import unused as unused

Final: Any
