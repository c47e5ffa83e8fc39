"""Devices that are only names here: one program, run by PyTorch's CPU build and by Flambeau without GPUs."""

from __future__ import annotations

from pathlib import Path

from both import run_both

PROGRAM = """
import copy, pickle, warnings
warnings.simplefilter("ignore")
import torch

NAMES = ["ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla", "lazy", "vulkan", "mps", "hpu", "mtia", "privateuseone"]
USED = ["mps", "xpu", "xla", "hpu", "mtia", "ipu", "maia", "vulkan", "hip", "privateuseone"]
device = torch.device


def show(label, run, text=True):
    try:
        result = run()
    except Exception as error:
        known = text and isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
        print(label, type(error).__name__, str(error).splitlines()[0] if known else "")
    else:
        print(label, result)


for name in ["cpu", "cuda", *NAMES, "foo", "fo_o", "MPS", "mps:1", "xla:0", "mps:01", "foo:1", "hpu:-1", "mps:", ":1", ""]:
    show(name, lambda: [device(name), str(device(name)), device(name).type, device(name).index], name not in ("mps:", ":1", ""))
for name in USED:
    d = device(name)
    show(name, lambda: [d == device(name), d != device("cpu"), d == device(name, 0), hash(d) == hash(device(name)), {d: 1}[device(name)]])
    show(name, lambda: [copy.deepcopy(d) == d, pickle.loads(pickle.dumps(d)) == d, device(name, 2), device(type=name, index=1)])
    for label, use in {
        "empty": lambda: torch.empty(2, device=name), "zeros": lambda: torch.zeros(2, device=d), "ones": lambda: torch.ones(2, device=name),
        "full": lambda: torch.full((2,), 1.0, device=name), "arange": lambda: torch.arange(3, device=name), "eye": lambda: torch.eye(2, device=name),
        "rand": lambda: torch.rand(2, device=name), "randn": lambda: torch.randn(2, device=name), "linspace": lambda: torch.linspace(0, 1, 3, device=name),
        "new_zeros": lambda: torch.ones(1).new_zeros(2, device=name), "empty_like": lambda: torch.empty_like(torch.ones(1), device=name),
        "linear": lambda: torch.nn.Linear(1, 1, device=name), "generator": lambda: torch.Generator(name),
    }.items():
        show(f"{name} {label}", use, text=False)
    for label, use in {
        "tensor": lambda: torch.tensor([1.0], device=name), "to": lambda: torch.ones(2).to(name), "to device": lambda: torch.ones(2).to(device=d),
        "as_tensor": lambda: torch.as_tensor([1.0], device=name), "module": lambda: torch.nn.Linear(1, 1).to(name),
    }.items():
        if name not in ("xpu", "hpu", "mtia", "privateuseone"):  # errors of PyTorch's own modules, whose state these calls change
            show(f"{name} {label}", use, text=False)
    show(f"{name} after", lambda: [torch.get_default_device(), torch.ones(1).device])
    show(f"{name} is", lambda: [getattr(torch.ones(1), f"is_{name}", None) if name in ("mps", "xpu", "xla", "ipu", "mtia", "maia", "vulkan") else None])

for name in ["cpu", "cuda", *NAMES, "foo"]:
    show(f"autocast {name}", lambda: [torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)], name == "foo")
    show(f"autocast {name}", lambda: torch.amp.is_autocast_available(name))
for name in USED[:7]:
    for dtype in (None, torch.float16, torch.bfloat16, torch.float32):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autocast(name, dtype=dtype):
                print(name, dtype, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name), torch.is_autocast_enabled("cpu"), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        print([str(w.message) for w in caught])
    show("after", lambda: torch.is_autocast_enabled(name))
show("none", lambda: torch.autocast("vulkan"), text=False)
show("private", lambda: torch.autocast("privateuseone"), text=False)

for name in ("mps", "xpu", "mtia", "cpu"):
    module = getattr(torch, name)
    show(f"{name} names", lambda: sorted(n for n in module.__all__ if n not in ("profiler", "streams", "reset_accumulated_memory_stats", "reset_peak_memory_stats")))
for name in ("is_available", "device_count", "empty_cache", "synchronize", "get_rng_state", "seed", "current_allocated_memory"):
    show(f"mps {name}", getattr(torch.mps, name), text=False)
show("mps manual_seed", lambda: torch.mps.manual_seed(3))
refused = {"reset_accumulated_memory_stats", "reset_peak_memory_stats"}
REQUIRED = {"can_device_access_peer", "change_current_allocator", "get_stream_from_external", "make_graphed_callables", "set_device", "set_per_process_memory_fraction", "set_rng_state", "use_mem_pool"}
for name in sorted(torch.xpu.__all__):
    value = getattr(torch.xpu, name)
    if callable(value) and not isinstance(value, type) and name not in refused | {"set_stream", "set_rng_state_all", "manual_seed", "manual_seed_all", "stream"}:
        if name in REQUIRED:
            continue  # it has parameters
        show(f"xpu {name}", value, text=False)
for name in ("is_available", "device_count", "is_initialized", "init", "current_device", "memory_stats", "synchronize", "is_bf16_supported", "seed_all", "get_rng_state_all"):
    show(f"mtia {name}", getattr(torch.mtia, name), text=False)
show("seeds", lambda: [torch.xpu.manual_seed(1), torch.xpu.manual_seed_all(1), torch.mtia.manual_seed(1)])
show("stream", lambda: isinstance(3, torch.xpu.Stream) or isinstance(3, torch.mps.Event))
show("stream", lambda: torch.xpu.Stream(), text=False)
show("backend", lambda: [torch.backends.mps.is_available(), torch.backends.mps.is_built()])

cpu = torch.cpu
show("cpu", lambda: [cpu.is_available(), cpu.is_initialized(), cpu.device_count(), cpu.current_device(), cpu.set_device("cpu"), cpu.synchronize()])
stream, event = cpu.Stream(), cpu.Event()
with cpu.stream(stream):
    show("cpu stream", lambda: [cpu.current_stream() is stream, event.record(), event.query(), event.synchronize(), event.wait(), stream.wait_event(event), stream.wait_stream(stream)])
show("cpu stream", lambda: [cpu.current_stream() is stream, isinstance(cpu.current_stream(), cpu.Stream), stream.record_event()])
show("cpu capabilities", lambda: {k: v for k, v in sorted(cpu.get_capabilities().items()) if k in ("avx2", "sse3", "avx512_f", "bmi", "fma3", "lzcnt", "architecture")})
with cpu.amp.autocast():
    show("cpu amp", lambda: [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")])
for name in ("cpu", "mps", "xpu", "mtia", device("mps", 1)):
    show(f"module {name}", lambda: torch.get_device_module(name).__name__.rpartition(".")[2])
show("module", lambda: torch.get_device_module().__name__.rpartition(".")[2])
torch.set_default_device("mps")
show("default", lambda: torch.ones(1), text=False)
torch.set_default_device(None)
show("module", lambda: torch.get_device_module("xla"))
show("module", lambda: torch.get_device_module(3))
"""


def test_devices_by_name_agree_with_pytorch(tmp_path: Path) -> None:
    run_both(tmp_path, PROGRAM, 400, "--devices", "0")
