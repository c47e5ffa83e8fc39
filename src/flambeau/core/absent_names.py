"""Advice for names that PyTorch has and Flambeau lacks: what a program can use instead."""

from __future__ import annotations

import re
from types import ModuleType

_LINALG = "PyTorch has removed it: use torch.linalg.{}"
_NESTED = "Pad the tensors: torch.nn.utils.rnn.pad_sequence"
_MASKED = "Use torch.where with reductions, or a NaN as the mask"
_NO_COUNTERPART = "It has no counterpart on virtual GPUs"
_PACKAGE = "Save a state_dict with torch.save, and the code as files"
# Names by the modules and classes that have them in PyTorch: "owners: names", both regular expressions.
_ADVICE = {
    "torch|Tensor: eig": _LINALG.format("eig"),
    "torch|Tensor: symeig": _LINALG.format("eigh"),
    "torch|Tensor: lstsq": _LINALG.format("lstsq"),
    "torch|Tensor: matrix_rank": _LINALG.format("matrix_rank"),
    "torch|Tensor: solve": _LINALG.format("solve"),
    "torch: native_norm": "PyTorch has it for sparse tensors only: use torch.norm",
    "torch|Tensor: nested|to_padded_tensor": _NESTED,
    "torch: masked": _MASKED,
    "torch: export|aot_.*": "Flambeau runs programs eagerly: torch.fx.symbolic_trace makes graphs",
    "torch: package": _PACKAGE,
    "torch.*|Tensor: (de)?quantize.*|quantized.*|q_.*|int_repr|qscheme|empty_quantized|"
    "fake_quantize.*|intrinsic|qat|quantizable|choose_qparams.*|fused_moving_avg.*|Q.*Storage": "Flambeau has no "
    "quantized tensors",
    "torch: (cudnn|miopen|mkldnn|fbgemm)_.*": "An entry of one library: use the function of torch.nn.functional",
    "torch: cudnn_affine_grid_generator": "Use torch.nn.functional.grid_sample and affine_grid",
    "torch: (batch|layer|group)_norm.*": "Use the function of torch.nn.functional",
    "torch: signal": "Use the windows of torch, such as torch.hann_window",
    "torch|torch.storage|torch.cuda: Storage|.*StorageBase": "Use Tensor.untyped_storage()",
    "Tensor: names|refine_names|align_to|rename|align_as": "Flambeau has no named tensors: number the dimensions",
    "torch.utils.data: datapipes": "Use a Dataset or an IterableDataset",
    "torch.cuda: green_contexts|GreenContext|gds|tunable": _NO_COUNTERPART,
    "torch(.utils)?: ThroughputBenchmark|bottleneck": "Use torch.profiler",
    "torch: _scaled_grouped_mm.*": "Call torch.nn.functional.scaled_grouped_mm",
    "torch.autograd: NestedIOFunction": "PyTorch's raises when it is called: use "
    "torch.autograd.Function and flatten the arguments",
    "torch.autograd.graph: region_activation_memory_budget": "It steers PyTorch's compiler: use torch.utils.checkpoint",
    "torch.autograd.graph: set_override_stale_capture_stream": "Leaves take the current stream: delete the call",
    "torch.utils.checkpoint: SAC_IGNORED_OPS": "Policies are never asked about aten.detach: delete the use",
    "torch.distributed: ProcessGroupGloo": 'Call init_process_group("gloo") or new_group(backend="gloo")',
    "torch.distributed: record_comm": "torch.profiler.record_function names a range around collectives",
    "torch.backends.cuda: cuFFTPlanCacheAttrContextProp": "Use torch.backends.cuda.cufft_plan_cache",
    "torch.backends.cuda: preferred_rocm_fa_library": "Flambeau has no AMD GPUs",
    "torch: fork|wait": "Use Python's concurrent.futures",
    "torch(.jit|._C)?: CompilationUnit|Script.*|(Lite|Static|Concrete).*Module.*|.*_ir(_.*)?": "Flambeau has no "
    "TorchScript compiler",
}


def advice_for(owner: object, name: str) -> str | None:
    """Return advice on what a program can use in place of a name of PyTorch; None if there is none.

    Args:
        owner: The module, class or object that lacks the name.
        name: The name.
    """
    where = _public_name(owner)
    for pattern, advice in _ADVICE.items():
        owners, _, names = pattern.partition(": ")
        if re.fullmatch(owners, where) and re.fullmatch(names, name):
            return advice
    return None


_EAGER = "Flambeau runs Python code eagerly and has no compiler: torch.fx.symbolic_trace makes graphs"
_SHARDED = "Use DistributedDataParallel or the collectives of torch.distributed"
# Modules by their names in PyTorch, as a regular expression. The first that matches counts.
_MODULE_ADVICE = {
    "torch\\.(_inductor|_dynamo|_export|export|_higher_order_ops|_functorch|_decomp|_refs|_prims.*|_logging|_subclasses|"
    "_dispatch|_guards|_library|_native|_numpy|_lazy|_strobelight|_meta_registrations|fx)": _EAGER,
    "torch\\.(utils\\._(sympy|config_module|appending_byte_serializer)|compiler\\._cache)": _EAGER,
    "torch\\.(ao|quantization|nn\\.(quantized|quantizable|intrinsic|qat)|backends\\._.*)": "Flambeau has no quantized "
    "tensors: quantize with PyTorch",
    "torch\\.onnx": "Export with PyTorch: save the weights with torch.save and load them there",
    "torch\\.distributed\\.(launcher|elastic)": "Start ranks with `flambeau launch`, or torch.multiprocessing.spawn",
    "torch\\.distributed": _SHARDED,
    "torch\\.utils\\.data\\.(datapipes|graph.*)": "Use a Dataset or an IterableDataset",
    "torch\\.testing\\._internal": "It tests PyTorch itself: use torch.testing.assert_close",
    "torch\\.nested": _NESTED,
    "torch\\.nn\\.attention": "Call torch.nn.functional.scaled_dot_product_attention for each sequence",
    "torch\\.(jit|_sources|_classes)": "Flambeau has no TorchScript compiler: torch.jit.script returns its function",
    "torch\\.package": _PACKAGE,
    "torch\\.cuda\\._memory_viz": "Draw a snapshot with `flambeau memory SNAPSHOT`",
    "torch\\.profiler|torch\\.autograd\\.profiler_legacy": "Use torch.profiler.profile",
    "torch\\.(sparse|utils)\\._triton.*": "Flambeau does not run Triton kernels",
    "torch\\.(accelerator|mps|mtia|xpu)": "Flambeau has CPUs and NVIDIA GPUs only; names for others are in the parent",
    "torch\\.cuda": _NO_COUNTERPART,
    "torch\\.masked": _MASKED,
    "torch\\.monitor": "Use logging, or torch.profiler.record_function",
    "torch\\.numa": "Bind processes to nodes with numactl",
    "torch\\.backends": "It configures a library or a processor that Flambeau does not use: delete the use",
    "torch\\.(nn\\.modules|sparse|cpu\\.amp|utils\\.(benchmark|tensorboard))": "It is an inner module of "
    "PyTorch: import names from the package",
    "torch\\.utils\\.data": "Set random seeds in a worker_init_fn of your own",
    "torch\\.utils\\.throughput_benchmark": "Use torch.profiler",
    "torch\\.(contrib|nativert|nn\\.(backends|cpp)|utils)": "It serves PyTorch's C++ code, its builds, or TorchScript",
    "torch\\._vendor": "Install the package `packaging`",
}


def advice_for_module(name: str) -> str | None:
    """Return advice on what a program can use in place of a module of PyTorch that Flambeau lacks; None without one."""
    return next(
        (advice for pattern, advice in _MODULE_ADVICE.items() if re.match(rf"{pattern}(\.|$)", name)), None
    )


def _public_name(owner: object) -> str:
    """Return the name of a module in PyTorch, or of a class."""
    if isinstance(owner, ModuleType):
        return owner.__name__.replace("flambeau", "torch", 1)
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__
