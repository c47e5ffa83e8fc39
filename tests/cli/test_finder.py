"""`import torch` is Flambeau under `flambeau run` and in what it starts, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.util import find_spec

import pytest
from cli.cli_kit import environment, flambeau_run, program

import flambeau


def python(folder, text, **env):
    """A script under plain Python."""
    command = [sys.executable, str(program(folder, text))]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment(**env))


def test_the_modules_are_the_same_objects(tmp_path):
    script = program(
        tmp_path,
        """
        import torch, torch.cuda, torch.backends.cuda, flambeau
        from torch.cuda import Stream
        import torch.cuda.memory as memory
        assert torch is flambeau
        assert torch.cuda is flambeau.cuda and torch.backends.cuda is flambeau.backends.cuda
        assert memory is flambeau.cuda.memory and Stream is flambeau.cuda.Stream
        import importlib.util, sys
        assert sys.modules['torch.cuda'] is sys.modules['flambeau.cuda']
        assert flambeau.__spec__.name == 'flambeau' and flambeau.cuda.__spec__.name == 'flambeau.cuda'
        print('same')
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert (done.out, done.err) == ("same\n", "")


def test_importing_a_module_hides_no_function_of_its_name(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        from torch.nn.parallel.data_parallel import DataParallel
        import torch.nn.parallel.replicate
        assert DataParallel is torch.nn.DataParallel
        print(torch.nn.parallel.data_parallel.__name__, torch.nn.parallel.replicate.__name__)
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert (done.out, done.err) == ("data_parallel replicate\n", "")


@pytest.mark.parametrize(
    "line, error",
    [
        ("torch.nothing", "AttributeError: module 'torch' has no attribute 'nothing': Flambeau lacks it"),
        (
            "torch.cuda.nothing",
            "AttributeError: module 'torch.cuda' has no attribute 'nothing': Flambeau lacks it",
        ),
        ("torch.ones(1).nothing", "AttributeError: 'Tensor' object has no attribute 'nothing'"),
        ("import torch.nothing", "ModuleNotFoundError: No module named 'torch.nothing': `torch` is Flambeau"),
        ("from torch import nothing", "ImportError: cannot import name 'nothing' from"),
        ("import torchvision", "ModuleNotFoundError: No module named 'torchvision'"),
        (
            "torch.ops.torchvision.nms",
            "AttributeError: '_OpNamespace' 'torchvision' object has no attribute 'nms'",
        ),
        (
            "torch.ops.load_library('_C.so')",
            "OSError: Could not load this library: _C.so. Its operators need PyTorch's",
        ),
        ("from torch._C import x", "ImportError: cannot import name 'x' from"),
        (
            "from torch.utils.cpp_extension import load\nload('extension', ['extension.cpp'])",
            "torch.NotSupportedError: torch.utils.cpp_extension.load can be imported but not used",
        ),
    ],
)
def test_what_is_missing_says_that_flambeau_lacks_it(tmp_path, line, error):
    done = flambeau_run(tmp_path, "--quiet", program(tmp_path, f"import torch\n{line}\n"))
    assert done.status == 1
    assert done.err.splitlines()[-1].startswith(error)


def test_absent_packages_look_absent(tmp_path):
    text = """
        from importlib.util import find_spec
        print([n for n in ("torchvision", "torchaudio", "triton", "deepspeed", "apex", "xformers") if find_spec(n)])
        """
    installed = [name for name in ("triton",) if find_spec(name)]  # PyTorch's builds with CUDA bring it
    assert flambeau_run(tmp_path, "--quiet", program(tmp_path, text)).out == f"{installed}\n"


EXTENSION = """
#include <Python.h>
extern int from_pytorch(void);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", 0, -1, 0};
PyMODINIT_FUNC PyInit_NAME(void) { return from_pytorch() ? PyModule_Create(&module) : 0; }
"""


def build_extension(folder, name, library):
    """Build an extension module that needs `library`, which is not there when the module is loaded."""
    (folder / "library.c").write_text("int from_pytorch(void) { return 1; }")
    (folder / "module.c").write_text(EXTENSION.replace("NAME", name))
    needed, include = folder / library, sysconfig.get_paths()["include"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", needed, folder / "library.c"], check=True)
    module = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            f"-I{include}",
            "-o",
            module,
            folder / "module.c",
            f"-L{folder}",
            f"-l:{library}",
        ],
        check=True,
    )
    needed.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="the texts of Linux's dynamic linker")
@pytest.mark.parametrize("library", ["libc10.so", "libtorch_python.so", "libother.so"])
def test_extensions_that_need_pytorch_say_so(tmp_path, library):
    build_extension(tmp_path, "native", library)
    done = flambeau_run(tmp_path, "--quiet", program(tmp_path, "import native"))
    pytorch = "ImportError: native is built on PyTorch's C++ library, which is not here"
    expected = f"ImportError: {library}: cannot open" if library == "libother.so" else pytorch
    assert done.status == 1 and done.err.splitlines()[-1].startswith(expected)


def test_the_distribution_torch_is_flambeau(tmp_path):
    """Also in children, before they import torch."""
    ask = (
        "import importlib.metadata as m; d = m.distribution('torch'); "
        "print(m.version('torch'), d.metadata['Name'], set(m.packages_distributions()['torch']))"
    )
    text = f"""
        import subprocess, sys
        ask = {ask!r}
        exec(ask)
        print(subprocess.check_output([sys.executable, "-c", ask], text=True), end="")
        """
    line = f"{flambeau.__version__} torch {{'torch'}}"
    assert flambeau_run(tmp_path, "--quiet", program(tmp_path, text)).out == f"{line}\n{line}\n"


def test_hasattr_of_what_is_missing_is_false(tmp_path):
    text = "import torch; print(hasattr(torch, 'nothing'), hasattr(torch.cuda, 'nothing'), hasattr(torch, 'ones'))"
    assert flambeau_run(tmp_path, "--quiet", program(tmp_path, text)).out == "False False True\n"


def test_spawned_children_see_flambeau(tmp_path):
    script = program(
        tmp_path,
        """
        import multiprocessing
        import torch

        def work(queue):
            queue.put((torch.__name__, torch.cuda.device_count(), torch.ones(3, device='cuda').sum().item()))

        if __name__ == '__main__':
            context = multiprocessing.get_context('spawn')
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get())
            child.join()
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", "--devices", 3, script)
    assert done.out == "('torch', 3, 3.0)\n", done.err


def test_child_interpreters_see_flambeau(tmp_path):
    script = program(
        tmp_path,
        """
        import subprocess, sys
        code = "import torch, torch.cuda as c, flambeau as f; print(torch is f, c is f.cuda, c.device_count())"
        print(subprocess.check_output([sys.executable, '-c', code], text=True), end='')
        """,
    )
    assert flambeau_run(tmp_path, "--quiet", script).out == "True True 2\n"


def test_real_pytorch_is_importable_beside_flambeau(tmp_path):
    pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    done = python(
        tmp_path,
        "import flambeau, torch; print(torch is flambeau, torch.ones(2).sum().item(), hasattr(torch, '_C'))",
    )
    assert done.stdout == "False 2.0 True\n", done.stderr


def test_an_installed_finder_refuses_to_mix_with_real_pytorch(tmp_path):
    pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    done = python(
        tmp_path, "import torch\nfrom flambeau.cli import import_hook as finder\nfinder.install()\n"
    )
    assert "RuntimeError: `torch` is imported already" in done.stderr


def test_plain_python_gets_no_virtual_gpus(tmp_path):
    done = python(
        tmp_path, "import flambeau as torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    )
    assert done.stdout == "False 0\n", done.stderr


@pytest.mark.parametrize("name", ["FLAMBEAU_VIRTUAL_DEVICES", "FLAMBEAU_VIRTUAL_PROFILE"])
def test_plain_python_with_the_environment_gets_them(tmp_path, name):
    value = {"FLAMBEAU_VIRTUAL_DEVICES": "2", "FLAMBEAU_VIRTUAL_PROFILE": "h100"}[name]
    done = python(tmp_path, "import flambeau as torch; print(torch.cuda.device_count())", **{name: value})
    assert done.stdout == "2\n", done.stderr
