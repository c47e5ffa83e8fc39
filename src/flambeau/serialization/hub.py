"""torch.hub: models that a folder's hubconf.py defines, and files of parameters downloaded to a cache.

Repositories are not downloaded: `source="local"` takes a folder that is there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import ContentTooShortError
from urllib.parse import urlparse

from flambeau.core.errors import NotSupportedError
from flambeau.core.files import replacing
from flambeau.core.public_names import explain_absent_names
from flambeau.serialization.checkpoint_files import load as _load_file

__all__ = ["download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir"]
explain_absent_names(globals(), "torch.hub")

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
_FOLDER: dict[str, str] = {}  # "folder" -> that of `set_dir`


def get_dir() -> str:
    """Return the folder of downloaded files: the one that `set_dir` chose, $TORCH_HOME/hub, or ~/.cache/torch/hub."""
    return _FOLDER.get("folder", os.path.join(_get_torch_home(), "hub"))


def _get_torch_home() -> str:
    cache = os.getenv("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.getenv("TORCH_HOME", os.path.join(cache, "torch")))


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set the folder of downloaded files."""
    _FOLDER["folder"] = os.path.expanduser(d)


def list(github: str, force_reload: bool = False, skip_validation: bool = False, trust_repo: Any = "check",
         verbose: bool = True) -> Any:  # fmt: skip
    """Raise NotSupportedError: repositories are not downloaded."""
    _refuse_download("list", github)


def help(github: str, model: str, force_reload: bool = False, skip_validation: bool = False,
         trust_repo: Any = "check") -> str | None:  # fmt: skip
    """Raise NotSupportedError: repositories are not downloaded."""
    _refuse_download("help", github)


def load(
    repo_or_dir: str | os.PathLike[str],
    model: str,
    *args: Any,
    source: str = "github",
    trust_repo: Any = "check",
    force_reload: bool = False,
    verbose: bool = True,
    skip_validation: bool = False,
    **kwargs: Any,
) -> Any:
    """Call an entry point of a folder's hubconf.py, and return its result.

    Args:
        repo_or_dir: The folder.
        model: The name of a function of its hubconf.py.
        args, kwargs: Arguments of that function.
        source: "local"; "github" is not supported.
        trust_repo, force_reload, verbose, skip_validation: About downloads; a folder does not use them.

    Raises:
        NotSupportedError: `source` is "github".
        RuntimeError: hubconf.py lacks the function, or packages that it names in `dependencies` are missing.
        ValueError: `source` is neither.
    """
    source = source.lower()
    if source not in ("github", "local"):
        raise ValueError(f'Unknown source: "{source}". Allowed values: "github" | "local".')
    if source == "github":
        _refuse_download("load", repo_or_dir)
    return _entry_of(_hubconf_of(Path(repo_or_dir)), model)(*args, **kwargs)


def _refuse_download(function: str, repository: Any) -> None:
    raise NotSupportedError(
        f"torch.hub.{function}({str(repository)!r}): Flambeau downloads no repositories. Clone it, and call "
        'torch.hub.load(folder, model, source="local").'
    )


def _hubconf_of(folder: Path) -> ModuleType:
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("hubconf.py", folder / "hubconf.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    missing = [name for name in getattr(module, "dependencies", ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}")
    return module


def _entry_of(module: ModuleType, model: str) -> Callable[..., Any]:
    if not isinstance(model, str):
        raise ValueError("Invalid input: model should be a string of function name")
    found = getattr(module, model, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return found


def download_url_to_file(
    url: str, dst: str | os.PathLike[str], hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Download a file, whole or not at all.

    Args:
        url: Its address.
        dst: The path of the copy.
        hash_prefix: What its SHA-256 begins with, in hexadecimal; None if it may be anything.
        progress: Accepted as in PyTorch; no progress is shown.

    Raises:
        RuntimeError: The hash begins otherwise.
        URLError: The address cannot be read, or the connection ends early.
    """
    digest, nbytes = hashlib.sha256(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "torch.hub"})
    with urllib.request.urlopen(request) as answer, replacing(Path(dst).expanduser()) as file:
        while chunk := answer.read(1 << 20):
            file.write(chunk)
            digest.update(chunk)
            nbytes += len(chunk)
        announced = answer.headers.get("Content-Length")
        if announced is not None and nbytes != int(announced):  # the connection was cut
            raise ContentTooShortError(f"{url}: {nbytes} bytes arrived of {announced}", None)  # type: ignore[arg-type]
        if hash_prefix is not None and not digest.hexdigest().startswith(hash_prefix):
            raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{digest.hexdigest()}")')


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> dict[str, Any]:
    """Return the checkpoint at an address, downloaded to a cache if it is not there yet.

    Args:
        url: The address.
        model_dir: The folder of the cache; `get_dir()`/checkpoints if None.
        map_location, weights_only: As of `torch.load`.
        progress: As of `download_url_to_file`.
        check_hash: True if the name of the file states its hash: `name-0123abcd.pth`.
        file_name: The name of the copy; that of the address if None.
    """
    folder = Path(model_dir or os.path.join(get_dir(), "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or os.path.basename(urlparse(url).path)
    cached = folder / name
    if not cached.exists():
        stated = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, cached, stated.group(1) if stated else None, progress)
    state: dict[str, Any] = _load_file(cached, map_location=map_location, weights_only=weights_only)
    return state
