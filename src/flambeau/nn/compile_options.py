"""Checks of `torch.compile`'s arguments, with the errors of PyTorch, and the table of its backends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from flambeau.nn.compiler_settings import settings_of

Backend = Callable[..., Any]

# PyTorch's backends and their tags. "inductor" and "cudagraphs" compile; all others run eagerly.
_NAMES = {
    "": ("cudagraphs", "inductor", "openxla", "tvm"),
    "debug": (
        "aot_eager", "aot_eager_decomp_partition", "aot_eager_decomp_partition_crossref",
        "aot_eager_decomp_partition_with_mode", "aot_eager_default_partitioner", "aot_ts",
        "dynamo_accuracy_minifier_backend", "dynamo_minifier_backend", "eager", "eager_debug", "eager_noexcept",
        "invoke_subgraph", "non_leaf_compile_error_TESTING_ONLY", "pre_dispatch_eager",
        "relu_accuracy_error_TESTING_ONLY", "relu_compile_error_TESTING_ONLY", "relu_runtime_error_TESTING_ONLY", "ts",
    ),
    "experimental": ("openxla_eval",),
}  # fmt: skip
_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "lite": {
        "fallback_by_default": True,
        "selective_decompose": True,
        "reorder_for_peak_memory": False,
        "reorder_for_compute_comm_overlap": False,
        "triton.reorder_for_reducing_graph_partitions": False,
        "use_pre_grad_passes": False,
        "use_joint_graph_passes": False,
        "use_post_grad_passes": False,
        "use_dce": False,
        "allow_buffer_reuse": False,
    },
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True, "coordinate_descent_tuning": True},
}


class TorchDynamoException(RuntimeError):
    """The base class of errors of the compiler."""


class InvalidBackend(TorchDynamoException):
    """The error of a backend name that is not registered."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Invalid backend: {name!r}, see `torch._dynamo.list_backends()` for available backends."
        )


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """Return the options that a mode of `torch.compile` selects; without a mode, those of all modes.

    Raises:
        RuntimeError: If there is no such mode.
    """
    if not mode:
        return {name: dict(settings) for name, settings in _MODES.items()}
    if mode not in _MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(_MODES)}")
    return dict(_MODES[mode])


def compiler_config(
    backend: str | Backend, mode: str | None, options: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Check the backend and its options, and return what `get_compiler_config()` of a compiled function returns.

    Raises:
        RuntimeError: If both mode and options are given, or if one of them is unknown or has the wrong type.
        InvalidBackend: If the backend is the name of none.
    """
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if backend != "inductor":
        lookup_backend(backend)
        return None
    changes = list_mode_options(mode) if mode else {}
    return settings_of("torch._inductor.config").copy() | changes | _check_options(options or {})


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    settings = settings_of("torch._inductor.config")
    known, changes = settings.copy(), {}
    for key, value in options.items():
        if key in ("guard_filter_fn", "use_aoti"):
            continue
        if key == "verify_every":
            changes[key] = _check_count(key, value)
            continue
        name = key.replace("-", "_")
        if name not in known:
            raise RuntimeError(f"Unexpected optimization option {key}, known options are {list(known)}")
        kind = settings.type_of(name)
        if kind is not None and not isinstance(value, kind):
            raise RuntimeError(
                f"Unexpected type of attr {key}, got {type(value).__name__} should be {type(known[name]).__name__}"
            )
        changes[name] = value
    return changes


def _check_count(key: str, value: Any) -> int:
    """Return the value of Flambeau's option for replayed functions, a number of replays."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RuntimeError(f"Unexpected type of attr {key}, got {type(value).__name__} should be int")
    if value < 0:
        raise RuntimeError(f"option {key} must not be negative, got {value}")
    return value


class CudagraphSteps:
    """The steps that the program marks by `torch.compiler.cudagraph_mark_step_begin`.

    Attributes:
        number: The number of marks; 0 if the program makes none, so that each call begins a step.
    """

    number = 0


# -- backends -----------------------------------------------------------------------------------------------------


class Backends:
    """The backends that `torch.compile` accepts by name, and the default one.

    Attributes:
        functions: Name -> function, of those that the program registered.
        default: The backend of calls that name none.
    """

    def __init__(self) -> None:
        self.functions: dict[str, Backend] = {}
        self.default: str | Backend = "inductor"

    def tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of each backend by name."""
        tags = {name: (tag,) if tag else () for tag, names in _NAMES.items() for name in names}
        tags |= {point.name: () for point in entry_points(group="torch_dynamo_backends")}
        return tags | {name: getattr(function, "_tags", ()) for name, function in self.functions.items()}


_backends = Backends()


def register_backend(
    compiler_fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> Callable[..., Any]:
    """Register a backend for `torch.compile(..., backend=name)`, as a decorator with or without arguments.

    It receives a GraphModule and a list of tensors, and returns the function to run.

    Args:
        compiler_fn: The function that compiles a graph.
        name: Its name; that of the function without one.
        tags: Categories such as "debug", which `list_backends` may exclude.

    Raises:
        AssertionError: If the backend is not callable or the name is taken.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(compiler_fn):
        raise AssertionError(f"compiler_fn must be callable, got {type(compiler_fn)}")
    name = name or compiler_fn.__name__
    if name in _backends.tags():
        raise AssertionError(f"duplicate name: {name}")
    _backends.functions[name] = compiler_fn
    compiler_fn._tags = tuple(tags)  # type: ignore[attr-defined]
    return compiler_fn


def lookup_backend(compiler_fn: str | Backend) -> str | Backend:
    """Return the function that is registered under a name; a backend that only PyTorch has as its name.

    Raises:
        InvalidBackend: If there is none.
    """
    if not isinstance(compiler_fn, str):
        return compiler_fn
    if compiler_fn not in _backends.tags():
        raise InvalidBackend(name=compiler_fn)
    return _backends.functions.get(compiler_fn, compiler_fn)


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Return the names that `torch.compile(..., backend=name)` accepts.

    Args:
        exclude_tags: Categories of backends to leave out.
    """
    excluded = set(exclude_tags or ())
    return sorted(name for name, tags in _backends.tags().items() if not excluded.intersection(tags))


def set_default_backend(backend: str | Backend | None) -> None:
    """Set the backend of `torch.compile` without the argument `backend`; None restores "inductor".

    Raises:
        TypeError: If it is neither a name nor callable.
    """
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise TypeError(f"backend must be a string or callable, got {type(backend)}")
    _backends.default = "inductor" if backend is None else backend


def get_default_backend() -> str | Backend:
    """Return the backend of `torch.compile` without the argument `backend`."""
    return _backends.default
