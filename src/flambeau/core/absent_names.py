"""Advice for names that PyTorch has and Flambeau lacks: what a program can use instead."""

from __future__ import annotations

import re

_LINALG = "PyTorch has removed it: use torch.linalg.{}"
_ADVICE = {
    "eig": _LINALG.format("eig"),
    "symeig": _LINALG.format("eigh"),
    "lstsq": _LINALG.format("lstsq"),
    "matrix_rank": _LINALG.format("matrix_rank"),
    "solve": _LINALG.format("solve"),
    "frobenius_norm|nuclear_norm": "Use torch.linalg.matrix_norm",
    "lobpcg": "Use torch.linalg.eigh",
    "ldl_.*": "Use torch.linalg.solve, or cholesky of a positive definite matrix",
    "nested|to_padded_tensor": "Pad the tensors: torch.nn.utils.rnn.pad_sequence",
    "masked": "Use torch.where with reductions, or a NaN as the mask",
    "export|package|aot_.*": "Flambeau runs programs eagerly: torch.fx.symbolic_trace makes graphs",
    "cond|while_loop": "Flambeau runs programs eagerly: use Python's if and while",
    "(de)?quantize.*|quantized.*|q_.*|int_repr|qscheme|empty_quantized|per_(tensor|channel)_.*|fake_quantize.*|intrinsic|"
    "qat|quantizable|choose_qparams.*|fused_moving_avg.*|Q.*Storage": "Flambeau has no quantized tensors",
    "(cudnn|miopen|mkldnn|fbgemm)_.*": "An entry of one library: use the function of torch.nn.functional",
    "grid_sampler.*|.*affine_grid_generator": "Use torch.nn.functional.grid_sample and affine_grid",
    "(native_)?(batch|layer|group)_norm.*": "Use the function of torch.nn.functional",
    "convolution": "Use torch.nn.functional.conv1d, conv2d or conv3d",
    "signal": "Use the windows of torch, such as torch.hann_window",
    "Storage|.*StorageBase": "Use Tensor.untyped_storage()",
    "names|refine_names|align_to|rename|align_as": "Flambeau has no named tensors: number the dimensions",
    "datapipes": "Use a Dataset or an IterableDataset",
    "green_contexts|GreenContext|gds|tunable": "It has no counterpart on virtual GPUs",
    "ThroughputBenchmark|bottleneck": "Use torch.profiler",
    "fork|wait": "Use Python's concurrent.futures",
    "CompilationUnit|Script.*|(Lite|Static|Concrete).*Module.*|.*_ir(_.*)?": "Flambeau has no TorchScript compiler",
}


def advice_for(name: str) -> str | None:
    """Return what to do instead of a name of PyTorch; None if nothing is known of it."""
    return next((advice for pattern, advice in _ADVICE.items() if re.fullmatch(pattern, name)), None)
