"""`torch.compile`: checks its arguments as PyTorch does and returns a callable that collects launches as it runs.

# Note [Compiled functions run eagerly]
Problem: Programs call `torch.compile` for speed, and expect the results of eager code.
Rule: A compiled function runs its Python code at each call. With the backend "inductor" its launches of pointwise
operators are collected and issued as fused kernels: see Note [Deferred launches] in runtime/hooks/launch_deferral.py.
Why: There is nothing to guard and nothing to recompile. Control flow, side effects and errors are those of eager code.
Consequences: All stances but "force_eager" do this. With CUDA graphs ("reduce-overhead", "max-autotune", the backend
"cudagraphs") functions are captured and replayed: see Note [Calls of replayed functions] in
nn/replay/replayed_function.py. Backends of the program receive graphs: see Note [Graphs for backends] in
fx/backend_graphs.py. Other backends run eagerly. `torch.compiler.is_compiling()` is False.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Sized
from contextlib import nullcontext
from typing import Any, NamedTuple

from flambeau.nn.compile_options import Backend, compiler_config, get_default_backend, lookup_backend
from flambeau.nn.modules.module import Module
from flambeau.nn.modules.module_hooks import everywhere

_OWN_ATTRIBUTES = frozenset(
    {
        "_orig_mod", "dynamo_ctx", "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id", "get_compiler_config",
        "forward", "_forward", "__dict__", "named_children_walk", "_super_module_initialized",
    }
)  # fmt: skip
_GRAPHS = "flambeau.fx.backend_graphs"  # imported only for backends of the program
STANCES = (
    "default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile",
)  # fmt: skip


class DynamoStance(NamedTuple):
    """The arguments of `torch.compiler.set_stance`."""

    stance: str = "default"
    skip_guard_eval_unsafe: bool = False
    backend: str | Backend | None = None


class _StanceInUse:
    """The stance of this process."""

    stance = DynamoStance()


def exchange_stance(stance: DynamoStance) -> DynamoStance:
    """Set the stance and return the previous one."""
    before, _StanceInUse.stance = _StanceInUse.stance, stance
    return before


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """Return a callable that runs `model` and fuses its launches; see Note [Compiled functions run eagerly].

    Args:
        model: A function, method, module or class. Without it, the result is a decorator.
        fullgraph: With a backend of the program, True makes a function that no graph can stand for an error. The
            default backend needs no graphs.
        dynamic: In PyTorch, whether code for variable sizes is generated. No effect here.
        backend: The name of a backend, or a function that receives a GraphModule and a list of tensors and returns the
            function to run. PyTorch's other names run functions eagerly.
        mode: The name of a set of options: "default", "reduce-overhead" (replay CUDA graphs), "max-autotune" (the
            same), "max-autotune-no-cudagraphs" or "lite".
        options: Settings of `torch._inductor.config` by name. "triton.cudagraphs" selects CUDA graphs, and
            `verify_every=n` compares every n-th replay with the Python code.
        name: The name of the compiled region. No effect here.
        disable: If True, `model` itself is returned.
        recompile_limit: The number of captures of a function that replays CUDA graphs.
        isolate_recompiles: In PyTorch, whether these compilations are counted separately. No effect here.
        shapes_spec: In PyTorch, which sizes are variable. No effect here.

    Raises:
        RuntimeError: If both mode and options are given, or if one of them is unknown or has the wrong type.
        torch._dynamo.exc.InvalidBackend: If the backend is the name of none.
        AssertionError: If `model` is not callable, or `dynamic` is neither a bool nor None.
    """
    arguments = {key: value for key, value in locals().items() if key != "model"}
    if model is None:
        return functools.partial(_decorate, arguments=arguments)
    if mode is None and options is None:
        mode = "default"
    backend = get_default_backend() if backend is None else backend
    config = compiler_config(backend, mode, options)
    if disable or os.environ.get("TORCHDYNAMO_DISABLE", "") == "1":
        return NullDecorator()(model)
    context = CompileContext(backend, config, fullgraph, dynamic)
    context.capture_limit = recompile_limit
    return context(model)


def _decorate(model: Any, arguments: dict[str, Any]) -> Any:
    if model is None:
        raise RuntimeError("Model can't be None")
    return compile(model, **arguments)


def find_innermost(fn: Any) -> Any:
    """Return the function or module that a compiled or disabled one runs; other objects unchanged."""
    while (
        hasattr(fn, "_torchdynamo_orig_callable") and getattr(fn, "_torchdynamo_wrapper_id", None) == id(fn)
    ):  # fmt: skip
        fn = fn._torchdynamo_orig_callable
    return fn


class NullDecorator(nullcontext):  # type: ignore[type-arg]
    """A decorator that returns the function itself: `torch.compile(disable=True)`."""

    def __call__(self, fn: Any) -> Any:
        _check_callable(fn)
        return fn


class CompileContext:
    """A decorator and context manager with the arguments of one call of `torch.compile`."""

    def __init__(
        self,
        backend: str | Backend | None = None,
        config: dict[str, Any] | None = None,
        fullgraph: bool = False,
        dynamic: bool | None = None,
    ) -> None:
        if dynamic is not None and not isinstance(dynamic, bool):
            raise AssertionError(f"Expected enable to be a bool, got {type(dynamic)}")
        self.backend = backend
        self.compiler_config = config
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.capture_limit: int | None = None

    def get_compiler_config(self) -> dict[str, Any] | None:
        """Return the settings that PyTorch's default compiler would use."""
        return self.compiler_config

    def __enter__(self) -> None:
        raise RuntimeError(
            "torch._dynamo.optimize(...) is used with a context manager. Please refer to "
            "https://pytorch.org/tutorials/intermediate/torch_compile_tutorial.html to use "
            "torch._dynamo.optimize(...) as an annotation/decorator. "
        )

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, fn: Any) -> Any:
        fn = find_innermost(fn)
        if isinstance(fn, Module):
            return self._wrap_module(fn)
        if inspect.isclass(fn):
            return self._wrap_class(fn)
        _check_callable(fn)
        return self._wrap_function(fn)

    def _compiles(self) -> bool:
        """Return True if calls are compiled. Other backends of PyTorch run functions eagerly."""
        return (
            (self.backend in ("inductor", "cudagraphs") or self._own_backend() is not None)
            and _StanceInUse.stance.stance != "force_eager"
            and (os.environ.get("FLAMBEAU_COMPILE", "on") != "off")
        )

    def _wrap_module(self, module: Module) -> OptimizedModule:
        wrapper = OptimizedModule(module, self)
        wrapper._torchdynamo_orig_callable = module.forward
        wrapper._torchdynamo_wrapper_id = id(wrapper)
        if hasattr(wrapper, "get_compiler_config"):
            raise AssertionError("new_mod already has a get_compiler_config attribute")
        wrapper.get_compiler_config = self.get_compiler_config
        return wrapper

    def _wrap_class(self, cls: Any) -> Any:
        cls.__call__ = self(cls.__call__)
        if issubclass(cls, Module):
            cls._call_impl = self(cls._call_impl)
        return cls

    def _own_backend(self) -> Backend | None:
        """Return the program's function that compiles graphs; None for PyTorch's backends."""
        backend = None if self.backend is None else lookup_backend(self.backend)
        return backend if callable(backend) else None

    def _compile_graphs(self, fn: Any) -> Any:
        """Return a function that runs what the program's backend returns; None without such a backend."""
        backend = self._own_backend()
        return backend and importlib.import_module(_GRAPHS).BackendFunction(fn, backend, self.fullgraph)

    def _replays(self) -> bool:
        """Return True if calls are captured into CUDA graphs."""
        return self.backend == "cudagraphs" or bool((self.compiler_config or {}).get("triton.cudagraphs"))

    def _wrap_function(self, fn: Any) -> Any:
        replayed = _load_replay().ReplayedFunction(fn, self) if self._replays() else self._compile_graphs(fn)

        @functools.wraps(fn)
        def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
            if _StanceInUse.stance.stance not in STANCES:
                raise RuntimeError(f"invalid torch.compile stance '{_StanceInUse.stance}'")
            if not self._compiles():
                return fn(*args, **kwargs)
            if replayed is not None:
                return replayed(*args, **kwargs)
            with _load_collecting().CollectedLaunches():
                return fn(*args, **kwargs)

        _mark(compile_wrapper, fn)
        compile_wrapper._torchdynamo_inline = fn  # type: ignore[attr-defined]
        compile_wrapper.get_compiler_config = self.get_compiler_config  # type: ignore[attr-defined]
        compile_wrapper._flambeau_compiled = replayed  # type: ignore[attr-defined]
        return compile_wrapper


class DisableContext(CompileContext):
    """The decorator of `torch.compiler.disable`."""

    def __init__(self, msg: str | None = None, wrapping: bool = True, recursive: bool = True) -> None:
        super().__init__()
        self.msg = msg
        self.wrapping = wrapping
        self.recursive = recursive

    def __call__(self, fn: Any) -> Any:
        if self.recursive:
            return super().__call__(fn)
        fn = find_innermost(fn)
        if not callable(fn):
            raise AssertionError("fn must be callable")
        return self._wrap_function(fn)

    def _wrap_module(self, module: Module) -> OptimizedModule:
        wrapper = OptimizedModule(module, self)
        wrapper._torchdynamo_orig_callable = module.forward
        wrapper._torchdynamo_wrapper_id = id(wrapper)
        return wrapper

    def _wrap_class(self, cls: Any) -> Any:
        cls.__init__ = self(cls.__init__)
        return super()._wrap_class(cls)

    def _wrap_function(self, fn: Any) -> Any:
        def run_disabled(*args: Any, **kwargs: Any) -> Any:
            with _load_collecting().eager_launches():
                return fn(*args, **kwargs)

        wrapper: Any = functools.wraps(fn)(run_disabled) if self.wrapping else run_disabled
        wrapper._torchdynamo_disable = True
        wrapper._torchdynamo_disable_msg = self.msg
        wrapper._torchdynamo_disable_recursive = self.recursive
        _mark(wrapper, fn)
        return wrapper


def _load_collecting() -> Any:
    """Return the module that collects launches, which programs without compiled functions do not load."""
    return importlib.import_module("flambeau.tensor.fusion.collecting")


def _load_replay() -> Any:
    """Return the module that replays functions, which only programs with such functions load."""
    return importlib.import_module("flambeau.nn.replay.replayed_function")


def _check_callable(fn: object) -> None:
    if not callable(fn):
        raise AssertionError(f"A callable function is expected, but {type(fn)} is provided.")


def _mark(wrapper: Any, fn: Any) -> None:
    wrapper._torchdynamo_orig_callable = fn
    wrapper._torchdynamo_wrapper_id = id(wrapper)


class OptimizedModule(Module):
    """A compiled module, which has the original one as its submodule `_orig_mod` and forwards attributes to it."""

    _torchdynamo_orig_callable: Callable[..., Any]
    _torchdynamo_wrapper_id: int
    get_compiler_config: Callable[[], Any]

    _opt_mod_attributes = set(_OWN_ATTRIBUTES)

    def __init__(self, mod: Module, dynamo_ctx: CompileContext) -> None:
        object.__setattr__(self, "_orig_mod", mod)  # before anything reads an attribute of this module
        self._super_module_initialized = False
        super().__init__()
        self._super_module_initialized = True
        del self.__dict__["training"]  # a property of this class
        self._orig_mod = mod
        self.dynamo_ctx = dynamo_ctx
        self._initialize()

    def _initialize(self) -> None:
        self.forward = self.dynamo_ctx(self._orig_mod.__call__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(everywhere.around_calls):
            warnings.warn(
                "Using `torch.compile(module)` when there are global hooks on modules (e.g., from "
                "`register_module_forward_hook`); this will cause the hooks to fire an extra time for the "
                "`OptimizedModule` created by `torch.compile(module)`. If this causes undesired behavior, please try "
                "using `module.compile()`, or use the per-module hooks instead",
                stacklevel=2,
            )
        return super().__call__(*args, **kwargs)

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.__class__, (self._orig_mod, self.dynamo_ctx))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("forward", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._initialize()

    @property
    def training(self) -> bool:  # type: ignore[override]
        """Return True in training mode, as the original module says."""
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        if self._super_module_initialized:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in _OWN_ATTRIBUTES:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if hasattr(type(self), name) or name in _OWN_ATTRIBUTES:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        names = list(self._orig_mod.__dir__())
        return names + [name for name in super().__dir__() if name not in names]


compile.__module__ = "flambeau"
for _class in (CompileContext, DisableContext, OptimizedModule):
    _class.__module__ = "flambeau._dynamo.eval_frame"  # PyTorch's place, for pickles
