"""The choice of NVIDIA's libraries and their workspace sizes, as far as programs can read or change it."""

from __future__ import annotations

import enum
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.driver_registry import product_workspace


class _BlasBackend(enum.Enum):
    """Libraries of matrix products."""

    Default = 0
    Cublas = 1
    Cublaslt = 2
    Ck = 3


class _LinalgBackend(enum.Enum):
    """Libraries of linear algebra."""

    Default = 0
    Cusolver = 1
    Magma = 2


_BLAS = {
    "default": _BlasBackend.Default, "cublas": _BlasBackend.Cublas, "hipblas": _BlasBackend.Cublas,
    "cublaslt": _BlasBackend.Cublaslt, "hipblaslt": _BlasBackend.Cublaslt, "ck": _BlasBackend.Ck,
}  # fmt: skip
_LINALG = {
    "default": _LinalgBackend.Default,
    "cusolver": _LinalgBackend.Cusolver,
    "magma": _LinalgBackend.Magma,
}


def preferred_blas_library(backend: str | _BlasBackend | None = None) -> _BlasBackend:
    """Return the library of matrix products on real GPUs, cuBLASLt. `backend` may be "default", "cublaslt" or None.

    Raises:
        RuntimeError: If `backend` is not the name of a library.
        NotSupportedError: For any other library.
    """
    return _resolve_preference(backend, _BLAS, _BlasBackend.Cublaslt)  # type: ignore[no-any-return]


def preferred_linalg_library(backend: str | _LinalgBackend | None = None) -> _LinalgBackend:
    """Return the library of linear algebra on real GPUs, cuSOLVER. `backend` may be "default", "cusolver" or None.

    Raises:
        RuntimeError: If `backend` is not the name of a library.
        NotSupportedError: For any other library.
    """
    return _resolve_preference(backend, _LINALG, _LinalgBackend.Cusolver)  # type: ignore[no-any-return]


def _resolve_preference(choice: Any, names: dict[str, Any], used: Any) -> Any:
    if isinstance(choice, str):
        if choice not in names:
            raise RuntimeError(f"Unknown input value. Choose from: {', '.join(names)}.")
        choice = names[choice]
    if choice is None or choice is used or choice is type(used).Default:
        return used
    if not isinstance(choice, type(used)):
        raise RuntimeError("Unknown input value type.")
    raise NotSupportedError(f"{choice} is not there: real GPUs compute by {used}, virtual ones by NumPy")


def cublas_workspace_size(size: int | None = None) -> int:
    """Return the bytes of workspace of matrix products on a real GPU, for each stream: always 32 MiB.

    Results depend neither on it nor on CUBLAS_WORKSPACE_CONFIG.

    Raises:
        NotSupportedError: For any other `size`.
    """
    fixed = product_workspace()
    if size is not None and size != fixed:
        raise NotSupportedError(f"the workspace of matrix products has {fixed} bytes a stream, not {size}")
    return fixed


def cublaslt_workspace_size(size: int | None = None) -> int:
    """Work like `cublas_workspace_size`: there is one workspace."""
    return cublas_workspace_size(size)


def blas_workspace_size(size: int | None = None, backend: str | _BlasBackend | None = None) -> int:
    """Work like `cublas_workspace_size`.

    Raises:
        RuntimeError: If `backend` is not a library's name, or has no workspace ("ck").
    """
    if isinstance(backend, str) and backend not in _BLAS:
        raise RuntimeError(f"Unknown backend string. Choose from: {', '.join(_BLAS)}.")
    found = _BLAS.get(backend, backend) if isinstance(backend, str) else backend
    if found is not None and not isinstance(found, _BlasBackend):
        raise RuntimeError("Unknown backend type.")
    if found is _BlasBackend.Ck:
        raise RuntimeError("CK backend does not use a workspace.")
    return cublas_workspace_size(size)
