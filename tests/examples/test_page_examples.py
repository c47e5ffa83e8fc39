"""Examples of the pages that import Flambeau run as they stand."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import indent

import pytest

from flambeau.runtime import system

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.stem, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
]
EXAMPLES = [
    (page, block)
    for page, block in BLOCKS
    if block.startswith(("import flambeau", "from flambeau")) and "\nimport flambeau" in f"\n{block}"
]
DIST = "import flambeau.distributed as dist\nfrom flambeau.nn.parallel import DistributedDataParallel\n"
# What a page's fragments take as given: (page, how the fragment begins) -> the code before it
FRAGMENTS = {
    ("compile", "model ="): "",
    ("compile", "print(torch._dynamo.explain"): (
        "step = torch.compile(lambda x, wanted: (x - wanted).square(), mode='reduce-overhead')\n"
        "x = wanted = torch.rand(3, device='cuda')\n"
    ),
    ("compile", "def show"): "",
    ("data-parallel", "dist.init_process_group"): (
        DIST + "model = torch.nn.Linear(2, 2)\nrank = torch.cuda.current_device()\n"
    ),
    (
        "data-parallel",
        "from flambeau.testing.ranks",
    ): "def train(): return torch.ones(1, device='cuda').item()\n",
    ("data-parallel", "from flambeau.testing.cluster"): DIST + "def GPT(): return torch.nn.Linear(2, 2)\n",
    ("distributed", "import torch.distributed._functional"): (
        "import flambeau.distributed as dist\ndist.init_process_group('nccl')\npart = torch.ones(2, 3, device='cuda')\n"
        "mesh = dist.init_device_mesh('cuda', (2, 2), mesh_dim_names=('dp', 'tp'))\n"
    ),
    ("fx", "from flambeau.fx"): "",
    ("memory", "torch.cuda.memory._record"): "def train(): torch.ones(1, device='cuda')\n",
    ("memory", "from flambeau.runtime"): "",
    ("user-kernels", "fused ="): "a, b, z, r, t = torch.rand(5, 3, device='cuda')\nx = y = z\n",
    ("user-kernels", "code ="): "a, b = torch.rand(2, 3, device='cuda')\n",
}
OF_RANKS = {
    ("data-parallel", "dist.init_process_group"),
    ("distributed", "import torch.distributed._functional"),
}
OTHERS = {  # the page's other blocks: how many, and what tests them
    "add-an-operator": (3, "tests/ops/test_operator_blocks.py compares them with the source"),
    "notebooks": (2, "test_a_notebook_names_flambeau_torch; a session of a notebook"),
}


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_an_example_runs(page: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "2")
    namespace = {"__name__": page}
    exec(compile(example, f"{page}.md", "exec"), namespace)
    namespace.clear()  # the example's tensors end with it
    gc.collect()
    system.close_all()  # the virtual GPUs that it opened: later tests have none


def test_a_notebook_names_flambeau_torch() -> None:
    text = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
    (block,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
        if "sys.modules" in block
    ]
    print_names = "print(nn.Linear is flambeau.nn.Linear, DataLoader is flambeau.utils.data.DataLoader)"
    command = [sys.executable, "-c", f"{block}\n{print_names}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True True\n"


def test_most_pages_have_an_example() -> None:
    assert len({page for page, _ in EXAMPLES}) >= 12


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: f"{fragment[0]}: {fragment[1]}")
def test_fragment_runs_after_what_it_takes_as_given(
    fragment: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, start = fragment
    (text,) = [block for name, block in BLOCKS if name == page and block.startswith(start)]
    code = "import flambeau as torch\n" + FRAGMENTS[fragment] + text
    program = tmp_path / "program.py"
    if fragment in OF_RANKS:
        code = (
            f"def step():\n{indent(code, '    ')}\nfrom flambeau.testing.ranks import ranks\nranks(step, 4)\n"
        )
    program.write_text(code)
    command = [sys.executable, "-m", "flambeau", "run", "--devices", "4", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_block_is_run_by_a_test() -> None:
    left = [
        (name, text)
        for name, text in BLOCKS
        if (name, text) not in EXAMPLES
        and name != "tutorial"
        and not name.startswith("howto-")
        and not any(name == page and text.startswith(start) for page, start in FRAGMENTS)
    ]
    assert Counter(name for name, _ in left) == {name: count for name, (count, _) in OTHERS.items()}, left
