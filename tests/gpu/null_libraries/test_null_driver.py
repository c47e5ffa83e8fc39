"""The CUDA driver's own logic over a libcuda that only succeeds: what can be tested of it without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_kit import VIEWED

HERE = Path(__file__).parents[1]
# A kernel of the null libcuda does nothing, so these cases see memory that nobody wrote; there is no NVML beside it.
NEED_KERNELS = {
    "load_and_launch_run_the_kernels_body",
    "launch_passes_scalars_by_value_in_their_place",
    "launcher_launches_the_executable_it_was_asked_for",
    "generic_launches_as_load_does",
    "launch_follows_strides",
    "launch_is_ordered_on_its_stream",
    "unload_after_its_launches_are_queued",
    "mem_processes_names_this_one",
    # It captures nothing, either.
    "capture_begin_records_instead_of_running",
    "capture_begin_refuses_what_cannot_be_captured",
    "capture_end_refuses_work_that_nobody_waits_for",
    "graph_launch_runs_what_was_recorded_each_time",
    "graph_launch_into_a_capture_makes_it_part_of_that",
    "graph_dump_writes_it_for_graphviz",
    "graph_native_names_it_or_refuses",
    # There is no cuBLAS and no cuDNN, or those of PyTorch's build with CUDA, which find no GPU.
    "library_handle_is_kept_or_refused",
    "recurrent_memory_holds_all_parameters_or_none",
    "graph_instantiate_makes_it_ready_anew",
}


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    if not _has("cuda.bindings.driver"):
        pytest.skip("cuda-bindings is not installed")
    folder = tmp_path_factory.mktemp("null")
    for source, name in (("null_cuda.c", "libcuda.so.1"), ("null_nccl.c", "libnccl.so.2")):
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-ldl", "-lpthread"]
        subprocess.run(["gcc", "-o", folder / name, HERE / source, *options], check=True)
    return folder


def run(library: Path, program: str, devices: int = 1) -> str:
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "NULL_CUDA_DEVICES": str(devices),
        "PYTHONPATH": str(HERE.parents[1] / "src"),
        "FLAMBEAU_KERNEL_CACHE": str(library / "kernels"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


CONTRACT = """
import ctypes
ctypes.CDLL("libnccl.so.2")  # what is loaded already is taken, whatever the machine has
from flambeau.testing import conformance
from flambeau.driver.cuda.driver import CudaDriver
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.core.errors import DriverError, NotSupportedError
Compiler.cubin = lambda self, source: b"no compiler here"
for case in conformance.cases:
    driver = CudaDriver()
    try:
        case(driver)
    except (AssertionError, DriverError, NotSupportedError):
        print(case.__name__)
    driver.close()
"""


@pytest.mark.parametrize("devices", [1, 2])
def test_the_contract_but_for_what_kernels_write(library: Path, devices: int) -> None:
    failed = set(run(library, CONTRACT, devices).split())
    expected = NEED_KERNELS | ({"peer_enable_lets_kernels_reach_the_peer"} if devices == 2 else set())
    assert failed <= expected, failed - expected


def test_auto_finds_the_gpu_and_virtual_still_wins(library: Path) -> None:
    program = """
import os, flambeau
print(flambeau.cuda.is_available(), flambeau.cuda.device_count(), flambeau.cuda.get_device_name(0))
"""
    assert run(library, program).split(maxsplit=2) == ["True", "1", "Null GPU\n"]
    virtual = "import os; os.environ['FLAMBEAU_VIRTUAL_DEVICES'] = '3'" + program
    assert run(library, virtual).split()[:2] == ["True", "3"]


@pytest.mark.parametrize("visible", ["", "-1", "0,0"])
def test_hidden_gpus_leave_the_cpu(library: Path, visible: str) -> None:
    program = f"""
import os, warnings
os.environ["CUDA_VISIBLE_DEVICES"] = {visible!r}
warnings.simplefilter("error")
import flambeau as torch
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).sum().item())
try:
    torch.ones(3, device="cuda")
except RuntimeError as error:
    print(error)
"""
    answers, message = run(library, program, devices=0).splitlines()[:2]
    assert answers == "False 0 3.0"
    assert message.startswith(f"No CUDA GPUs are available: CUDA_VISIBLE_DEVICES={visible!r} leaves none")


def test_calibrate_measures_a_gpu(library: Path, tmp_path: Path) -> None:
    """Run all microbenchmarks but products, which need cuBLAS."""
    program = f"""
import sys
sys.argv = ["flambeau"]
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
from flambeau.cli.main import main
sys.exit(main(["calibrate", "--child", "-o", {str(tmp_path / "raw.json")!r}]))
"""
    run(library, program)
    data = json.loads((tmp_path / "raw.json").read_text())
    failed = {row["benchmark"] for row in data["rows"] if "error" in row}
    assert data["device"]["name"] == "Null GPU" and data["device"]["sms"] == 132
    assert failed and all("product" in name for name in failed), failed


def test_a_real_machine_is_traced_by_events(library: Path, tmp_path: Path) -> None:
    """Its times are nothing here; what was asked for is all there."""
    script = tmp_path / "program.py"
    script.write_text(
        """
import torch
side, page = torch.cuda.Stream(), torch.ones(9).pin_memory()
with torch.cuda.stream(side):
    y = page.to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(side)
y.record_stream(torch.cuda.current_stream())
y + y
torch.cuda.synchronize()
"""
    )
    program = f"""
import json, sys
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
from flambeau.cli.main import main
main(["trace", "--driver", "cuda", "--quiet", "-o", {str(tmp_path / "t.json")!r}, {str(script)!r}])
events = json.load(open({str(tmp_path / "t.json")!r}))["traceEvents"]
print(*[e["name"] for e in events if e["ph"] == "X" and e["pid"] == 0], sep="; ")
print(*sorted(e["cat"] for e in events if e["ph"] == "s"))
"""
    ran, arrows = run(library, program).splitlines()
    assert sorted(ran.split("; ")) == ["add", "copy to the device", "wait"]
    assert arrows.split() == ["launch"] * 3 + ["sync", "sync", "wait"]


def test_nothing_of_nvidias_is_imported_before_first_use(library: Path) -> None:
    program = (
        "import sys, flambeau; print([m for m in sys.modules if m.startswith(('cuda', 'nvmath', 'nccl'))])"
    )
    assert run(library, program).strip() == "[]"


def test_a_launch_packs_addresses_scalars_and_layout(library: Path) -> None:
    program = """
import struct
from flambeau.core.device import device
from flambeau.core.dtype import float32
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Expression, FusedStep, Kernel, Launch
from flambeau.driver.cuda.driver import CudaDriver
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.ops.pointwise.fused_chains import fuse
Compiler.cubin = lambda self, source: b"no compiler here"
driver = CudaDriver()
meta = Meta.contiguous_of((10,), float32, device("cuda", 0))
kernel = Kernel("k", lambda launch: None, cuda=Expression("a * b + k0", constants=lambda launch: (7,)))
exe = driver.load(Launch(kernel, (meta,), (meta, float32)), 0)
driver.launch(exe, (512, 1024), (1.5,), driver.stream_default(0))
out, a, scalar, constant = struct.unpack_from("<QQd8xq", exe.params.raw)
print(out, a, scalar, constant)
"""
    assert run(library, program).split() == ["512", "1024", "1.5", "7"]


def test_attention_in_16_bits_is_built_for_the_tensor_cores_that_the_gpu_has(library: Path) -> None:
    program = """
import flambeau as torch
from flambeau.driver.cuda.device.compiler import Compiler
sources = []
Compiler.cubin = lambda self, source: sources.append(source) or b"no compiler here"
q = torch.empty(2, 2, 70, 64, dtype=torch.bfloat16, device="cuda")
sources.clear()
torch.nn.functional.scaled_dot_product_attention(q, q, q)
print(len(sources), "begin_product(X{}" in sources[0])
"""
    assert run(library, program).split() == ["1", "True"]


def test_a_graph_sets_seed_and_offset_of_each_draw(library: Path) -> None:
    program = """
import ctypes
from flambeau.core.device import device
from flambeau.core.dtype import float32, uint64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Expression, FusedStep, Kernel, Launch
from flambeau.driver.cuda.driver import CudaDriver
from flambeau.driver.cuda.device.compiler import Compiler
from flambeau.ops.pointwise.fused_chains import fuse
Compiler.cubin = lambda self, source: b"no compiler here"
driver = CudaDriver()
meta = Meta.contiguous_of((10,), float32, device("cuda", 0))
kernel = Kernel("k", lambda launch: None, cuda=Expression("a + b + c"), draws=True)
exe = driver.load(Launch(kernel, (meta,), (meta, uint64, uint64)), 0)
stream = driver.stream_create(0, 0)
driver.capture_begin(stream, "global")
driver.launch(exe, (512, 1024), (1, 40), stream)
graph = driver.capture_end(stream)
draws = (ctypes.c_uint64 * 2).in_dll(ctypes.CDLL("libcuda.so.1"), "null_draws")
driver.launch(exe, (512, 1024), (3, 3), stream)
for offset in (0, 100):
    driver.graph_launch(graph, stream, [(0, 0), (2**63 + 5, offset)])
    print(*draws)
driver.graph_destroy(graph)
first = Launch(kernel, (meta,), (uint64, uint64, uint64))
second = Launch(kernel, (meta,), (uint64, uint64, meta))
exe = driver.load(fuse([FusedStep(first, (0, 1, 1)), FusedStep(second, (2, 3, -1))], [uint64] * 4, [1], [meta]), 0)
driver.capture_begin(stream, "global")
driver.launch(exe, (512,), (0, 40, 1, 80), stream)
graph = driver.capture_end(stream)
driver.graph_launch(graph, stream, [(7, 100), (9, 1000)])
print(*draws)  # the first offset and the second seed
driver.graph_destroy(graph)
driver.close()
"""
    printed = [str(2**63 + 5), "40", str(2**63 + 5), "140", "140", "9"]
    assert run(library, program).split() == printed


RACE = """
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
import flambeau as torch
a = torch.zeros(100, device="cuda")
with torch.cuda.stream(torch.cuda.Stream()):
    try:
        a + 1
        print("no race")
    except torch.RaceError as error:
        print(torch.cuda.get_device_name(), "wait_stream" in str(error))
"""


@pytest.mark.parametrize("races", ["off", "error"])
def test_races_are_looked_for_over_real_drivers_too(library: Path, races: str) -> None:
    program = f"import os; os.environ['FLAMBEAU_RACES'] = '{races}'\n{RACE}"
    assert run(library, program) == {"off": "no race\n", "error": "Null GPU True\n"}[races]


def test_writes_through_views_of_pinned_memory_are_seen_at_the_wait(library: Path) -> None:
    program = f"import os; os.environ['FLAMBEAU_RACES'] = 'warn'\n{VIEWED}"
    assert run(library, program).splitlines()[:3] == ["0 True", "1 True", "1"]


def test_flambeau_run_takes_the_gpu_and_looks_for_no_races(library: Path, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(RACE.replace("import flambeau as torch", "import torch"))
    program = (
        f"import sys; from flambeau.cli.main import main; sys.exit(main(['run', '--quiet', '{script}']))"
    )
    assert run(library, program) == "no race\n"


def test_a_tensor_goes_to_another_process_and_back_to_its_pool(library: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(HERE.parent / "multiprocessing")!r})
import flambeau as torch, peer_kit as kit
peer = kit.Peer()
x = torch.tensor([1.0, 2.0, 3.0]).cuda()
print(peer.call(kit.values, x), peer.call(kit.facts, x[1:])[7:])
peer.call(kit.keep, "x", x)
x.copy_(torch.tensor([4.0, 5.0, 6.0]))
print(peer.call(kit.values, x), peer.call(kit.is_kept, "x", x), torch.cuda.memory_allocated())
del x
torch.cuda.ipc_collect()
print(torch.cuda.memory_allocated())
peer.call(kit.drop, "x")
torch.cuda.ipc_collect()
print(torch.cuda.memory_allocated())
event = torch.cuda.Event(interprocess=True)
event.record()
print(peer.call(kit.opened_event, 0, event.ipc_handle()))
waits = peer.call(kit.null_waits)
peer.call(kit.nothing, event)
print(peer.call(kit.null_waits) - waits, end=" ")
peer.call(kit.nothing, torch.empty(2, device="cuda"))
print(peer.call(kit.null_waits) - waits, peer.stop())
"""
    assert run(library, program).splitlines() == [
        "[1.0, 2.0, 3.0] (1, 12, 'cuda:0')", "[4.0, 5.0, 6.0] True 512", "512", "0", "('cuda:0', True)", "0 1 0",
    ]  # fmt: skip


CUBLAS = """
static int made, on[2];
int cublasCreate_v2(void** h) { *h = (void*)0x5000; made++; return 0; }
int cublasSetStream_v2(void* h, void* s) { on[made - 1] = (int)(long)s; return h != (void*)0x5000; }
int cublasDestroy_v2(void* h) { made--; return 0; }
int stub_state(void) { return made * 100 + on[0]; }
"""


def test_the_programs_own_cublas_handle(library: Path) -> None:
    """A32: it is made once, and its work goes to the stream that is current when it is asked for."""
    source = library / "cublas.c"
    source.write_text(CUBLAS)
    for name in ("libcublasLt.so.13", "libcublas.so.13"):  # the one comes with the other
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{name}"]
        subprocess.run(["gcc", *options, "-o", library / name, source], check=True)
    program = """
import ctypes
ctypes.CDLL("libcublasLt.so.13")
stub = ctypes.CDLL("libcublas.so.13")
import flambeau as torch
print(torch.cuda.current_blas_handle() == 0x5000, stub.stub_state() == 100)
with torch.cuda.stream(torch.cuda.Stream()):
    native = torch.cuda.current_stream().cuda_stream
    print(torch.cuda.current_blas_handle() == 0x5000, stub.stub_state() == 100 + native)
torch.cuda.current_blas_handle()
print(stub.stub_state() == 100)
try:
    torch.cuda.current_solver_handle()
except torch.NotSupportedError as error:
    print(error)
"""
    said = run(library, program).splitlines()
    assert said[:3] == ["True True", "True True", "True"] and "pip install 'flambeau[cusolver]'" in said[3]


def test_a_default_stream_waits_on_its_own_device(library: Path) -> None:
    """Its native handle, 0, is the current context's default stream: an event of another device must not choose it."""
    program = """
from cuda.bindings import driver as cu
from flambeau.driver.cuda.driver import CudaDriver
driver = CudaDriver()
first, second = (driver.stream_default(i) for i in (0, 1))
event = driver.event_create(1, timing=False)
driver.event_record(event, second)
wait, seen = cu.cuStreamWaitEvent, []
def watched(*given):
    seen.append(int(cu.cuCtxGetCurrent()[1]))
    return wait(*given)
cu.cuStreamWaitEvent = watched
driver.stream_wait(first, event)
assert seen == [int(driver._contexts.devices[0].context)] != [int(driver._contexts.devices[1].context)], seen
"""
    run(library, program, devices=2)


WAITS = """
import ctypes, sys, threading
import flambeau as torch
cuda = ctypes.CDLL("libcuda.so.1")
cuda.null_hold.argtypes = [ctypes.c_uint64, ctypes.c_int]
side = torch.cuda.Stream()
event = torch.cuda.Event()
with torch.cuda.stream(side):
    torch.ones(4, device="cuda")
cuda.null_hold(side.cuda_stream, 1)
event.record(side)
steps = []
def wait():
    steps.append("waits")
    {wait}
    steps.append("ends")
thread = threading.Thread(target=wait)
thread.start()
while not ctypes.c_int.in_dll(cuda, "null_waiting").value:
    pass
steps.append("runs")
cuda.null_hold(side.cuda_stream, 0)
thread.join()
print(*steps)
"""


@pytest.mark.parametrize("wait", ["event.synchronize()", "side.synchronize()", "torch.cuda.synchronize()"])
def test_waits_of_the_host_let_other_threads_run(library: Path, wait: str) -> None:
    assert run(library, WAITS.replace("{wait}", wait)).split() == ["waits", "runs", "ends"]


def test_a_collection_of_garbage_leaves_the_context(library: Path) -> None:
    """Whatever it ends: it may come between the choice of a context and the call that depends on it."""
    program = """
import gc
from cuda.bindings import driver as cu
from flambeau.driver.cuda.driver import CudaDriver
driver = CudaDriver()
class Ends:
    def __init__(self):
        self.me, self.event = self, driver.event_create(1, timing=False)
    def __del__(self):
        driver.event_record(self.event, driver.stream_default(1))
        driver.event_destroy(self.event)
        ended.append(int(cu.cuCtxGetCurrent()[1]))
ended = []
Ends()
driver.mem_free(driver.mem_alloc(0, 512))
before = int(cu.cuCtxGetCurrent()[1])
gc.collect()
assert ended and ended[0] != before, "it was another device's"
assert int(cu.cuCtxGetCurrent()[1]) == before
driver.close()
gc.collect()
assert not gc.callbacks
"""
    run(library, program, devices=2)


def test_folds_of_no_elements_are_launched(library: Path) -> None:
    program = """
import flambeau as torch
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
x = torch.empty(0, 3, device="cuda")
print([tuple(getattr(x, name)(0).shape) for name in ("sum", "prod", "all", "any", "mean", "var", "logsumexp")])
print(torch.empty_strided((0, 3), (1 << 33, 1), device="cuda").sum(0).shape)  # steps wider than 32 bits
"""
    assert run(library, program) == f"{[(3,)] * 7}\ntorch.Size([3])\n"


def test_profiles_see_copies_and_memory(library: Path) -> None:
    program = """
import flambeau as torch
x, pinned = torch.ones(1000), torch.ones(1000).pin_memory()
far = torch.empty(1000, device="cuda:1")
with torch.profiler.profile(profile_memory=True) as prof:
    near = x.cuda()
    near.copy_(pinned, non_blocking=True)
    far.copy_(near)
    near.resize_(4000)
    near.cpu()
print([kernel.name for event in prof.events() for kernel in event.kernels])
print([event.kernels[0].device_index for event in prof.events() if event.name == "aten::copy_"])
print([note.nbytes for note in prof.events().memory if note.device_index == 0])
"""
    names = [f"Memcpy {kind}" for kind in (
        "HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)", "PtoP (Device -> Device)", "DtoD (Device -> Device)",
        "DtoH (Device -> Pageable)",
    )]  # fmt: skip
    assert run(library, program, devices=2) == f"{names}\n{[0] * 5}\n{[4096, 16384, -4096]}\n"


SINGLE_ELEMENTS = """
import warnings
warnings.simplefilter("ignore")
import flambeau as torch
from flambeau.driver.cuda.device.compiler import Compiler
Compiler.cubin = lambda self, source: b"no compiler here"
functions = {}
for place in (torch, torch.special, torch.nn.functional):
    for name in dir(place):
        function = getattr(place, name)
        if callable(function) and not isinstance(function, type) and not name.startswith(("_", "set_", "sym_")):
            functions[f"{place.__name__}.{name}"] = function
for name in ("torch.compile", "torch.load", "torch.save", "torch.seed", "torch.manual_seed", "torch.virtual"):
    functions.pop(name.replace("torch", "flambeau"))
computed = 0
for name, function in functions.items():
    for shape in ((), (1, 1), (0,)):
        for count in (1, 2, 3):
            inputs = [torch.full(shape, 0.3, device="cuda", requires_grad=True) for _ in range(count)]
            try:
                found = function(*inputs)
            except Exception:
                continue  # most functions take other arguments
            results = [t for t in (found if isinstance(found, (tuple, list)) else (found,)) if torch.is_tensor(t)]
            results = [t.sum() for t in results if t.requires_grad and not t.is_complex()]
            if not results:
                continue
            computed += 1
            try:
                torch.autograd.grad(results, inputs, allow_unused=True)
            except Exception as error:
                if not isinstance(error, (NotImplementedError, torch.cuda.OutOfMemoryError)) and (
                    "is not implemented" not in str(error)
                ):
                    print(name, shape, count, type(error).__name__, error)
print(computed)
"""


def test_gradients_of_one_element_and_of_none_have_kernels(library: Path) -> None:
    *failed, computed = run(library, SINGLE_ELEMENTS).splitlines()
    assert failed == []
    assert int(computed) > 600, computed
