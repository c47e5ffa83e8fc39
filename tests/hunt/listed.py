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
        says: What occurs in the call, or in the lines "PyTorch: ..." and "Flambeau: ..." after it.
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
    Listed("order", ANY, "^Flambeau: TypeError: ", "a wrong type is a TypeError, where PyTorch's code fails at a later line or finds another fault first"),
    Listed("order", ANY, r"^(PyTorch|Flambeau): (NotImplementedError|\w*Error: .*([dD]type|not implemented for|doesn't handle types|floating point|bool input|scalar type|result type))",
           "one of two faults is a dtype without kernel"),
    Listed("order", ANY, "^(PyTorch|Flambeau): IndexError: ", "one of two faults is a dimension that a tensor does not have"),
    Listed("order", ANY, "^(PyTorch|Flambeau): .*(Overflow when unpacking long long|without overflow)", "one of two faults is a number of more bits"),
    Listed("order", ANY, "^(PyTorch|Flambeau): .*(allocate memory|overflowed)", "no memory is a RuntimeError of its own class"),
    Listed(
        "order",
        r"adaptive_\w+_pool\dd(_with_indices)?|fractional_max_pool\dd(_with_indices)?|max_unpool\dd|lp_pool\dd|group_norm|"
        r"embedding|rms_norm|triplet_margin_loss|alpha_dropout|binary_cross_entropy_with_logits|multi_head_attention_forward|batch_norm",
        "ValueError|AssertionError|ZeroDivisionError|IndexError|^PyTorch: AttributeError",
        "PyTorch's functions in Python find wrong values before or after wrong shapes",
    ),
    Listed("error type", "sspaddmm|sparse_resize_|sparse_resize_and_clear_", "sparse coordinate tensor", "a strided tensor is refused before other arguments"),
    Listed("error type", r"\w*loss", "UFuncTypeError", "NumPy's class of TypeErrors"),
    Listed("error type", r"Conv\w+", "unhashable", "a list is not a padding mode"),
    Listed("error type|accepted", r"fractional_max_pool\dd(_with_indices)?|max_unpool\dd|lp_pool\dd", r"has no len|len\(\) of a 0-d|tuple index out of range|cond must be a bool|iteration over a 0-d tensor|element of type bool",
           "a number of any integer type stands for every dimension"),
    Listed("error type", "sparse_coo_tensor", "^PyTorch: .*cannot be interpreted as an integer", "indices are read before their dtype is known"),
    Listed("error type", r"fold|unfold|fractional_max_pool\dd(_with_indices)?|max_unpool\dd|(layer|rms|group)_norm|GroupNorm|ctc_loss|lp_pool1d|norm|normalize|sparse_coo_tensor|" +
           "float_power_|new_zeros|stft|local_response_norm|kl_div",
           "^Flambeau: (RuntimeError|IndexError|ValueError)", "of several faults, a wrong type is found after a wrong value"),
    Listed("order", "lstsq", "^PyTorch: .*INTERNAL ASSERT", "PyTorch fails by an internal assertion for matrices with NaN"),
    Listed("order", r"\w+_like", "^PyTorch: .*accelerator device when none", "PyTorch's CPU build has no accelerator"),
    Listed("order", "rrelu|range|huber_loss|broadcast_shapes", "^PyTorch: (OverflowError|ValueError|AssertionError)", "of two faults, or of a huge number, another one is reported"),
    # -- PyTorch raises --------------------------------------------------------------------------------------
    Listed(
        "accepted", "kron|take_along_dim|isin", "view size is not compatible",
        "PyTorch's implementation makes a view that this layout does not have",
    ),
    Listed(
        "accepted", "round", r"special\.round", "torch.round, which takes integers, and torch.special.round are one function",
    ),
    Listed(
        "accepted", r"bernoulli_?|nanmean|multilabel_margin_loss|mse_loss|rrelu|max_pool1d|max_unpool\dd", "not implemented for",
        "the kernel takes more dtypes",
    ),
    Listed(
        "accepted", "gaussian_nll_loss|huber_loss|cholesky_solve|linear|svd_lowrank|pca_lowrank", "can't be cast to|to have the same dtype|must have the same dtype",
        "mixed dtypes are promoted",
    ),
    Listed("accepted", "__setitem__", "bool.* Overflow when unpacking long long", "every number is a bool"),
    Listed("accepted", r"\w*fft\w*", "MKL FFT error", "the transform of no elements is empty"),
    Listed(
        "accepted", ANY, "without overflow|Promotion for uint16",
        "numbers beyond the dtype of a bound saturate",
    ),
    Listed("accepted", r"lp_pool\dd", r"not enough values to unpack|mul\(\)", "a tuple of one int stands for every dimension"),
    Listed("accepted", "unsafe_chunk|chunk", "split_size (be non-negative|can only be 0)", "PyTorch's size of a chunk overflows"),
    Listed("accepted", r"resize(_as)?", r"view\(\) received|requested resize to", "PyTorch's functions of these names fail for every argument"),
    Listed("accepted", "__setitem__", "masked_fill_ only supports boolean masks", "masks of dtype uint8 still select"),
    Listed("accepted", r"index_\w+", "Expected (dtype int64|a long tensor) for index", "indices may be int32"),
    Listed("accepted", "inverse|inv", "expanded|odd", "rounding decides whether a matrix is singular"),
    Listed("accepted", "resize_", "not resizable", "every storage can grow"),
    Listed("accepted", "tile", "isIntegral", "a tensor of dtype bool repeats once or never"),
    Listed("accepted", r"atleast_\dd", r"got \(str\)", "an empty string is a sequence without tensors"),
    Listed("accepted", "diff", "same dimension as input", "no element is prepended to any tensor"),
    Listed("accepted", ANY, "'ComplexHalf'", "complex32 is computed on the CPU, too"),
    Listed("accepted", "tri[lu]_indices", "overflowed|negative dimension", "sizes are computed without overflow"),
    Listed("accepted", "logsumexp", "doesn't match the broadcast shape", "all dimensions are reduced, as by `sum`"),
    Listed("accepted", "lstsq", "INTERNAL ASSERT", "a matrix with NaN in the values, for which PyTorch's LAPACK fails"),
    Listed("accepted", "norm", r"len\(\) of a 0-d tensor|'numpy.int64' has no len", "a dimension may be a tensor or a NumPy integer, as in `vector_norm`"),
    Listed("accepted|error type", "to", "^PyTorch: .*accelerator device when none", "PyTorch's CPU build has no accelerator"),
    Listed("accepted", "to_sparse", r"got \(NoneType\)", "None is the default of `sparse_dim`"),
    # -- PyTorch accepts -------------------------------------------------------------------------------------
    Listed("refused", "linalg_eigh|eigh|eigvalsh|eigvals|eig|svd|svdvals|pinv|pinverse|matrix_rank|lstsq", "non-finite values|infs or NaNs",
           "a matrix with NaN or infinities is refused; PyTorch's LAPACK refuses some and returns NaN for others"),
    Listed(
        "refused", r"adaptive_avg_pool\dd|inner|linspace|svd|cumsum_|cumprod_|cummax|cummin|nanmedian|bernoulli|pdist", "NotImplementedError|only supports floating-point",
        "a dtype is refused of tensors without elements or dimensions, and of one window, as of all others",
    ),
    Listed(
        "refused", r"adaptive_avg_pool\dd|batch_norm", "Expected|expected",
        "the number of dimensions is checked for one window and for no elements, too",
    ),
    Listed("refused", "cummax|cummin", r"\[(\d, )*0[,\]].*[\s\S]*Dimension out of range", "dimensions of a tensor without elements are checked, too"),
    Listed("refused", "copy_|index_put_?|__setitem__", "^Flambeau: .*without overflow", "numbers that the dtype cannot hold are refused, as by `masked_fill_`"),
    Listed("refused", "fill_?|full|new_full|full_like|scalar_tensor", r"^Flambeau: .*(Half|BFloat16|Float8_\w+) without overflow",
           "numbers that the dtype cannot hold are refused, as by PyTorch on CUDA and by `masked_fill_`"),
    Listed("refused", "lu", "LU without pivoting", "factors without pivots exist on CUDA only, for every size"),
    Listed("refused", "pca_lowrank", r"vector\(", "a vector of one element is not an int"),
    Listed("refused", r"ConvTranspose\dd", "Invalid padding string", "a text is not a padding; PyTorch keeps its letters"),
    Listed("refused", "lu|stft", "argument '(get_infos|center)'", "what is annotated as a bool is one"),
    Listed("refused", r"clamp_?|clip_?|clamp_(min|max)_?|softshrink|hardshrink|threshold", r"[+-]0j\)", "a complex number is not a bound, with no imaginary part either"),
    Listed("refused", r"adaptive_\w+_pool\dd(_with_indices)?|max_unpool\dd", "must be tuple of ints, not (Tensor|float|bytes|range)", "sizes are ints"),
    Listed("refused", r"fractional_max_pool\dd(_with_indices)?", r"kernel_size must be positive|consist of ints|\d{13} too large", "a window has an element at least"),
    Listed("refused", r"\w*pool\dd(_with_indices)?|unfold|fold", r"have 31 bits|kernel_size=\(\d{13}", "kernels count windows in 31 bits"),
    Listed("refused", "to", "device\\(\\): argument 'type'", "a number is not a dtype; PyTorch takes it for its type's"),
    Listed("refused", "rrelu", "bound must be finite", "bounds are checked without training, too"),
    Listed("refused", "as_strided_", "expanded.*[\\s\\S]*out of bounds for", "the drawn tensor is copied without the part of its storage that it does not show"),
    Listed("refused", "roll", "tensor of dtype bool", "a tensor of dtype bool is not a number of places"),
    Listed("refused", "adaptive_max_pool1d|batch_norm", _EMPTY, "sizes and overlaps of a tensor without elements are checked, too"),
    Listed("refused", "bernoulli|tensordot|bucketize|rms_norm", "not implemented for '(Bool|bool|ComplexFloat|ComplexDouble)'",
           "a dtype without kernel is refused for every size"),
    Listed("refused", "embedding_bag", "an offset is -", "with `include_last_offset`, too, no bag ends before the input"),
    Listed("refused", "nan_to_num_?", "complex", "a replacement is a real number"),
    Listed("refused", "tril_|triu_|masked_fill_|index_fill_|baddbmm_|index_put_?|put_", "^Flambeau: .*more than one element of the written-to tensor",
           "an expanded tensor is refused where the result depends on the order of writes"),
    Listed("refused", "lu_factor(_ex)?|inverse|inv", "odd", "rounding decides whether a matrix with huge elements is singular"),
    Listed("refused", "upsample_bilinear|interpolate|upsample", "not implemented for 'Byte'", "images of bytes are interpolated by PyTorch's CPU kernels only"),
    Listed("refused", "hann_window|logspace|linspace", "^Flambeau: .*(floating point dtypes|not implemented for|without overflow)",
           "dtypes and bounds are checked for windows and ranges without elements, too"),
    Listed("refused", "searchsorted", "not implemented for 'bool'", "bools are not numbers to search"),
    Listed("refused", "(exponential|normal|log_normal|geometric|cauchy)_", _EMPTY, "a dtype without kernel is refused for every size"),
    Listed("refused", "histogramdd|slice_scatter|vector_norm|broadcast_shapes|unfold|fold", r"tensor\(|int64\[1\]|bool\[\]|1\.0[,\]]|range\(", "sizes, steps and dimensions are ints"),
    # -- other results ---------------------------------------------------------------------------------------
    Listed("form|value", "unique_consecutive", r"\], (True|False, True)", "PyTorch returns counts, which are empty, for a positional `return_inverse`"),
    Listed("form|value", "unique_consecutive", r"True(, return_counts=False)?\)\n", "PyTorch returns an empty inverse for a positional `return_inverse`"),
    Listed("value", "to_sparse", "complex.*odd", "PyTorch's `to_dense` multiplies infinities by 1, which makes their imaginary part NaN"),
    Listed("value", "gelu", "/odd", "PyTorch's vector code of float32 returns NaN for infinity"),
    Listed("value", "matmul", "odd.*odd", "products with NaN or infinities, in another order"),
    Listed("form", "pixel_unshuffle|pixel_shuffle", _EMPTY, "channels are multiplied for a tensor without elements, too"),
    Listed("value", "bessel_[jy][01]|airy_ai", "float64", "PyTorch's kernels are wrong by up to 7e-7 (Bessel) and 3e-6 (Airy); Flambeau agrees with mpmath"),
    Listed("value", "matrix_exp", "bfloat16|float16", "PyTorch computes in the dtype, where the series overflows"),
    Listed("value", "median|nanmedian", "expanded", "PyTorch's result is not the median of an expanded tensor"),
    Listed("value", "kthvalue|topk|mode|median|nanmedian|unique", "", "another one of equal elements is found"),
    Listed("value", "pinv|pinverse|solve|solve_ex|inv_ex|logdet|slogdet|det|inverse", "expanded", "rounding decides whether a singular matrix is found to be one"),
    Listed("value", "put_?", "index", "of equal indices another one is written last"),
    Listed("value|in place: value", "add|sub|subtract|add_|sub_|subtract_|rsub|diff", "complex.*inf|complex.*odd", "PyTorch multiplies by `alpha` as a complex number: infinity times 0j is NaN"),
    Listed(
        "value", r"(vector_)?norm|dist|cdist|pairwise_distance|cosine_similarity|triplet_margin_loss|std|var|std_mean|var_mean|group_norm|"
        r"quantile|nanquantile|logaddexp", "odd",
        "sums are wide: squares of numbers near 1e30 do not overflow, and infinities meet in another order",
    ),
    Listed(
        "value", r"lu_factor(_ex)?|lu|det|slogdet|logdet|solve_ex|inv_ex|inverse|inv|cholesky_(ex|inverse|solve)|ldl_factor(_ex)?|matrix_power|fft2?|\w*fftn?|\w*fft2?", "odd",
        "matrices and signals with NaN or infinities: which results are NaN depends on the order of products",
    ),
    Listed("value", r"\w+_polynomial_\w", r"odd|\d{13}", "infinities, and degrees beyond 1e12: the recurrence has another order"),
    Listed("value", "matrix_power", "float16", "products are rounded once, by PyTorch after each step"),
    Listed("value", r"lt|le|gt|ge|eq|ne|add|sub|less|greater|\w+_equal", r"float16\[\d.*float(32|64)\[\]|float(32|64)\[\].*float16\[\d",
           "a number in a tensor without dimensions is not rounded to 16 bits first, as in PyTorch's CUDA kernels"),
    Listed("value", "matrix_power", r"\d{13}", "powers that overflow: the order of products decides which results are NaN"),
    Listed("value", "cosine_similarity|binary_cross_entropy_with_logits|ldexp_?", "float32.*float64|float64.*float32", "a step in float32 is rounded once more or less"),
    Listed("value", "(vector_)?norm|renorm|embedding(_bag)?", r"\A.*(1e\+30|nan|\d{13})", "the norm of one element and of huge degrees is computed as of others"),
    Listed("value", r"lp_pool\dd", r"1e\+300", "the root of that degree is 1 for all powers, which are 0 or infinite"),
    Listed("value", "triplet_margin_loss", r"\d{13}", "the rounding of a huge eps decides"),
    Listed("value", r"\w*loss", "array", "a loss with a NumPy array is computed by NumPy"),
    Listed("value", "multi_head_attention_forward", r"\A(?!.*training=False).*dropout_p=(0\.0*[1-9]|float|tensor|1e-)", "elements are dropped at random"),
    Listed("value", "cross", "odd", "PyTorch subtracts products of infinities or near 1e30 that are not rounded"),
    Listed("value", "multi_dot|chain_matmul", "odd", "products with NaN or infinities, in another order"),
    Listed("value", "triplet_margin_loss", r"1e\+300", "differences of powers that overflow"),
    # -- gradients ---------------------------------------------------------------------------------------------
    Listed("gradient", "polar", "", "PyTorch's formula ignores that `abs` is negative"),
    Listed("gradient", "atan2|arctan2", r"u?int\d+\[|bool\[", "PyTorch's formula squares integers in their dtype"),
    Listed("gradient", "cholesky_inverse|cholesky_solve", "", "only a triangle is read; PyTorch's formula multiplies by the whole matrix"),
    Listed("gradient", "detach_copy|histogram(dd)?", "^PyTorch: .*derivative for aten::", "a result that never requires gradients, where backward would raise"),
    Listed("gradient", ANY, "^PyTorch: .*(derivative for .* is not implemented|not implemented for)", "PyTorch lacks this derivative, or its kernel for the dtype"),
    Listed("gradient", "det|logdet|slogdet|lu|lu_factor|lu_factor_ex|matrix_power", "expanded|odd", "a singular matrix: rounding decides"),
    Listed("gradient", "prod|cumprod|softmax|log_softmax", r"isFloatingType\(grad|does not support automatic|Autograd not support dtype", "sums and products in another dtype have the gradient of the conversion"),
    Listed("gradient", "huber_loss|smooth_l1_loss|mse_loss", "Found dtype", "mixed dtypes are promoted"),
    Listed("gradient", r"adaptive_\w+_pool\dd(_with_indices)?", "non-zero size", "the gradient of no elements is zero"),
    Listed("gradient", "cholesky", _EMPTY, "a matrix without elements has a gradient without elements"),
    Listed("gradient", "dist|norm|cdist", "undefined Tensor", "the gradient of the number of elements is zero"),
    Listed("gradient", "prod|cumprod|solve_ex|inv_ex|solve|inverse|inv|matrix_exp|std|var|std_mean|var_mean|group_norm|layer_norm|rms_norm|normalize|" +
           r"(vector_)?norm|logsumexp|logcumsumexp|cosine_similarity|cdist|pairwise_distance|renorm", _ODD, "NaN and infinities meet in another order"),
    Listed("gradient", "i1|i1e|log_ndtr|vander", _ODD, "at NaN the gradient is NaN; at -inf and of powers it is the limit"),
    Listed("gradient", ANY, "^PyTorch: .*support automatic differentiation for outputs with complex", "PyTorch's autograd does not allow the complex result"),
    Listed("gradient", "sinc|tan", r"\bb?float16\[", "a step of the formula is rounded to 16 bits"),
    Listed("gradient", "combinations", "", "no combination: no gradient"),
    Listed("gradient", "digamma|psi|polygamma|zeta", "odd", "at poles PyTorch's trigamma is finite, and Flambeau's infinite"),
    Listed("gradient", "soft_margin_loss", "on a bool tensor is not supported", "PyTorch's formula negates a bool"),
    Listed("gradient", ANY, r"float64\[\]/odd|vector\(|tensor\(", "the gradient of a number is summed in the dtype of the result"),
    Listed("gradient", "addcdiv", "can't be cast to", "PyTorch's formula divides in the dtype of an integer"),
    Listed("gradient", "ldexp|dist", "to be true, but got false", "PyTorch's formula mixes real and complex gradients"),
    Listed("gradient", "roll", "only concrete integers", "PyTorch's formula negates the largest int"),
    Listed("gradient", "(var|std)(_mean)?", r"\(,\)|\[\]", "PyTorch's formula counts no element where all dimensions are reduced"),
    Listed("gradient", r"lp_pool\dd", "with a bool tensor is not supported", "a bool is a degree of 0 or 1"),
    Listed("gradient", "ldexp", r"u?int\d+\[", "PyTorch's formula computes 2 ** other in integers, 0 for negative ones"),
    Listed("gradient", "group_norm", "tensor does not have a device", "PyTorch's formula lacks a bias without a weight"),
    Listed("gradient", "full", "must be Number, not Tensor", "a tensor that requires gradients fills as its number does"),
    Listed("gradient", "cumsum|cumprod|masked_fill", "^PyTorch: .*Autograd not support dtype", "an integer result does not require gradients"),
    Listed("gradient", "inner|gaussian_nll_loss|triplet_margin_loss|pdist", _ODD, "NaN and infinities meet in another order"),
    Listed("gradient", "zeta", "^PyTorch: .*(torch boolean negative|on a bool tensor is not supported)", "PyTorch's formula negates a bool"),
    Listed("gradient", "ctc_loss", "int64", "a target that is the blank, which the documentation forbids"),
    Listed("gradient", "elu|celu|selu|hardtanh|relu6|hardswish|hardshrink|softshrink", _ODD, "NaN: the gradient of PyTorch's scalar code"),
    Listed("gradient", "remainder|quantile|atanh|arctanh|sinc|xlogy", _ODD, "NaN and infinities meet in another order"),
    Listed("gradient", "hardshrink", r"\+0j\)|bool\[\]", "a bound is a real number"),
    Listed("gradient", "narrow_copy", "^PyTorch: .*must match the size", "PyTorch's formula takes a negative start for a positive one"),
    Listed("gradient", ANY, "^PyTorch: .*([Ss]ubtraction, the `-` operator, with|on) (a|two) bool tensors? is not supported", "PyTorch's formula subtracts or negates a bool"),
    Listed("gradient", "where|logaddexp", "to be true, but got false", "PyTorch's formula mixes real and complex gradients"),
    Listed("gradient", "soft_margin_loss", "uint8", "PyTorch's formula negates unsigned integers"),
    Listed("gradient", "pow|float_power", r"\d{9}|" + _ODD, "PyTorch's CPU build rounds exponents beyond the dtype's precision in vectors alone, and so their parity; of -0.0 the root has another sign"),
    Listed("gradient", "logit|nanquantile", _ODD, "PyTorch's vector and scalar code differ for -0.0; of equal infinities another one is found"),
    Listed("gradient", "nuclear_norm", "expanded", "equal singular values have many singular vectors"),
    Listed("gradient", "pinv|pinverse", r"(float32|complex64)\[(?![\s\S]*Error: )",
           "differences of large products in float32: by the median of random matrices PyTorch's error is three times ours"),
    Listed("gradient", "cov", "^PyTorch: .*in-place operation", "PyTorch's function writes to its own argument"),
    Listed("gradient|in place: gradient", "scatter_add_?|scatter_reduce_?", "^PyTorch: .*invalid gradient",
           "PyTorch's formula has the gradient of the index's shape, not of the source's"),
    Listed("gradient", "channel_shuffle", "^PyTorch: .*Value of groups:0", "PyTorch's formula divides no channels into no groups"),
    Listed("gradient", "clamp|clip", "^PyTorch: .*output with shape .*broadcast shape", "PyTorch's formula writes into a mask that did not broadcast"),
    Listed("gradient", "slice_scatter", "^PyTorch: .*Autograd not support dtype: Bool", "a result of booleans does not require gradients"),
    Listed("gradient", r"embedding(_bag)?", r"^PyTorch: .*must be float, not Tensor", "a tensor that requires gradients is a number, too"),
    # -- CUDA is not the CPU -----------------------------------------------------------------------------------
    Listed("device", ANY, "_cuda\" not implemented|not implemented for|lu_factor_cusolver|Unsupported dtype Half|HalfTensor",
           "PyTorch's kernels for the CPU and for CUDA take other dtypes"),
    Listed("device", r"\w+_polynomial_\w", "is too high", "a virtual GPU refuses degrees whose recurrence has too many steps"),
    Listed("device", "lstsq", r"int64\[0\]", "the driver of CUDA, gels, has no rank to return"),
    Listed("device", ANY, "^PyTorch: .*allocate memory[\\s\\S]*OutOfMemoryError", "no memory is an OutOfMemoryError on CUDA and a RuntimeError on the CPU"),
    Listed("device", "mm|bmm|addmm|baddbmm", "out_dtype is for CUDA", "products in another dtype exist on CUDA only"),
    Listed("device", "nansum|nanmean", "complex", "sums of complex numbers without NaN exist on CUDA only"),
    Listed("device", ANY, "ZeroDivisionError", "integers divided by zero raise on the CPU only"),
    Listed("device", "bernoulli_?|poisson|multinomial|binomial|normal_?|dropout", "", "probabilities are compared on the CPU only"),
    Listed("device", "embedding_bag", r"offsets\[0\] has to be 0", "offsets are compared on the CPU only"),
    Listed("device", "__setitem__", "Index put requires", "a mask is filled with one value of the CPU, whose dtype may differ"),
    Listed("device", "(nan)?quantile", r"range \[0, 1\]", "quantiles are compared on the CPU only"),
    Listed("device", "lstsq", "does not have full rank", "the driver of CUDA, gels, needs full rank"),
    Listed("device", ANY, "LU without pivoting", "factors without pivots exist on CUDA only"),
    Listed("device", "cholesky_inverse|inverse|inv|solve|cholesky", "diagonal element|singular|positive-definite|leading minor", "cuSOLVER reports no element"),
    Listed("device", "gumbel_softmax|gaussian_nll_loss|multilabel_soft_margin_loss", "array", "NumPy computes with tensors of the CPU only"),
    # -- calls in place (inplace_calls.py) ---------------------------------------------------------------------
    Listed("in place: error type|in place: message", ANY, r"^(PyTorch|Flambeau): (TypeError|IndexError|NotImplementedError)", "of several faults of a call another one is reported; the parser's words differ"),
    Listed("in place: error type|in place: message", ANY, r"^(PyTorch|Flambeau): RuntimeError: .*(in-place operation|modified inplace|broadcast shape|must match|single memory location|be cast|to be \w+|not implemented|overflow)", "one of several faults is the written tensor"),
    Listed("in place: gradient", "heaviside_|floor_divide_", "^Flambeau: RuntimeError: derivative for aten::", "PyTorch loses the gradient of an argument, Flambeau raises"),
    Listed("in place: gradient", "zero_|fill_|masked_fill_|index_fill_", "more than one element of the written-to tensor", "backward through a filled expanded tensor, which PyTorch refuses"),
    Listed("in place: refused", "conj_physical_", "more than one element of the written-to tensor", "an expanded tensor is refused, with real numbers too"),
    Listed("in place: refused", "(geometric|log_normal|normal|exponential|cauchy)_", r"\b0[,\]]", "a dtype without kernel is refused for every size"),
    Listed("in place: gradient", "ldexp_", "float32.*float64", "PyTorch rounds the gradient of `other` to the dtype of the result"),
    Listed("in place: message", "index_put_", "^Flambeau: .*dtypes match", "of a wrong size and a wrong dtype the dtype is reported"),
    Listed("in place: gradient", "sinc_", r"\bb?float16\[", "a step of the formula is rounded to 16 bits"),
    Listed("in place: gradient", "a?(rc)?(cosh|sinh|tanh)_", "derivative for 'inplace version", "PyTorch lacks this derivative in place"),
    Listed("in place: refused", "clamp_|clip_|clamp_(min|max)_", r"[+-]0j\)", "a complex number is not a bound, with no imaginary part either"),
    Listed("in place: refused", "addmv_|addmm_|addbmm_|baddbmm_|addr_|tril_|triu_|index_put_|put_|scatter_", "more than one element of the written-to tensor",
           "an expanded tensor is refused where the result depends on the order of writes"),
    Listed("in place: accepted", "fill_|clip_|clamp_", "^PyTorch: TypeError: .*(ndarray|min=)", "a number may be an array or tensor without dimensions"),
    Listed("in place: value", "put_", "index", "of equal indices another one is written last"),
    Listed("in place: refused", "masked_scatter_", "single memory location", "a source that shares memory is refused for every layout"),
    Listed("in place: node", r"(eq|ne|lt|le|gt|ge|not_equal|less|less_equal|greater|greater_equal|fill|zero|ldexp|clamp|clip|clamp_min|clamp_max)_", "", "PyTorch's name of the node of an overload"),
    Listed("in place: gradient", "remainder_", "/odd", "NaN and infinities meet in another order"),
    Listed("in place: accepted", "index_fill_", "complex Scalar", "a complex number without imaginary part is real"),
    Listed("in place: refused", "bernoulli_", "expand", "probabilities must broadcast to a tensor without elements, too"),
    Listed("in place: node", "(float_power|mvlgamma|renorm|baddbmm|uniform|normal)_", "", "the node is named after the operator that computes the result"),
    Listed("in place: gradient", "tril_|triu_", "more than one element of the written-to tensor", "backward through an expanded tensor, which PyTorch refuses"),
    Listed("in place: gradient", "as_strided_", "^PyTorch: .*invalid gradient", "PyTorch's formula has the gradient of another size"),
    Listed("in place: gradient", "ldexp_", r"u?int\d+\[", "PyTorch's formula computes 2 ** other in integers, 0 for negative ones"),
    Listed("in place: gradient", "addcdiv_", "can't be cast to", "PyTorch's formula divides in the dtype of an integer"),
    Listed("in place: accepted", "ldexp_", "'ComplexHalf'", "complex32 is computed on the CPU, too"),
    Listed("in place: accepted", "index_fill_", "setStorage", "an index of a tensor without elements fills nothing"),
    Listed("in place: error type", ANY, "^PyTorch: .*Overflow when unpacking long long", "of several faults a number of more bits is found first"),
    Listed("in place: refused", "cumsum_|cumprod_", "'Bool'", "a dtype is refused of tensors without dimensions as of all others"),
    Listed("in place: refused", "bernoulli_", _EMPTY, "a dtype without kernel is refused for every size"),
    Listed("in place: refused", "nan_to_num_", "complex", "a replacement is a real number"),
    Listed("in place: refused", "addbmm_", "^Flambeau: .*Bad in-place call", "a tensor of another size is refused; PyTorch's `addbmm_` resizes it"),
    Listed("in place: node", "polygamma_", "", "the node is named after the operator that computes the result"),
    Listed("in place: node", "masked_fill_|fill_", r"bool\[|int\d+\[", "an integer result does not require gradients"),
    Listed("in place: node", r"add\w*m[mv]?_|addr_|addmv_", r"numpy\(|array\(|tensor\(", "PyTorch's node for a number that is not Python's"),
    Listed("in place: message", "masked_scatter_|renorm_", "^(PyTorch|Flambeau): RuntimeError", "of a wrong size and another fault one is reported"),
    Listed("in place: message", "index_put_", "^PyTorch: .*undefined Tensor", "PyTorch's message for no index is an internal one"),
    Listed("in place: value", r"add\w*m[mv]?_|addr_", "arguments are views", "PyTorch's products overwrite arguments that they have yet to read"),
    Listed("in place: message", "add[bm]*m_", "^(PyTorch|Flambeau): RuntimeError: .*(expand|[sS]ize)", "of several sizes that do not fit another one is reported"),
]  # fmt: skip


def described(call: object, theirs: str, ours: str) -> str:
    """Return the lines of a difference in which `Listed.says` is searched."""
    return f"{call}\nPyTorch: {theirs}\nFlambeau: {ours}"


def listed(kind: str, name: str, text: str) -> str:
    """Return the reason of a known difference; empty if it is not listed.

    Args:
        kind: Its class.
        name: The function, without its room.
        text: The call and both outcomes, a line each; see `described`.
    """
    for line in DIFFERENCES:
        if (
            kind in line.kinds.split("|")
            and re.fullmatch(line.names, name)
            and re.search(line.says, text, re.MULTILINE)
        ):
            return line.reason
    return ""
