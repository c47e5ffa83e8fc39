"""`torch.library.opcheck`: tests of an operator that a program defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau._library.custom_ops import CustomOpDef, check_aliases, same_tensor
from flambeau._library.user_operators import Operator, OpOverload, OpOverloadPacket
from flambeau.autograd.grad_mode import no_grad
from flambeau.core.errors import RaceError
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.tensor import Tensor

_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


class OpCheckError(Exception):
    """The error of an operator that fails a test of `opcheck`."""


def opcheck(
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] = _TESTS,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Test an operator on one set of arguments.

    The schema must declare which arguments change, gradients must be registered for autograd, and the function of
    `register_fake` must compute the results' shapes. "test_aot_dispatch_dynamic" needs PyTorch's compiler and is
    skipped.

    Args:
        op: An operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
        test_utils: The tests, or "all".
        raise_exception: True if the first failure is raised.
        atol: Not used.
        rtol: Not used.

    Returns:
        For each test "SUCCESS", the error, or why it is skipped.

    Raises:
        OpCheckError: If a test fails.
        ValueError: If `op` is not an operator, or there is no such test.
    """
    if isinstance(op, CustomOpDef):
        op = op._opoverload
    if isinstance(op, OpOverloadPacket):
        op = op.default
    if not isinstance(op, OpOverload):
        raise ValueError(
            "opcheck(op, ...): op must be instance of torch._ops.OpOverload, e.g. torch.ops.aten.sin.default, "
            f"got {type(op)}"
        )
    names = _TESTS if test_utils == "all" else (test_utils,) if isinstance(test_utils, str) else test_utils
    if not set(names) <= set(_TESTS):
        raise ValueError(
            f"opcheck(op, ..., test_utils={names}), expected test_utils to be subset of {_TESTS}"
        )
    outcome: dict[str, Any] = {}
    for name in names:
        if name not in _CHECKS:
            outcome[name] = "SKIPPED: Flambeau has no compiler that traces operators"
            continue
        try:
            _CHECKS[name](op._operator, args, kwargs or {})
            outcome[name] = "SUCCESS"
        except RaceError:
            raise
        except Exception as error:
            outcome[name] = error
            if raise_exception:
                raise OpCheckError(f"opcheck(op, ...): {name} failed with {error}") from error
    return outcome


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _check_schema(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    copies, keywords = [_copy(a) for a in args], {k: _copy(v) for k, v in kwargs.items()}
    before = [_copy(a) for a in copies], {k: _copy(v) for k, v in keywords.items()}
    with no_grad():
        results = operator.call(copies, keywords)
    names = [a.name for a in operator.schema.arguments]
    now = dict(zip(names, copies, strict=False)) | keywords
    old = dict(zip(names, before[0], strict=False)) | before[1]
    for argument in operator.schema.arguments:
        pairs = zip(tensors_in(now.get(argument.name)), tensors_in(old.get(argument.name)), strict=True)
        if not argument.is_write and not all(bool((a == b).logical_or(a != a).all()) for a, b in pairs):
            raise RuntimeError(
                f"Argument {argument.name} is not defined as mutable but was mutated: declare it in mutates_args"
            )
    if not any(r.alias for r in operator.schema.returns):
        check_aliases(operator.schema.name, opcheck, now, results)


def _check_autograd(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if not any(t.requires_grad for t in tensors_in((args, kwargs))):
        return  # PyTorch's test needs an input that requires a gradient, too
    for key in ("CPU", "CUDA", "CompositeExplicitAutograd"):
        kernel = operator.kernels.get(key)
        if kernel is None:
            continue
        results = kernel(*[_copy(a) for a in args], **{k: _copy(v) for k, v in kwargs.items()})
        recorded = any(t.requires_grad for t in tensors_in(results))
        if recorded and "Autograd" not in operator.kernels and operator.autograd is None:
            raise RuntimeError(
                f"{operator.schema.name}: the kernel for {key} records gradients itself. Register them with "
                "register_autograd."
            )


def _check_fake(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if operator.fake is None and "CompositeImplicitAutograd" not in operator.kernels:
        raise RuntimeError(
            f"{operator.schema.name}: no function for shapes was registered with register_fake"
        )
    if operator.fake is None:
        return
    with no_grad():
        expected = operator.call([_copy(a) for a in args], {k: _copy(v) for k, v in kwargs.items()})
        found = operator.fake(*args, **kwargs)
    pairs = list(zip(tensors_in(found), tensors_in(expected), strict=True))
    for fake, real in pairs:
        if not same_tensor(fake, real):
            raise RuntimeError(
                f"{operator.schema.name}: the function of register_fake gives {fake.dtype} of shape "
                f"{tuple(fake.shape)} on {fake.device}, the operator {real.dtype} of shape {tuple(real.shape)} on "
                f"{real.device}"
            )


_CHECKS: dict[str, Callable[[Operator, Sequence[Any], dict[str, Any]], None]] = {
    "test_schema": _check_schema,
    "test_autograd_registration": _check_autograd,
    "test_faketensor": _check_fake,
}
