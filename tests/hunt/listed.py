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
_EMPTY = r"\b0[,\]]"  # a tensor without elements in the call
_ODD = r"\A(?:(?!Error: )[\s\S])*(?:float|complex)\d+\[[\d, ]*\][/\w]*/odd(?![\s\S]*Error: )"  # NaN and infinities in a float tensor, no error
DIFFERENCES = [
    # -- both raise ------------------------------------------------------------------------------------------
    # A call with two faults: which one the error names. PyTorch finds dtypes in kernels, dimensions in views, and
    # types in its parser or, for functions in Python, in the first line that fails.
    Listed("order", ANY, r"^TypeError: .*\Z", "Flambeau compares the types of all arguments first"),
    Listed("order", ANY, "NotImplementedError|[dD]type|not implemented for|doesn't handle types|floating point|bool input|"
           "scalar type|result type", "one of two faults is a dtype without kernel"),
    Listed("order", ANY, "^IndexError: ", "one of two faults is a dimension that a tensor does not have"),
    Listed("order", ANY, "Overflow when unpacking long long|without overflow", "one of two faults is a number of more bits"),
    Listed("order", ANY, "Boolean value of Tensor|truth value", "PyTorch asks a tensor for its truth before it looks at types"),
    Listed("order", ANY, "allocate memory|overflowed", "no memory is a RuntimeError of its own class"),
    Listed(
        "order",
        r"adaptive_\w+_pool\dd(_with_indices)?|fractional_max_pool\dd(_with_indices)?|max_unpool\dd|lp_pool\dd|group_norm|"
        r"embedding|rms_norm|binary_cross_entropy_with_logits|triplet_margin_loss|alpha_dropout",
        "ValueError|AssertionError|ZeroDivisionError|IndexError",
        "PyTorch's functions in Python find wrong values before or after wrong shapes",
    ),
    Listed("order", "multi_head_attention_forward", "TypeError", "projections, which are optional, are compared where they are used"),
    Listed("order", "to", "Cannot access accelerator", "the oracle has no accelerator"),
    Listed("order", "broadcast_shapes", "broadcast a dimension", "the type of a negative length's error"),
    Listed("error type", "sspaddmm|sparse_resize_|sparse_resize_and_clear_", "sparse coordinate tensor", "a strided tensor is refused before other arguments"),
    Listed("error type", "norm", "linalg_vector_norm", "a dtype as `out=` and a wrong dimension: two faults"),
    Listed("error type", "broadcast_to|view_copy", "9223372036854775808", "a size beyond 63 bits is a wrong size"),
    Listed("error type", r"\w*loss", "UFuncTypeError", "NumPy's class of TypeErrors"),
    Listed("error type", "as_tensor|tensor|new_tensor|sparse_coo_tensor", "new\\(\\)|real number|invalid combination", "values are read before their type is refused"),
    Listed("error type", "broadcast_shapes|unsafe_split|to_sparse", "TypeError", "values are read before their type is refused"),
    Listed("error type", "GroupNorm", "unsupported operand", "an empty tuple divides nothing"),
    Listed("accepted", "RMSNorm|LayerNorm", "element of type bool", "a bool is a size of 0 or 1"),
    Listed("refused", "unsafe_split", "not numpy", "it is `split`, which refuses NumPy's ints"),
    Listed("refused", "max_unpool1d", "element of type float", "sizes are ints"),
    Listed("refused", "nonzero_static", r"must be int, not Tensor", "a count is an int"),
    Listed("error type", "view_copy", "invalid combination", "a number may stand for a shape of one dimension"),
    Listed("error type", r"Conv\w+", "unhashable", "a list is not a padding mode"),
    Listed("error type|accepted", r"fractional_max_pool\dd(_with_indices)?|max_unpool\dd|lp_pool\dd", "has no len|cond must be a bool|iteration over a 0-d tensor|element of type bool",
           "a number of any integer type stands for every dimension"),
    # -- PyTorch raises --------------------------------------------------------------------------------------
    Listed(
        "accepted", "kron|take_along_dim|isin", "view size is not compatible",
        "PyTorch's implementation makes a view that this layout does not have",
    ),
    Listed(
        "accepted", "round", r"special\.round", "torch.round, which takes integers, and torch.special.round are one function",
    ),
    Listed(
        "accepted", "bernoulli_?|nanmean|multilabel_margin_loss|mse_loss|rrelu|max_pool1d", "not implemented for",
        "the kernel takes more dtypes",
    ),
    Listed("accepted", "uniform_|rand", rf"check_uniform_bounds|{_EMPTY}", "nothing is drawn for a tensor without elements"),
    Listed(
        "accepted", "gaussian_nll_loss|huber_loss|cholesky_solve|linear", "can't be cast to|to have the same dtype|must have the same dtype",
        "mixed dtypes are promoted",
    ),
    Listed("accepted", "index_fill_?", "setStorage", "an index of a tensor without elements fills nothing"),
    Listed("accepted", r"index_\w+", "Expected dtype int64 for index", "indices may be int32"),
    Listed("accepted", "linear|logsumexp", "doesn't match the broadcast shape", "the result has the shape that the documentation states"),
    Listed("accepted", "tensorinv", "ArrayRef: invalid slice", "a tensor of one dimension is a vector to invert"),
    Listed("accepted", "lstsq", "INTERNAL ASSERT", "PyTorch fails by an internal assertion for matrices with NaN"),
    Listed("accepted", r"\w*fft\w*", "MKL FFT error", "the transform of no elements is empty"),
    Listed(
        "accepted", ANY, "Overflow when unpacking long long|without overflow|Promotion for uint16|int too (big|large) to convert",
        "numbers beyond 63 bits, or beyond the dtype of a bound, saturate",
    ),
    Listed("accepted", r"lp_pool\dd", r"not enough values to unpack|mul\(\)", "a tuple of one int stands for every dimension"),
    Listed("accepted", r"adaptive_max_pool\dd_with_indices", "multiple values", "`return_indices` has no use here"),
    Listed("accepted", "unsafe_chunk|chunk", "split_size be non-negative", "PyTorch's size of a chunk overflows"),
    Listed("accepted", "contiguous", "memory_format", "the warm path compares the format with the tensor's own alone"),
    Listed("accepted", "copy_", "more than one element of the written-to tensor", "a number fills an expanded tensor"),
    Listed("accepted", "resize_", "not resizable", "every storage can grow"),
    Listed("accepted", r"resize(_as)?", r"view\(\) received|requested resize to", "PyTorch's functions of these names fail for every argument"),
    Listed("accepted", r"(avg|lp)_pool3d|avg_pool2d|lp_pool2d", "not implemented for '(Half|BFloat16)'", "the kernel takes more dtypes"),
    Listed("accepted", r"index_(add|fill)_?", "source tensor shape must match|complex Scalar", "a number broadcasts; a complex one without imaginary part is real"),
    Listed("accepted", "rrelu", "unexpected keyword argument 'inplace'", "torch.rrelu is torch.nn.functional.rrelu"),
    Listed("accepted", "diff", "same dimension as input", "no element is prepended to any tensor"),
    Listed("accepted", "broadcast_shapes", "should be of type ints", "an integer tensor is a size here, too"),
    Listed("accepted", r"atleast_\dd", r"got \(str\)", "an empty string is a sequence without tensors"),
    Listed("accepted", "bilinear", "must have the same dtype", "mixed dtypes are promoted"),
    Listed("accepted", "random_", "out of bounds for", "numbers beyond the dtype of a bound saturate"),
    Listed("accepted", "__setitem__", "masked_fill_ only supports boolean masks", "masks of dtype uint8 still select"),
    Listed("accepted", "bilinear", "Dimension specified as 0", "a bias without dimensions is added to all"),
    Listed("accepted", "to_sparse", r"got \(NoneType\)", "None is the number of sparse dimensions that is not given"),
    Listed("accepted", "tile", "isIntegral", "a tensor of dtype bool repeats once or never"),
    # -- PyTorch accepts -------------------------------------------------------------------------------------
    Listed(
        "refused", "tril_|triu_|masked_fill_|index_fill_|baddbmm_|threshold", "more than one element of the written-to tensor",
        "an expanded tensor is refused by all in-place functions alike: the result depends on the order of writes",
    ),
    Listed("refused", "linalg_eigh|eigh|eigvalsh|eigvals|eig|svd|svdvals|pinv|pinverse|matrix_rank", "non-finite values",
           "a matrix with NaN or infinities is refused; PyTorch's LAPACK refuses some and returns NaN for others"),
    Listed("refused", "inverse|inv", "odd", "rounding decides whether a matrix with huge elements is singular"),
    Listed(
        "refused", r"adaptive_avg_pool\dd|inner|linspace|svd|cumsum_|cummax|cummin|nanmedian", "NotImplementedError",
        "a dtype is refused of tensors without elements or dimensions, and of one window, as of all others",
    ),
    Listed("refused", "cummax|cummin|vecdot", "Dimension out of range", "the dimension is compared with its range for every tensor"),
    Listed(
        "refused", r"adaptive_avg_pool\dd|batch_norm", "Expected|expected",
        "the number of dimensions is checked for one window and for no elements, too",
    ),
    Listed("refused", "fractional_max_pool[23]d(_with_indices)?", "Expected reduction dim", "a window has an element at least"),
    Listed("refused", "margin_ranking_loss|triplet_margin_loss", "", "torch.* checks its arguments as torch.nn.functional does"),
    Listed("refused", ANY, r"float\(\) argument|without overflow|too big|too large", "numbers that the dtype cannot hold are refused"),
    Listed("refused", "trapz|trapezoid|cumulative_trapezoid", "size of tensor", "positions have the length of the dimension"),
    Listed("refused", "bernoulli_", "expanded size|complex", "probabilities must broadcast to a tensor without elements, too"),
    Listed("refused", "addbmm_", "must match", "an in-place function does not resize its tensor"),
    Listed("refused", "broadcast_shapes", "list of ints|tuple of ints", "a bool or a float is not a size"),
    Listed("refused", "nonzero_static", "can't allocate", "rows without elements are allocated"),
    Listed("refused", "mse_loss", "complex64", "a complex loss is refused with a weight, too"),
    Listed("refused", "lu", "get_infos", "what is annotated as a bool is one"),
    Listed("refused", r"clamp_?|clip_?|clamp_(min|max)_?|softshrink|hardshrink|threshold", r"[+-]0j\)", "a complex number is not a bound, with no imaginary part either"),
    Listed("refused", "bernoulli|tensordot|bucketize|rms_norm", "not implemented for '(Bool|bool|ComplexFloat|ComplexDouble)'",
           "a dtype without kernel is refused for every size"),
    Listed("refused", "adaptive_max_pool1d|batch_norm", _EMPTY, "sizes of a tensor without elements are checked, too"),
    Listed("refused", "hann_window|logspace|linspace", "floating point dtypes|not implemented for|without overflow", "dtypes and bounds are checked for windows of one element, too"),
    Listed("refused", "linalg_eigvals|eigvals", "infs or NaNs", "a matrix with NaN or infinities is refused"),
    Listed("refused", "random_", "None", "None is not a bound"),
    Listed("refused", "as_strided", "setStorage", "the harness copies the elements of a tensor, not its whole storage"),
    Listed("refused", "index_put_?|put_", "more than one element of the written-to tensor", "an expanded tensor is refused by all in-place functions alike"),
    Listed("refused", "nan_to_num_?", "complex", "a replacement is a real number"),
    Listed("refused", "view_copy", "<class", "a type of Python is not a dtype to view as"),
    Listed("accepted", "fill_", "more than one element of the written-to tensor", "a tensor without dimensions fills an expanded tensor, as a number does"),
    Listed("refused", "char|byte|short|int|long|half|float|double|bool|bfloat16|cfloat|cdouble|chalf", "memory_format", "None is not a memory format"),
    Listed("refused", r"adaptive_\w+_pool\dd(_with_indices)?|max_unpool\dd", "must be tuple of ints, not (Tensor|float|bytes|range)", "sizes are ints"),
    Listed("refused", r"fractional_max_pool\dd(_with_indices)?", "kernel_size must be positive|consist of ints", "a window has an element at least"),
    Listed("refused", r"\w*pool\dd(_with_indices)?|unfold|fold", "have 31 bits", "kernels count windows in 31 bits"),
    Listed("refused", "multi_head_attention_forward", "dropout probability", "a negative probability is refused"),
    Listed("refused", "to", r"device\(\): argument 'type'", "a number is not a dtype: PyTorch's parser takes its type"),
    Listed("refused", "searchsorted", "not implemented for 'bool'", "bools are not numbers to search"),
    Listed("refused", "[dhv]split", "tensor of dtype bool", "a tensor of dtype bool is not a number of parts"),
    Listed("refused", r"conv\w*", "have 31 bits", "kernels count in 31 bits"),
    Listed("refused", "broadcast_shapes", "Overflow when unpacking", "a size has 63 bits"),
    Listed("refused", "stft", "argument 'center'", "what is annotated as a bool is one"),
    Listed("refused", "group_norm", "more than 1 value per channel", "torch.* checks its arguments as torch.nn.functional does"),
    Listed("refused", "roll", "tensor of dtype bool", "a tensor of dtype bool is not a number of places"),
    Listed("refused", "matrix_norm", "bool\\[", "a tensor of dtype bool is not a norm"),
    Listed("refused", "rrelu", "bound must be finite", "infinite slopes are refused without elements, too"),
    # -- other results ---------------------------------------------------------------------------------------
    Listed("form|value", "unique_consecutive", "", "PyTorch returns counts, which are empty, for a positional `return_inverse`"),
    Listed("form", "pixel_unshuffle|pixel_shuffle", _EMPTY, "channels are multiplied for a tensor without elements, too"),
    Listed("form", "trapezoid|trapz|cumulative_trapezoid", r"\[0\]", "sums of no elements have the dtype of sums"),
    Listed("value", "cholesky_ex", "", "the factor of a matrix that is not positive definite is NaN; LAPACK leaves a part of its work"),
    Listed("value", "matrix_exp", "bfloat16|float16", "PyTorch computes in the dtype, where the series overflows"),
    Listed("value", "median|nanmedian", "expanded", "PyTorch's result is not the median of an expanded tensor"),
    Listed("value", "kthvalue|topk|mode|median|nanmedian|unique", "", "another one of equal elements is found"),
    Listed("value", "pinv|pinverse|solve_ex|inv_ex|logdet|slogdet|det|inverse", "expanded", "rounding decides whether a singular matrix is found to be one"),
    Listed("value", "searchsorted|bucketize", "", "boundaries that are not sorted: any place is right"),
    Listed("value", "put_?", "index", "of equal indices another one is written last"),
    Listed("value", "add|sub|subtract|add_|sub_|subtract_|rsub", "complex.*inf|complex.*odd", "PyTorch multiplies by `alpha` as a complex number: infinity times 0j is NaN"),
    Listed(
        "value", r"(vector_)?norm|dist|cdist|pairwise_distance|cosine_similarity|triplet_margin_loss|std|var|std_mean|var_mean|group_norm|"
        r"quantile|nanquantile|logaddexp", "odd",
        "sums are wide: squares of numbers near 1e30 do not overflow, and infinities meet in another order",
    ),
    Listed(
        "value", r"lu_factor(_ex)?|lu|det|slogdet|logdet|solve_ex|inv_ex|inverse|inv|cholesky_inverse|matrix_power|fft2?|\w*fftn?|\w*fft2?", "odd",
        "matrices and signals with NaN or infinities: which results are NaN depends on the order of products",
    ),
    Listed("value", r"\w+_polynomial_\w", r"odd|\d{13}", "infinities, and degrees beyond 1e12: the recurrence has another order"),
    Listed("value", "airy_ai", "", "PyTorch's approximation is off by up to 3e-6 in [-3.17, -2.09]"),
    Listed("value", "ldexp", "float64.*float32", "2 ** other is rounded in float32, by another power function"),
    Listed("value", "logspace", "-inf", "powers of an infinite base with complex exponents"),
    Listed("value", "(vector_)?norm|renorm", r"1e\+30|nan", "the norm of one element and of huge degrees is computed as of others"),
    Listed("value", "triplet_margin_loss", r"1e\+300", "differences of powers that overflow"),
    Listed("value", "matrix_power", "9223372036854775807", "which elements are NaN depends on the order of products"),
    Listed("value", "mse_loss", "complex64", "the product with a complex weight is not rounded to bfloat16 before"),
    Listed("value", r"bessel_[jy]\d", "", "PyTorch's approximations are off by up to 4e-7 in places"),
    Listed("value", r"lp_pool\dd", r"1e\+300", "the root of that degree is 1 for all powers, which are 0 or infinite"),
    Listed("value", "triplet_margin_loss", r"\d{13}", "the rounding of a huge eps decides"),
    Listed("value", r"\w*loss", "array", "a loss with a NumPy array is computed by NumPy"),
    # -- gradients ---------------------------------------------------------------------------------------------
    Listed("gradient", "acosh|arccosh", "", "the result below 1 is NaN, and so is its gradient"),
    Listed("gradient", "polar|atan2|arctan2", "", "PyTorch's formula ignores a negative `abs`, and squares integers in their dtype"),
    Listed("gradient", "cholesky_inverse|cholesky_solve", "", "only a triangle is read; PyTorch's formula multiplies by the whole matrix"),
    Listed("gradient", ANY, "derivative for aten::(detach_copy|_?histogram)", "a result that never requires gradients, where backward would raise"),
    Listed("gradient", ANY, "derivative for .* is not implemented|not implemented for", "PyTorch lacks this derivative, or its kernel for the dtype"),
    Listed("gradient", "det|logdet|slogdet|lu|lu_factor|lu_factor_ex|matrix_power", "expanded|odd", "a singular matrix: rounding decides"),
    Listed("gradient", "prod|cumprod|softmax|log_softmax", r"isFloatingType\(grad|does not support automatic|Autograd not support dtype", "sums and products in another dtype have the gradient of the conversion"),
    Listed("gradient", "huber_loss|smooth_l1_loss|mse_loss", "Found dtype", "mixed dtypes are promoted"),
    Listed("gradient", r"adaptive_\w+_pool\dd(_with_indices)?", "non-zero size", "the gradient of no elements is zero"),
    Listed("gradient", "cholesky", _EMPTY, "a matrix without elements has a gradient without elements"),
    Listed("gradient", "dist|norm|cdist", "undefined Tensor", "the gradient of the number of elements is zero"),
    Listed("gradient", "elu|celu|selu|hardtanh|relu6|hardswish|hardshrink|softshrink", _ODD, "NaN: the gradient of PyTorch's scalar code"),
    Listed("gradient", "prod|cumprod|solve_ex|inv_ex|solve|inverse|inv|matrix_exp|std|var|std_mean|var_mean|group_norm|layer_norm|rms_norm|normalize|" +
           r"(vector_)?norm|logsumexp|logcumsumexp|cosine_similarity|cdist|pairwise_distance|renorm", _ODD, "NaN and infinities meet in another order"),
    Listed("gradient", "i1|i1e|log_ndtr|vander", _ODD, "at NaN the gradient is NaN; at -inf and of powers it is the limit"),
    Listed("gradient", "logaddexp|logaddexp2", "complex.*odd", "complex infinities meet in another order"),
    Listed("gradient", ANY, "support automatic differentiation for outputs with complex", "PyTorch's autograd does not allow the complex result"),
    Listed("gradient", "block_diag", _EMPTY, "PyTorch's formula counts no row for a vector without elements"),
    Listed("gradient", "combinations", "", "no combination: no gradient"),
    Listed("gradient", "trapezoid|trapz|cumulative_trapezoid", _EMPTY, "sums of no elements have a gradient without elements"),
    Listed("gradient", r"quantile|nanquantile|atanh|arctanh|sinc|xlogy|triplet_margin_loss", _ODD, "NaN and infinities meet in another order"),
    Listed("gradient", "cumprod|prod|cumsum|sum", "float64.*dtype=torch.float32", "computed in float32"),
    Listed("gradient", "digamma|psi|polygamma|zeta", "", "PyTorch's trigamma has fewer digits"),
    Listed("gradient", "mse_loss|smooth_l1_loss|huber_loss", "with a bool tensor is not supported", "a bool has no difference"),
    Listed("gradient", "soft_margin_loss", "on a bool tensor is not supported", "PyTorch's formula negates a bool"),
    Listed("gradient", ANY, r"float64\[\]/odd", "the gradient of a number is summed in the dtype of the result"),
    Listed("gradient", "addcdiv", "can't be cast to", "PyTorch's formula divides in the dtype of an integer"),
    Listed("gradient", "logaddexp|float_power", "with a bool tensor is not supported", "PyTorch's formula subtracts a bool"),
    Listed("gradient", "ldexp|dist", "to be true, but got false", "PyTorch's formula mixes real and complex gradients"),
    Listed("gradient", "cumsum|cumprod", "Autograd not support dtype", "an integer result does not require gradients"),
    Listed("gradient", "roll", "only concrete integers", "PyTorch's formula negates the largest int"),
    Listed("gradient", "scatter_add_?", "ScatterAddBackward0 returned", "a source larger than its index has zeros as gradient behind it"),
    Listed("gradient", "var|std", r"\(,\)|\[\]", "PyTorch's formula counts no element where all dimensions are reduced"),
    Listed("gradient", "xlog1py", r"1e\+300", "a factor beyond float32 is computed in float64"),
    Listed("gradient", "embedding", r"int64\[1\]/index\)", "a tensor of one element is the index that gets no gradient only in PyTorch"),
    Listed("gradient", "float_power", r"\d{13}", "powers that overflow: PyTorch rounds the exponent to float32"),
    Listed("gradient", "rsub", "int64_t without overflow", "a factor beyond 63 bits is computed as a float"),
    Listed("gradient", r"lp_pool\dd", "with a bool tensor is not supported", "a bool is a degree of 0 or 1"),
    Listed("gradient", "full", "must be Number, not Tensor", "a tensor that requires gradients fills as its number does"),
    Listed("gradient", "std|var|std_mean|var_mean", r"\bfloat16[\s\S]*[\[ ]-?inf", "PyTorch's formula overflows in 16 bits"),
    Listed("gradient", "ldexp", r"u?int\d+\[", "PyTorch's formula computes 2 ** other in integers, 0 for negative ones"),
    Listed("gradient", "group_norm", "tensor does not have a device", "PyTorch's formula lacks a bias without a weight"),
    Listed("gradient", r"\w*loss", r"Can't call numpy\(\)", "NumPy's arrays stand for tensors without gradients only"),
    # -- CUDA is not the CPU -----------------------------------------------------------------------------------
    Listed("device", ANY, "_cuda\" not implemented|not implemented for|lu_factor_cusolver|Unsupported dtype Half|HalfTensor",
           "PyTorch's kernels for the CPU and for CUDA take other dtypes"),
    Listed("device", "mm|bmm|addmm|baddbmm", "out_dtype is for CUDA", "products in another dtype exist on CUDA only"),
    Listed("device", "nansum|nanmean", "complex", "sums of complex numbers without NaN exist on CUDA only"),
    Listed("device", ANY, "ZeroDivisionError", "integers divided by zero raise on the CPU only"),
    Listed("device", "bernoulli_?|poisson|multinomial|binomial|normal_?|dropout", "", "probabilities are compared on the CPU only"),
    Listed("device", ANY, "LU without pivoting", "factors without pivots exist on CUDA only"),
    Listed("device", "lstsq", "", "the rank is computed on the CPU only"),
    Listed("device", "cholesky_inverse|inverse|inv|solve|cholesky", "diagonal element|singular|positive-definite|leading minor", "cuSOLVER reports no element"),
    Listed("device", "embedding_bag", "offsets\\[", "offsets are compared with the input on the CPU only"),
    Listed("device", "__setitem__", "dtypes match", "a number on another device is not converted"),
    Listed("device", "gumbel_softmax|gaussian_nll_loss|multilabel_soft_margin_loss", "array", "NumPy computes with tensors of the CPU only"),
    # -- calls in place (inplace_calls.py) ---------------------------------------------------------------------
    Listed("in place: error type|in place: message", ANY, "", "of several faults of a call another one is reported"),
    Listed("in place: gradient", ANY, "RuntimeError: derivative for aten::", "PyTorch loses the gradient of an argument, Flambeau raises"),
    Listed("in place: gradient", "zero_|fill_|masked_fill_|index_fill_", "more than one element of the written-to tensor", "backward through a filled expanded tensor, which PyTorch refuses"),
    Listed("in place: gradient", "ldexp_", "float64", "2 ** other is rounded in float32, by another power function"),
    Listed("in place: refused", "conj_physical_", "more than one element of the written-to tensor", "an expanded tensor is refused, with real numbers too"),
    Listed("in place: refused", "geometric_|log_normal_", "not implemented for", "a dtype without kernel is refused for every size"),
    Listed("in place: node", "normal_", "complex", "both parts are filled as views"),
    Listed("in place: gradient", "sinc_", "float16", "a step of the formula is rounded to 16 bits"),
    Listed("in place: gradient", "a?(rc)?(cosh|sinh|tanh)_", "derivative for 'inplace version", "PyTorch lacks this derivative in place"),
    Listed("in place: refused", "clamp_|clip_|clamp_(min|max)_", r"[+-]0j\)", "a complex number is not a bound, with no imaginary part either"),
    Listed("in place: refused", "cumsum_|cumprod_", "not implemented for 'Bool'", "a dtype without kernel is refused for every size"),
    Listed("in place: refused", "bernoulli_", "expand", "probabilities must broadcast to a tensor without elements, too"),
    Listed("in place: refused", "addmv_|addmm_|addbmm_|baddbmm_|addr_|tril_|triu_|index_put_|put_|scatter_", "more than one element of the written-to tensor",
           "an expanded tensor is refused where the result depends on the order of writes"),
    Listed("in place: refused", ANY, r"without overflow|too big|too large", "numbers that the dtype cannot hold are refused"),
    Listed("in place: accepted", ANY, "^TypeError: ", "a number may be an array or a tensor of one element"),
    Listed("in place: accepted", "fill_|zero_", "more than one element of the written-to tensor", "a tensor without dimensions fills an expanded tensor, as a number does"),
    Listed("in place: node", r"(eq|ne|lt|le|gt|ge|not_equal|less|less_equal|greater|greater_equal|fill|zero|ldexp|clamp|clip|clamp_min|clamp_max)_", "", "PyTorch's name of the node of an overload"),
    Listed("dead device", r"repeat_interleave|embedding|embedding_bag|\w*nll_loss|gather|scatter\w*|index\w*|take\w*|multinomial", "", "an index is only compared with its range in the kernel"),
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
