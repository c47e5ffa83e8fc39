"""torch.hub: folders with a hubconf.py, and files from addresses, beside PyTorch."""

from __future__ import annotations

import hashlib
import stat
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

import flambeau

CONF = """
import torch
dependencies = ["math"]
def double(x, times=2): return x * times
"""


@pytest.mark.parametrize("m", [flambeau, torch])
def test_entry_points_of_a_folder(m, tmp_path):
    (tmp_path / "hubconf.py").write_text(CONF)
    assert m.hub.load(tmp_path, "double", 3, source="local", times=4) == 12
    with pytest.raises(RuntimeError, match="Cannot find callable other in hubconf"):
        m.hub.load(tmp_path, "other", source="local")
    (tmp_path / "hubconf.py").write_text(CONF.replace("math", "no_such_package"))
    with pytest.raises(RuntimeError, match="Missing dependencies: no_such_package"):
        m.hub.load(tmp_path, "double", 3, source="local")
    with pytest.raises(ValueError, match="Unknown source"):
        m.hub.load(tmp_path, "double", 3, source="web")


def test_repositories_are_not_downloaded(tmp_path):
    with pytest.raises(flambeau.NotSupportedError, match='source="local"'):
        flambeau.hub.load("pytorch/vision", "resnet18")


@pytest.mark.parametrize("m", [flambeau, torch])
def test_checkpoints_come_from_an_address_once(m, tmp_path):
    source = tmp_path / "weights.pth"
    m.save({"a": m.arange(3)}, source)
    prefix = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    stated = source.rename(tmp_path / f"weights-{prefix}.pth")
    before = m.hub.get_dir()
    m.hub.set_dir(str(tmp_path / "cache"))
    for _ in range(2):
        state = m.hub.load_state_dict_from_url(stated.as_uri(), check_hash=True, progress=False)
        assert state["a"].tolist() == [0, 1, 2]
        stated.unlink(missing_ok=True)  # the copy in the cache is read again
    m.hub.set_dir(before)
    assert [p.name for p in (tmp_path / "cache" / "checkpoints").iterdir()] == [stated.name]


@pytest.mark.parametrize("m", [flambeau, torch])
def test_a_wrong_hash_leaves_no_file(m, tmp_path):
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(RuntimeError, match="invalid hash value"):
        m.hub.download_url_to_file(
            (tmp_path / "source").as_uri(), tmp_path / "copy", "00000000", progress=False
        )
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


class Cutting(BaseHTTPRequestHandler):
    """Announces 100 bytes, and hangs up behind 10."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"x" * 10)

    def log_message(self, *args):
        pass


def test_a_cut_connection_leaves_the_old_file(tmp_path):
    (tmp_path / "copy").write_bytes(b"old")
    with HTTPServer(("127.0.0.1", 0), Cutting) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(urllib.error.ContentTooShortError, match="10 bytes arrived of 100"):
            flambeau.hub.download_url_to_file(f"http://127.0.0.1:{server.server_port}/", tmp_path / "copy")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("copy", b"old")]


def test_a_download_keeps_the_permissions_of_the_file(tmp_path):
    (tmp_path / "source").write_bytes(b"abc")
    (tmp_path / "copy").touch(0o640)
    flambeau.hub.download_url_to_file((tmp_path / "source").as_uri(), tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o640
    assert (tmp_path / "copy").read_bytes() == b"abc"
