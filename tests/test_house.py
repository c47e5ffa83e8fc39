"""The rules of the house, from the imports themselves: who may import whom, which state may exist, notes, wrappers."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import words

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "flambeau"

# Lowest first. A room imports rooms below it only; rooms on one line never import each other.
ROOMS = [
    {"core"},
    {"driver.protocol"},
    {"driver.collective_rules", "driver.fused_boxes", "driver.row_shares"},
    {"driver.host", "driver.virtual", "driver.cuda"},
    {"driver.driver_registry"},
    {"observe"},
    {"runtime"},
    {"ops", "tape"},
    {"driver.host.kernels"},
    {"tensor"},
    {"autograd"},
    {"distributed"},
    {"nn"},
    {"optim"},
    {"data", "serialization", "amp", "distributed.optim", "_dynamo", "_inductor"},
    {"_library", "ao"},
    {
        "cuda",
        "backends",
        "compiler",
        "cpu",
        "distributions",
        "fft",
        "jit",
        "linalg",
        "signal",
        "sparse",
        "special",
        "utils",
        "multiprocessing",
        "profiler",
    },
    {"distributed.sharding", "_subclasses"},
    {"_aten"},
    {"func"},
    {"_functorch"},
    {"report"},
    {"top"},
    {"_C", "_prims_common"},
    {"fx"},
    {"testing"},
    {"cli"},
    {"shim"},
]
SHARDING = ("_checkpoint", "_composable", "_composable_state", "checkpoint", "fsdp")
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
# ops and tape never import each other; ops sees neither runtime nor observe: records name tensors' metas only.
OPS_MAY = {"core", "driver.protocol", "ops"}
GPU_PACKAGES = ("cuda.bindings", "cuda.core", "nvmath", "nccl", "cudnn", "nvtx")
NEVER = ("torch", "cupy", "jax")
# Each piece of mutable module state has one owner file, which docs/design.md names.
ROOMS_TABLE, STATE_TABLE = (
    "\n".join(line for line in part.splitlines() if line.startswith("|"))
    for part in re.split(r"^## ", (PACKAGE.parents[1] / "docs" / "design.md").read_text(), flags=re.M)[1:3]
)
STATE_OWNERS = set(re.findall(r"`([\w/]+\.py)`", STATE_TABLE))
CONTAINERS = {
    "dict",
    "list",
    "set",
    "OrderedDict",
    "defaultdict",
    "deque",
    "WeakValueDictionary",
    "WeakKeyDictionary",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(name: str) -> str:
    """The room of a module's dotted name."""
    parts = name.split(".")[1:]
    if parts == ["version"]:
        return "core"  # imports nothing
    if not parts:
        return "top"
    if parts[:2] == ["distributed", "optim"]:
        return "distributed.optim"  # PyTorch's place of what lies in optim
    if parts[:2] == ["distributed", "utils"] or (
        parts[0] == "distributed" and any(part in SHARDING for part in parts)
    ):
        return "distributed.sharding"  # wraps modules, so it lies above nn
    if parts[:3] == ["driver", "host", "kernels"]:
        return "driver.host.kernels"  # computes with what records define
    if parts[0] == "driver":
        return f"driver.{parts[1]}" if len(parts) > 1 else "driver.protocol"
    if parts[0] == "__main__":
        return "cli"
    return parts[0] if (PACKAGE / parts[0]).is_dir() else "top"


def name_of(path: Path) -> str:
    parts = ["flambeau", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [(name, node.lineno) for name in [imported_late(node.args[0])] if name]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            assert node.module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(n if is_module(n) else node.module, node.lineno) for n in names]
    return found


def imported_late(name: ast.expr) -> str:
    """Return what a call of import_module names; of an f-string, the part before its first field."""
    if isinstance(name, ast.JoinedStr):
        name = name.values[0]
    text = name.value if isinstance(name, ast.Constant) else ""
    return text.rstrip(".") if text != "flambeau." else ""


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    here = room_of(name_of(path))
    for name, line in imports_of(ast.parse(path.read_text())):
        where = f"{path.relative_to(PACKAGE)}:{line}"
        root = name.split(".")[0]
        if here == "shim" and root == "torch":
            continue  # by then `torch` is Flambeau
        assert root not in NEVER, f"{where} imports {name}: Flambeau never runs on another array library"
        if name.startswith(GPU_PACKAGES):
            assert here == "driver.cuda", f"{where} imports {name}: only driver/cuda names GPU packages"
        if root != "flambeau":
            continue
        there = room_of(name)
        if here == there or (here, there) == ("driver.protocol", "driver.host.kernels"):
            continue  # `host_body` imports what a record names by string
        below = sorted(r for r in LEVEL if LEVEL[r] < LEVEL[here])
        assert LEVEL[there] < LEVEL[here], f"{where}: {here} may not import {there}; rooms below are {below}"
        if here == "ops":
            assert there in OPS_MAY, f"{where}: ops may import {sorted(OPS_MAY)} only, not {there}"
        if there in ("driver.host", "driver.virtual", "driver.cuda") and here != "driver.driver_registry":
            pytest.fail(
                f"{where}: only driver/driver_registry.py names a driver, by string; {here} imports {there}"
            )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_function_level_import_of_flambeau(path: Path) -> None:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            stated = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
            inside = [n for node in stated for n, _ in imports_of(node) if n.split(".")[0] == "flambeau"]
            assert not inside, (
                f"{path.name}:{function.lineno} {function.name} imports {inside} to dodge a cycle"
            )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_global_statements_only_in_owner_files(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Global):
            assert relative in STATE_OWNERS, (
                f"{relative}:{node.lineno} rebinds module state; owners: {STATE_OWNERS}"
            )


WRITERS = {  # files that write what is no file of the program's: in place, or as long as it is there
    "cli/main.py", "core/files.py", "distributed/launching/workers.py", "distributed/stores/file_store.py", "serialization/archive.py",
}  # fmt: skip


def test_files_are_written_by_replacing_them() -> None:
    """Note [Whole files]: what opens a file to write it leaves half of it on a full disk."""
    found = set()
    for path in modules():
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
            given = [*call.args, *[key.value for key in call.keywords if key.arg == "mode"]]
            modes = [
                one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            opens = name in ("open", "fdopen") and any(
                re.fullmatch(r"[rbt]*[wax+][wax+bt]*", mode) for mode in modes
            )
            if opens or name in ("write_text", "write_bytes", "NamedTemporaryFile", "mkstemp", "tofile"):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == WRITERS


def new_containers(tree: ast.Module) -> list[str]:
    """Names at module level, constants aside, that begin as empty containers: what is filled as the program goes."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value, target = node.value, node.targets[0] if isinstance(node, ast.Assign) else node.target
            literal = isinstance(value, ast.Dict | ast.List) and not ast.unparse(value)[1:-1]
            call = isinstance(value, ast.Call) and not value.args and ast.unparse(value.func) in CONTAINERS
            if (literal or call) and not ast.unparse(target).isupper():
                found.append(ast.unparse(target))
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_level_containers_have_owners_in_the_design(path: Path) -> None:
    found = new_containers(ast.parse(path.read_text()))
    assert not found or path.relative_to(PACKAGE).as_posix() in STATE_OWNERS, (
        f'{found}: name what this is in docs/design.md, "Who owns state"'
    )


def test_the_design_names_what_is_there() -> None:
    assert sorted(STATE_OWNERS - {path.relative_to(PACKAGE).as_posix() for path in modules()}) == []
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in ROOMS_TABLE.splitlines())))
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"shim"}
    assert named == there, "the rooms of docs/design.md are not those of the tree"


PAGES = [*PACKAGE.parents[1].glob("*.md"), *PACKAGE.parents[1].glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_name_files_that_are_there(page: Path) -> None:
    """Links; files by their paths, in commands too; a name alone may lie in any folder, as its page says."""
    root, text = PACKAGE.parents[1], page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    folders = [root / folder for folder in ("src", "docs", "tests", "bench", "examples")]
    names = {path.name for folder in folders for path in folder.rglob("*.*")}
    names |= {path.name for path in root.glob("*.*")} | {"program.py", "profile.toml"}  # the reader's
    names |= set(
        re.findall(r'^```\w+ title="([\w.]+)"', text, flags=re.M)
    )  # that the page has its reader write
    named = re.findall(r"(?<![\w/.])((?:\w[\w-]*/)*\w[\w-]*\.(?:py|md|toml))\b", text)
    missing = [n for n in named if "/" in n and not any((place / n).exists() for place in (root, PACKAGE))]
    assert missing + [n for n in named if "/" not in n and n not in names] == []


def test_each_note_is_defined_once_and_each_reference_has_one() -> None:
    defined: dict[str, list[str]] = {}
    referenced: dict[str, str] = {}
    for path in modules():
        for line in path.read_text().splitlines():
            for title in re.findall(r"^\s*# Note \[(.+?)\]", line):
                defined.setdefault(title, []).append(path.name)
            for title in re.findall(r"[Ss]ee Note \[(.+?)\]", line):
                referenced[title] = path.name
    assert {t: f for t, f in defined.items() if len(f) > 1} == {}
    assert {t: f for t, f in referenced.items() if t not in defined} == {}


def test_every_wrapper_spells_out_every_driver_call() -> None:
    """A forwarder that used __getattr__ once hid a real race."""
    protocol = methods(PACKAGE / "driver" / "protocol.py", "Driver")
    forward = methods(PACKAGE / "observe" / "driver_proxy.py", "Forward")
    assert protocol - forward == set()
    for path in (PACKAGE / "observe").rglob("*.py"):
        if "(Forward" in (text := path.read_text()):
            assert "__getattr__(self" not in text, f"{path.name} forwards by __getattr__"


def methods(path: Path, name: str) -> set[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                f.name for f in node.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")
            }
    raise AssertionError(f"{path} defines no class {name}")


PYTORCH_FILES = {".", "nn/modules", "distributions"}  # one file for each of PyTorch's modules, under its name


@pytest.mark.parametrize(
    ("root", "larger"),
    [
        (PACKAGE, PYTORCH_FILES),
        (TESTS, set()),
        (PACKAGE.parents[1] / "bench", {"results"}),  # one file for each table of docs/performance.md
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_no_folder_holds_more_than_25_files(root: Path, larger: set[str]) -> None:
    folders = [root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    counts = {
        folder.relative_to(root).as_posix(): sum(path.is_file() for path in folder.iterdir())
        for folder in folders
    }
    assert {folder for folder, count in counts.items() if count > 25} == larger


MIRRORS = {  # module names that several folders have, each for its layer of one concept
    "activation": "functions as operators, functions and modules",
    "allocations": "the memory of each driver",
    "attention": "as operator, kernel, host body and function",
    "attention_gradients": "as operator and kernel",
    "capture": "of each driver",
    "collate": "batches of samples, and PyTorch's module of their rules",
    "collectives": "as functions, and as virtual GPUs run them",
    "convolution": "as operator, kernel, host body and function",
    "creation": "of tensors, as operators and functions",
    "cudnn": "the library, and PyTorch's flags of it",
    "dataset": "as defined, and PyTorch's module of the names",
    "device": "as a value, and of each driver",
    "distance": "as functions and modules",
    "dlpack": "the exchange, and PyTorch's module of it",
    "doctor": "a command, and what it calls",
    "driver": "each driver's",
    "dropout": "as operators, functions and modules",
    "errors": "exceptions of all packages, and PyTorch's module of one",
    "experimental": "PyTorch's module under its names of two versions",
    "explore": "a command, and what it calls",
    "fft": "as operators, kernels and functions",
    "foreach": "operators and host bodies",
    "gamma": "the distribution, and its operator",
    "geometry": "as operators, kernels and host bodies",
    "hub": "the module of PyTorch, and what it calls",
    "indexing": "as operators, kernels and functions",
    "joining": "as operators, kernels and functions",
    "launch": "a command, and PyTorch's of the name",
    "linalg": "as operators and functions",
    "loss": "as operators, functions and modules",
    "matmul": "as operators and functions",
    "memory": "a command, and PyTorch's module of what it shows",
    "nccl": "the library, and PyTorch's module of it",
    "normalization": "as operators, host bodies, functions and modules",
    "norms": "as kernels and functions",
    "nvtx": "the library, and PyTorch's module of it",
    "one_hot": "as operator and kernel",
    "optimizer": "the base class, and the operators of updates",
    "padding": "as operator, kernels, functions and modules",
    "pointwise": "operators, and the template of kernels",
    "pointwise_several": "operators, and the template of kernels",
    "pooling": "as operators, kernels, host bodies, functions and modules",
    "products": "of matrices, as kernels and for sparse tensors",
    "random": "engines, operators, functions, and PyTorch's modules of them",
    "recurrent": "cells as operators and functions",
    "recurrent_network": "as operator, kernel and function",
    "reduction": "operators, template of kernels, host bodies, functions, for sparse tensors",
    "return_types": "as defined, and PyTorch's module of the names",
    "run": "a command, and PyTorch's of the name",
    "sampler": "as defined, and PyTorch's module of the names",
    "sampling": "of grids, as operators, kernels and functions",
    "scan": "operators, template of kernels, host bodies",
    "sliding_windows": "of operators and kernels",
    "softmax": "as operators, kernels and host bodies",
    "sorting": "as kernels, host bodies and functions",
    "sparse": "embeddings, as functions and modules, and PyTorch's module of the name",
    "storage": "as defined, and PyTorch's modules of the name",
    "streams": "of each driver, and PyTorch's functions on them",
    "summary": "of memory, and PyTorch's module of TensorBoard's records",
    "trace": "a command, and the trace that it writes",
    "worker": "the process, and PyTorch's module of what it knows",
    "workspaces": "their sizes for operators, and their memory on GPUs",
}


def test_a_module_name_says_its_content_without_its_folder() -> None:
    """Several modules have one name if PyTorch has all of them, or if they mirror one concept, as MIRRORS says."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("PyTorch is not installed, so its module names are unknown")
    pytorch = Path(torch.origin).parent
    places: dict[str, list[str]] = {}
    for path in modules():
        if path.stem not in ("__init__", "__main__"):
            places.setdefault(path.stem, []).append(path.relative_to(PACKAGE).as_posix())
    several = {
        name: files
        for name, files in places.items()
        if len(files) > 1 and not all((pytorch / f).exists() or (pytorch / f[:-3]).is_dir() for f in files)
    }
    unclear = {name: files for name, files in several.items() if name not in MIRRORS}
    assert unclear == {}, "give each a name that says its content, or a reason in MIRRORS"
    assert MIRRORS.keys() - several.keys() == set(), "these names are unique now: remove them from MIRRORS"


MOST_LINES, MOST_PARAMETERS, MOST_CLASS_LINES = 50, 12, 400  # docstrings aside; parameters less `self`
LARGER = {  # why each may exceed the bounds
    "_aten/private.py:_scaled_dot_product_efficient_attention_backward": "PyTorch's signature",
    "autograd/gradcheck.py:gradcheck": "PyTorch's signature",
    "autograd/gradcheck.py:gradgradcheck": "PyTorch's signature",
    "data/loader.py:DataLoader.__init__": "PyTorch's signature",
    "distributed/ddp/reducer.py:Reducer.__init__": "PyTorch's signature",
    "driver/protocol.py:Driver": "the driver protocol",
    "driver/cuda/driver.py:CudaDriver": "the driver protocol",
    "driver/cuda/linalg/geometry.py:cdist": "one text of C++",
    "driver/cuda/linalg/geometry.py:cdist_backward": "one text of C++",
    "driver/virtual/driver.py:VirtualDriver": "the driver protocol",
    "fx/graph.py:Graph": "PyTorch's class",
    "linalg/_lobpcg.py:lobpcg": "PyTorch's signature",
    "nn/functional/grouped_products.py:scaled_grouped_mm": "PyTorch's signature",
    "multiprocessing/reductions.py:rebuild_cuda_tensor": "PyTorch's signature",
    "nn/functional/attention.py:multi_head_attention_forward": "PyTorch's signature",
    "nn/modules/module.py:Module": "PyTorch's class",
    "nn/modules/transformer.py:Transformer.__init__": "PyTorch's signature",
    "nn/parallel/distributed.py:DistributedDataParallel": "PyTorch's class",
    "nn/parallel/distributed.py:DistributedDataParallel.__init__": "PyTorch's signature",
    "observe/races.py:RaceDriver": "the driver protocol",
    "optim/adadelta.py:adadelta": "PyTorch's signature",
    "optim/adagrad.py:adagrad": "PyTorch's signature",
    "optim/adam.py:adam": "PyTorch's signature",
    "optim/adamax.py:adamax": "PyTorch's signature",
    "optim/adamw.py:adamw": "PyTorch's signature",
    "optim/asgd.py:asgd": "PyTorch's signature",
    "optim/nadam.py:nadam": "PyTorch's signature",
    "optim/radam.py:radam": "PyTorch's signature",
    "optim/rmsprop.py:rmsprop": "PyTorch's signature",
    "optim/rprop.py:rprop": "PyTorch's signature",
    "optim/sgd.py:sgd": "PyTorch's signature",
    "optim/lr_scheduler/cycles.py:CyclicLR.__init__": "PyTorch's signature",
    "optim/lr_scheduler/cycles.py:OneCycleLR.__init__": "PyTorch's signature",
    "profiler/__init__.py:profile.__init__": "PyTorch's signature",
    "tensor/functions/spectral.py:istft": "PyTorch's checks, in its order",
}


def is_large(node: ast.AST) -> bool:
    """Return True if a function or class exceeds the bounds."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    if isinstance(node, ast.ClassDef):
        return lines > MOST_CLASS_LINES
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return lines > MOST_LINES or len([name for name in names if name != "self"]) > MOST_PARAMETERS


def large_definitions(node: ast.AST, name: str) -> Iterator[str]:
    """Yield the names of functions and classes that exceed the bounds, such as "core/flags.py:Flags.reset"."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}{':' if name.endswith('.py') else '.'}{child.name}"
            if is_large(child):
                yield inner
            yield from large_definitions(child, inner)
        else:
            yield from large_definitions(child, name)


def test_functions_and_classes_are_short() -> None:
    """Split what grows beyond the bounds; LARGER names the exceptions, and only those that are there."""
    large = {
        name
        for path in modules()
        for name in large_definitions(ast.parse(path.read_text()), path.relative_to(PACKAGE).as_posix())
    }
    assert large - LARGER.keys() == set(), "split these, or give a reason in LARGER"
    assert LARGER.keys() - large == set(), "these are short now: remove them from LARGER"


def test_each_package_says_what_is_in_it() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        if "shim" not in path.parts:
            assert ast.get_docstring(ast.parse(path.read_text())), (
                f"{path.relative_to(PACKAGE)} has no docstring"
            )


def test_names_of_test_files_are_unique() -> None:
    """pytest imports each by its name alone: of two with one name the second is an error, in a run of all tests."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py") if "gpu" not in path.parts]
    assert sorted(names) == sorted(set(names))


def test_no_room_gains_names_or_docstrings_to_avoid() -> None:
    """The counts of tools/words.py may only fall; `python tools/words.py ROOM` lists what they count."""
    allowed, now = words.limits(), words.counts()
    grown = {
        f"{room}: {kind}": (count, allowed.get(room, {}).get(kind, 0))
        for room, kinds in now.items()
        for kind, count in kinds.items()
        if count > allowed.get(room, {}).get(kind, 0)
    }
    assert grown == {}, "more than tests/words.toml allows (found, allowed)"


def test_sections_about_missing_names_are_recognized() -> None:
    text = (
        'class A:\n    """An a.\n\n    Attributes:\n        b: One.\n        c: Two.\n    """\n\n    b: int\n'
    )
    assert list(words.wrong_sections(ast.parse(text).body[0], {})) == ["A: c"]


@pytest.mark.parametrize(
    ("name", "participle"),
    [
        ("told", True),
        ("_kept", True),
        ("placed", True),
        ("place", False),
        ("seed", False),
        ("is_placed", False),
    ],
)
def test_bare_participles_are_recognized(name: str, participle: bool) -> None:
    assert words.is_participle(name) == participle
