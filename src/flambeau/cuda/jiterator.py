"""torch.cuda.jiterator: user kernels from C++ templates of one element.

A text that is plain (arithmetic, comparisons, math functions, variables, `if`, `return`, calls of functions before it)
has the same results on virtual and real GPUs. Others are compiled unchanged for real GPUs. Virtual GPUs refuse them and
name the position in the text. Half precision is computed in float32; literals are of the kernel's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.ops.op import Op
from flambeau.ops.pointwise.expression import MOST
from flambeau.ops.pointwise.expression_cpp import functions_of, kernel_of
from flambeau.runtime import system
from flambeau.tensor.call import call
from flambeau.tensor.tensor import Tensor

__all__ = ["_create_jit_fn", "_create_multi_output_jit_fn"]


class _JittedFunction:
    """A function that runs a kernel from C++ text. It creates one operator for each number of tensors."""

    def __init__(self, code_string: str, return_by_ref: bool, num_outputs: int, **kwargs: Any) -> None:
        if not isinstance(code_string, str):
            raise TypeError(f"expected a str of C++ code, but got {type(code_string).__name__}")
        functions = functions_of(code_string)
        if functions is None:
            raise Exception(f"Couldn't parse code, please check correctness:\n {code_string}")
        if not (return_by_ref or num_outputs == 1):
            raise AssertionError("Return by value only works for single output.")
        self.code_string = code_string
        self.return_by_ref = return_by_ref
        self.num_outputs = num_outputs
        self.kernel_name = functions[-1].name
        self.kwargs_dict = kwargs
        self._functions = functions
        self._records: dict[int, Op] = {}

    def __call__(self, *tensors: Any, **kwargs: Any) -> Any:
        """Return new tensors, on the GPU of `tensors`: one, or a tuple where there are several outputs."""
        if not system.is_available():
            raise AssertionError("Jiterator is only supported on CUDA and ROCm GPUs, none are available.")
        if len(tensors) > MOST:
            raise AssertionError(f"jiterator only supports up to 8 tensor inputs, got {len(tensors)}")
        for at, x in enumerate(tensors):
            if not isinstance(x, Tensor):
                raise TypeError(f"{self.kernel_name}: input {at} must be a Tensor, not {type(x).__name__}")
        for name in kwargs:
            if name not in self.kwargs_dict:
                raise KeyError(f"{name} is not declared in function definition")
        if not all(x.is_cuda for x in tensors):
            raise RuntimeError(f"{self.kernel_name}: all input tensors must live in CUDA device")
        args = [*tensors, *(self.kwargs_dict | kwargs).values()]
        return call(self._for(len(tensors)), args)

    def _for(self, tensors: int) -> Op:
        found = self._records.get(tensors)
        if found is None:
            made = kernel_of(self.code_string, self._functions, tensors, len(self.kwargs_dict))
            outputs = len(self._functions[-1].outputs)
            if (outputs or 1) != self.num_outputs or bool(outputs) != self.return_by_ref:
                raise RuntimeError(
                    f"{self.kernel_name} does not give {self.num_outputs} outputs by "
                    f"{'reference' if self.return_by_ref else 'value'}"
                )
            found = self._records[tensors] = made
        return found


def _create_jit_fn(code_string: str, **kwargs: Any) -> Callable[..., Any]:
    """Return a function of CUDA tensors, at most 8, from a C++ template that returns an element's value.

        fn = _create_jit_fn("template <typename T> T f(T x, T y, T alpha) { return -x + alpha * y; }", alpha=1.0)
        fn(a, b, alpha=3.14)

    Args:
        code_string: Function templates of one type; the last is the kernel.
        kwargs: Names and default values of its last parameters, Python numbers.

    Tensors broadcast and are promoted to one dtype, the result's. Not differentiable. Raises Exception: the text
    is no such template. When called, NotSupportedError: see the module.
    """
    return _JittedFunction(code_string, return_by_ref=False, num_outputs=1, **kwargs)


def _create_multi_output_jit_fn(code_string: str, num_outputs: int, **kwargs: Any) -> Callable[..., Any]:
    """Return a function of a template that returns nothing and assigns its `num_outputs` parameters of type `T&`.

    See `_create_jit_fn`.
    """
    return _JittedFunction(code_string, return_by_ref=True, num_outputs=num_outputs, **kwargs)


explain_absent_names(globals(), "torch.cuda.jiterator")
