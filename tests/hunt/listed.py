"""The differences of random API calls that are intended or known: docs/operators.md lists them by these reasons.

A difference is listed by its class, the names of the functions, and what the call or PyTorch's error says. One that no
line covers is a failure of `test_api_calls.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Listed(NamedTuple):
    """A kind of difference.

    Attributes:
        kinds: Classes of `api_calls.CLASSES`.
        names: What matches the whole name of the function, without its room.
        says: What occurs in the call, PyTorch's outcome or Flambeau's outcome.
        reason: Why it differs.
    """

    kinds: str
    names: str
    says: str
    reason: str


ANY = r"\w+"
DIFFERENCES = [
    Listed("order", ANY, "", "of several faults of a call another one is reported"),
    Listed(
        "error type", ANY, r"^(F|linalg)\.",
        "functions that PyTorch writes in Python, or of several steps, meet another of several faults first",
    ),
    Listed(
        "error type", "view_copy|expand_copy|expand|broadcast_to|fill_|div_|divide_|float_power_|reshape|clamp_min_?|clamp_max_?|addcmul_?|addcdiv_?|einsum|moveaxis|movedim|tensordot|sum_to_size|gradient|where",
        "", "functions that are called often compare only what they use",
    ),
    Listed(
        "accepted", ANY, "NotImplementedError|not implemented for|Unsupported input type|Half|BFloat16",
        "operators take more dtypes",
    ),
    Listed(
        "accepted", ANY,
        "view size is not compatible|can't be cast to|setStorage|doesn't match the broadcast shape|invalid slice|"
        "out of bounds for storage|should have the same dtype|to have the same dtype",
        "a step of PyTorch's implementation fails, of layouts and dtypes that the function's documentation allows",
    ),
    Listed("accepted", ANY, "[Oo]verflow|without narrowing|Promotion for uint16", "numbers beyond 63 bits saturate or wrap"),
    Listed("accepted", ANY, r"^F\.|_stacklevel", "functions that PyTorch writes in Python take what they do not use"),
    Listed("accepted", "norm", "dtype", "`norm` converts its result to any dtype"),
    Listed("accepted", "broadcast_shapes", "negative length", "sizes are not compared with zero"),
    Listed(
        "accepted|error type", "copy_|expand|permute|reshape|to|view|contiguous|cat|empty|full|ones|stack|zeros", "",
        "functions that are called often do not compare arguments that they do not use",
    ),
    Listed("accepted", "cholesky|cholesky_ex", "odd", "NaN is no pivot below zero"),
    Listed("accepted", r"index_\w+", "Expected a long tensor", "indices may be of int32"),
    Listed("accepted", "resize_", "not resizable", "every storage can grow"),
    Listed("value", "searchsorted|bucketize", "", "of boundaries that are not sorted another place is found"),
    Listed("accepted", ANY, "Expected dtype int64 for index", "indices may be of int32"),
    Listed("accepted", r"\w*fft\w*", r"MKL FFT error", "transforms of no elements are empty"),
    Listed("accepted", "lu_unpack", "pivots passed", "pivots are taken as rows to exchange"),
    Listed("refused", ANY, "non-finite values", "singular values and eigenvalues of matrices with infinities are refused"),
    Listed("refused", "eigvals|eig", "infs or NaNs", "eigenvalues of matrices with infinities are refused, of each size"),
    Listed("refused", "adaptive_avg_pool1d|hann_window|matmul|as_strided", r"\[0|0, 3\]|window\(0|, 0, |expanded|strided", "tensors without elements are checked as others are; a carried storage is as long as its tensor"),
    Listed("value", "median|nanmedian", "expanded", "PyTorch's result is not the median of an expanded tensor"),
    Listed("value", r"multilabel_\w+", "", "losses compare shapes and dtypes before they broadcast"),
    Listed("value", r"bessel_\w+|modified_bessel_\w+|scaled_\w+|spherical_\w+", "", "another approximation, by less than 1e-7"),
    Listed("accepted", "fill_|tensordot|tile", "", "functions that are called often compare only what they use"),
    Listed("refused", "pdist|group_norm|batch_norm|adaptive_max_pool1d_with_indices", "\\[0|, 0[,\\]]|1, 1, 1, 1", "tensors without elements, or of one, are checked as others are"),
    Listed("value", "isin", "uint8", "dtypes are promoted before values are compared"),
    Listed("value", "kthvalue|topk|sort|argsort|mode|median", "", "of equal elements another one is found"),
    Listed("value", "dist|pairwise_distance|norm|cdist", "\\d{18}|e\\+300", "norms of huge orders"),
    Listed("accepted", "diff", "", "with n=0 the other arguments are not used"),
    Listed("accepted", "geometric_|random_|bernoulli_|range", "", "draws are converted to any dtype"),
    Listed("refused", ANY, "more than one element of the written-to tensor", "in-place functions refuse expanded tensors"),
    Listed("refused", ANY, "NotImplementedError", "a dtype is refused of empty tensors, and of functions of complex numbers, too"),
    Listed("refused", "cummax|cummin|vecdot|linalg_vecdot", "Dimension out of range", "a dimension of an empty tensor or a vector is compared with its range"),
    Listed("refused", "adaptive_avg_pool2d|adaptive_avg_pool3d", "Expected", "one window takes tensors of too few dimensions in PyTorch"),
    Listed("refused", "lu|pca_lowrank", "must be bool", "what is annotated as a bool is one"),
    Listed("refused", "trapezoid|trapz|cumulative_trapezoid", "size of tensor", "positions have the length of the dimension"),
    Listed("refused", "random_", "None", "None is no bound"),
    Listed("refused", ANY, r"float\(\) argument|[Oo]verflow|too big|too large", "numbers beyond 63 bits are refused"),
    Listed("refused|form|accepted", ANY, r"^F\.\w+_loss|torch\.\w+_loss", "losses compare shapes and dtypes before they broadcast"),
    Listed("refused", "broadcast_shapes", "None", "None is no size"),
    Listed("refused|value|form|accepted", "matrix_rank|pinv|pinverse", "hermitian|, \\d, 0|, 0, ", "a hermitian matrix is square"),
    Listed("refused", "fractional_max_pool[23]d_with_indices", "", "a size and a ratio exclude each other"),
    Listed("form", "pixel_unshuffle|pixel_shuffle", ", 0,|\\[0,", "of empty tensors the channels are multiplied"),
    Listed("form", "trapezoid|trapz|cumulative_trapezoid", "\\[0\\]", "sums of no elements have the dtype of sums"),
    Listed(
        "value", ANY, "odd",
        "NaN and infinities: which results are NaN, and which of equal elements is found",
    ),
    Listed("value", "put_?", "", "of equal indices another one is written last"),
    Listed("value", "matrix_exp", "bfloat16|float16", "PyTorch computes with the dtype's own digits, which overflow"),
    Listed("value", "pinv|pinverse|solve_ex|solve|inv_ex|inv", "expanded", "rounding decides whether a matrix is singular"),
    Listed("value", r"\w+_loss|binary_cross_entropy\w*", "float64.*float32|float32.*float64", "mixed dtypes are computed in the smaller one"),
    Listed("value|form", "unique_consecutive", "", "`return_counts` alone gives counts, and the inverse has the input's shape"),
    Listed("value", "cholesky_ex", "", "a matrix that is not positive definite gives NaN"),
    Listed("device", ANY, "_cuda\" not implemented|not implemented for|cusolver|Unsupported dtype Half", "PyTorch's kernels for the CPU and for CUDA take other dtypes"),
    Listed("device", "mm|bmm|addmm|baddbmm", "out_dtype is for CUDA", "products in another dtype exist on CUDA only"),
    Listed("device", "nansum|nanmean", "complex", "sums of complex numbers without NaN exist on CUDA only"),
    Listed("device", "histc", "HalfTensor|Half", "PyTorch's kernels for the CPU and for CUDA take other dtypes"),
    Listed("device", ANY, "ZeroDivisionError", "integers divided by zero raise on the CPU only"),
    Listed("device", "bernoulli_?|poisson|multinomial|binomial|normal_?|dropout", "", "probabilities are compared on the CPU only"),
    Listed("device", ANY, "LU without pivoting", "factors without pivots exist on CUDA only"),
    Listed("device", "lstsq", "", "the rank is computed on the CPU only"),
    Listed("device", ANY, "diagonal element|singular|positive-definite|leading minor", "cuSOLVER reports no element"),
    Listed("device", ANY, "same device|different device|on the same device|device", "a tensor as a number must be on the CPU"),
    Listed("dead device", "repeat_interleave|embedding|embedding_bag|\\w*nll_loss|gather|scatter\\w*|index\\w*|take\\w*|multinomial", "", "what data says is only known on the device"),
]  # fmt: skip


def listed(kind: str, name: str, text: str) -> str:
    """Return the reason of a known difference; empty if it is not listed.

    Args:
        kind: Its class.
        name: The function, without its room.
        text: The call and both outcomes, a line each.
    """
    for line in DIFFERENCES:
        if (
            kind in line.kinds.split("|")
            and re.fullmatch(line.names, name)
            and re.search(line.says, text, re.MULTILINE)
        ):
            return line.reason
    return ""
