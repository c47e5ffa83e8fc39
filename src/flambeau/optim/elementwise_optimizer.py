"""`ElementwiseOptimizer`: an optimizer whose formula is elementwise, so that one launch updates all parameters.

A rule consists of a formula (`ops/multi_tensor/optimizer.py`), the states of each parameter, the counters (numbers,
such as the step), and the scalars of a step. Parameters with equal scalars are updated together. With `differentiable`
or `capturable` the same formula runs on tensors, parameter by parameter: see Note [One formula, three readings]. A rule
with a formula for counters on the device (`counted`) updates all parameters by it if they are `capturable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from flambeau.core.dtype import float32, float64
from flambeau.core.flags import flags
from flambeau.ops.multi_tensor.foreach import Foreach
from flambeau.optim.counters import Counters, read, write
from flambeau.optim.optimizer import Optimizer, evaluate_closure, without_recording
from flambeau.tape.mode import mode
from flambeau.tensor.arguments.public import functions as public
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.foreach_update import copy, update
from flambeau.tensor.tensor import Tensor

FUSED_DEVICES = "['mps', 'cuda', 'xpu', 'hpu', 'cpu', 'mtia', 'privateuseone']"
CAPTURABLE_DEVICES = "['cuda', 'xpu', 'hpu', 'privateuseone', 'xla']"

Pairs = Sequence[tuple[Tensor, Tensor]]  # parameters and their gradients


class Numbers:
    """The arithmetic of scalars with Python numbers."""

    value = staticmethod(float)
    sqrt = staticmethod(math.sqrt)
    maximum = staticmethod(max)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b


class Tensors:
    """The arithmetic of scalars and formulas with tensors."""

    @staticmethod
    def value(x: Any) -> Any:
        return x

    @staticmethod
    def sqrt(x: Any) -> Any:
        return math.sqrt(x) if isinstance(x, int | float) else x.sqrt()

    abs = staticmethod(public["abs"])
    where = staticmethod(public["where"])

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return _extreme(public["maximum"], public["clamp_min"], a, b)

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return _extreme(public["minimum"], public["clamp_max"], a, b)


def _extreme(of_two: Callable[..., Any], bounded: Callable[..., Any], a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return of_two(a, b)
    return bounded(a, b) if isinstance(a, Tensor) else bounded(b, a)


class ElementwiseOptimizer(Optimizer):
    """The base of optimizers with an elementwise formula.

    A subclass defines its operator, states, counters, scalars and options.
    """

    record: ClassVar[Foreach]
    counted: ClassVar[Foreach | None] = None
    counters: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if defaults.get("fused"):
            if defaults.get("differentiable"):
                raise RuntimeError("`fused` does not support `differentiable`")
            if defaults.get("foreach"):
                raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        super().__init__(params, defaults)

    # -- what a rule says ---------------------------------------------------------------------------------------

    def _new_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        """Return the states of a parameter that has its first step, counters first."""
        raise NotImplementedError

    def _states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the names of the states that the formula takes, in its order."""
        raise NotImplementedError

    def _advance_counters(self, group: dict[str, Any], f: Any, counters: Sequence[Any]) -> Sequence[Any]:
        """Return the counters after this step. `f.value` of a counter is a number of full precision."""
        return (counters[0] + 1,)

    def _scalars(
        self, group: dict[str, Any], f: Any, before: Sequence[Any], after: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the formula's scalars, from the group's options and the counters before and after this step."""
        raise NotImplementedError

    def _options(
        self, group: dict[str, Any], before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> Any:
        """Return the formula's options. `fresh`: the states are new."""
        raise NotImplementedError

    def _step_sparse(self, group: dict[str, Any], p: Any, grad: Any) -> None:
        """Update one parameter that has a sparse gradient. Raises RuntimeError unless a subclass implements it."""
        name = type(self).__name__.replace("AdamW", "Adam")
        advice = ", please consider SparseAdam instead" if name == "Adam" else ""
        raise RuntimeError(f"{name} does not support sparse gradients{advice}")

    # -- a step -----------------------------------------------------------------------------------------------

    @without_recording
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter that has a gradient. A closure evaluates the model again and returns the loss."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            self._step_group(group, [(p, grad) for p in group["params"] if (grad := p.grad) is not None])
        return loss

    def _step_group(self, group: dict[str, Any], pairs: Pairs) -> None:
        if group.get("differentiable"):
            self._step_by_tensors(group, pairs)
        elif group.get("capturable"):
            self._step_on_device(group, pairs)
        else:
            self._step_at_once(group, pairs)

    def _state_of(
        self, group: dict[str, Any], p: Tensor, names: Sequence[str]
    ) -> tuple[dict[str, Any], bool]:
        """Return a parameter's states, and True if they are new."""
        state = self.state.get(p)
        if state:
            for name in names:
                if state.get(name) is None:
                    break
            else:
                return state, False
        if group.get("fused"):
            _check_fused(p)
        new = self._new_state(group, p)
        if not new:
            return new, True
        state = self.state[p]
        for name, value in new.items():
            if state.get(name) is None:
                state[name] = value
        return state, True

    def _step_at_once(self, group: dict[str, Any], pairs: Pairs) -> None:
        """Step with launches over lists and scalars computed on the host. See Note [One formula, three readings]."""
        names = self._states(group)
        plain = _with_numbers(group)
        batches: dict[Any, list[list[Tensor]]] = {}
        decided: dict[Any, tuple[float, ...]] = {}
        kept = self._counters
        for p, grad in pairs:
            if grad.meta.sparse:
                self._step_sparse(plain, p, grad)
                continue
            state, fresh = self._state_of(group, p, names)
            before: tuple[float, ...] = ()
            if self.counters:
                cells = kept.of(p, state, self.counters)
                before = read(cells)
                after = decided.get(before)
                if after is None:
                    write(cells, self._advance_counters(plain, Numbers, [window[()] for window in cells[1]]))
                    decided[before] = read(cells)
                else:
                    write(cells, after)
            tensors = [p, grad, *map(state.__getitem__, names)]
            if p.meta.dtype.is_complex:
                tensors = [_as_real(t) for t in tensors]
            key = (before, fresh, tensors[0].meta.device, *map(_dtype, tensors))
            batches.setdefault(key, []).append(tensors)
        for (before, fresh, *_), rows in batches.items():
            after = decided.get(before, ())
            scalars = self._scalars(plain, Numbers, before, after)
            update(
                self.record, [*zip(*rows, strict=True)], scalars, self._options(plain, before, after, fresh)
            )

    def _counted_rows(
        self, group: dict[str, Any], pairs: Pairs
    ) -> Iterator[tuple[bool, list[Tensor], list[Tensor]]]:
        """Yield the rows of dense gradients: True for new states, the counters, and the tensors of the formula.

        Parameters with sparse gradients are updated here, in their order.
        """
        names = self._states(group)
        for p, grad in pairs:
            if grad.meta.sparse:
                self._step_sparse(group, p, grad)
                continue
            state, fresh = self._state_of(group, p, names)
            self._check_capturable(group, p, state)
            tensors = [p, grad, *[state[name] for name in names]]
            if p.meta.dtype.is_complex:
                tensors = [_as_real(t) for t in tensors]
            yield fresh, [state[name] for name in self.counters], tensors

    def _step_by_tensors(self, group: dict[str, Any], pairs: Pairs) -> None:
        """Update one parameter after the other, with counters as tensors. The step is recorded if recording is on."""
        for fresh, counters, tensors in self._counted_rows(group, pairs):
            # Of full precision, as PyTorch's numbers are; a graph reads them where they lie.
            before = [c.clone() if group.get("capturable") else c.to(float64, copy=True) for c in counters]
            after = self._advance_counters(group, Tensors, before) if before else ()
            scalars = self._scalars(group, Tensors, before, after)
            options = self._options(group, before, after, fresh)
            results = self.record.formula(Tensors, options, tensors, scalars)
            for k, result in zip(self.record.changed(options), results, strict=True):
                tensors[k].copy_(result)
            for counter, value in zip(counters, after, strict=True):
                counter.copy_(value)

    def _counted_options(self, options: Any, rates: Sequence[Tensor]) -> Any:
        """Return the options of the formula `counted`. `rates` are the learning rates that lie on the device."""
        raise NotImplementedError

    def _step_on_device(self, group: dict[str, Any], pairs: Pairs) -> None:
        """Step with launches over lists and with counters that stay on the device."""
        numbers = [v for k, v in group.items() if k not in ("params", "lr")]
        if self.counted is None or _has_tensors(numbers) or not _is_on_device(group["lr"]):
            self._step_by_tensors(group, pairs)
            return
        batches: dict[Any, list[tuple[list[Tensor], list[Tensor]]]] = {}
        for fresh, counters, tensors in self._counted_rows(group, pairs):
            key = (fresh, tensors[0].meta.device, *map(_dtype, (*tensors, *counters)))
            batches.setdefault(key, []).append((counters, tensors))
        for (fresh, *_), rows in batches.items():
            self._step_counted(group, rows, fresh)

    def _step_counted(
        self, group: dict[str, Any], rows: Sequence[tuple[list[Tensor], list[Tensor]]], fresh: bool
    ) -> None:
        """Update parameters of equal dtypes. `rows` has the counters of each, and the tensors of the formula."""
        counters = [*zip(*[row[0] for row in rows], strict=True)]
        before = [public["stack"](list(each)) for each in counters]
        after = self._advance_counters(group, Tensors, before)
        scalars = self._scalars(group, Tensors, before, after)
        options = self._options(group, before, after, fresh)
        lists: list[Sequence[Tensor]] = [*zip(*[row[1] for row in rows], strict=True)]
        lists += [x.unbind(0) for x in scalars if isinstance(x, Tensor) and x is not group["lr"]]
        rates = [group["lr"]] * len(rows) if isinstance(group["lr"], Tensor) else []
        if rates:
            lists.append(rates)
        plain = [x for x in scalars if not isinstance(x, Tensor)]
        assert self.counted is not None
        update(self.counted, lists, plain, self._counted_options(options, rates))
        for targets, values in zip(counters, after, strict=True):
            copy(targets, values.unbind(0))

    def _check_capturable(self, group: dict[str, Any], p: Tensor, state: dict[str, Any]) -> None:
        if not group.get("capturable"):
            return
        if p.device.type != "cuda" or any(state[c].device.type != "cuda" for c in self.counters):
            raise AssertionError(
                f"If capturable=True, params and state_steps must be on supported devices: {CAPTURABLE_DEVICES}."
            )

    # -- counters ---------------------------------------------------------------------------------------------

    @property
    def _counters(self) -> Counters:
        found = self.__dict__.get("_kept_counters")
        if found is None:
            found = self.__dict__["_kept_counters"] = Counters()
        return found

    def _counter(self, group: dict[str, Any], p: Tensor, value: float = 0.0) -> Tensor:
        """Return a new counter: on the CPU, unless it must live with its parameter."""
        kind = float64 if flags.default_dtype is float64 else float32
        where = p.device if group.get("capturable") else "cpu"
        return creation.full((), value, dtype=kind, device=where)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.get(p) or {}
                for name in self.counters:  # numbers in PyTorch's oldest checkpoints
                    if isinstance(kept.get(name), int | float):
                        kept[name] = self._counter(group, p, float(kept[name]))


def step_lists(
    kind: type[ElementwiseOptimizer],
    group: dict[str, Any],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: dict[str, list[Any]],
) -> None:
    """Step an optimizer's formula on lists of parameters, gradients and states.

    Operators record the step if recording is on and a tensor requires gradients.

    Args:
        kind: The optimizer's class.
        group: The options of a parameter group.
        params, grads: The parameters, which the step changes, and their gradients.
        states: Name of a state or counter -> its tensor for each parameter. A step changes these tensors; None becomes
            a new one.

    Raises:
        AssertionError: If the group has a scale of gradients, or `found_inf`, but is not fused.
        IndexError: If a list is shorter than `params`.
        RuntimeError: If a step count is not a tensor.
        ValueError: If a parameter is listed twice.
    """
    optimizer = kind.__new__(kind)
    used = {name: states[name] for name in (*kind.counters, *optimizer._states(group))}
    _check_lists(params, {"grads": grads, **used})
    rows = [dict(zip(used, row, strict=True)) for row in zip(*used.values(), strict=False)]
    optimizer.state = dict(zip(params, [dict(row) for row in rows], strict=False))  # type: ignore[assignment]
    tensors = [*params, *grads[: len(params)], *[t for row in rows for t in row.values() if t is not None]]
    if not _unscale(grads[: len(params)], group):
        return
    recorded = mode.recording and any(t.requires_grad for t in tensors)
    group = group | {"differentiable": group.get("differentiable") or recorded}
    optimizer._step_group(group, [*zip(params, grads, strict=False)])
    for i, p in enumerate(params):
        for name, values in used.items():
            new, old = optimizer.state[p][name], values[i]
            if old is None:
                values[i] = new
            elif new is not old:
                old.copy_(new)  # the step read a counter on a device by a copy on the CPU


def _check_lists(params: Sequence[Tensor], lists: dict[str, Sequence[Any]]) -> None:
    if len({id(p) for p in params}) != len(params):
        raise ValueError("a parameter is listed twice: call the function once for each of its gradients")
    for name, values in lists.items():
        if len(values) < len(params):
            raise IndexError(f"list index out of range: {len(params)} params, but {len(values)} of {name}")
    if not all(isinstance(t, Tensor) for t in lists.get("step", ())):
        raise RuntimeError("API has changed, `state_steps` argument must contain a list of singleton tensors")


def _unscale(grads: Sequence[Tensor], group: dict[str, Any]) -> bool:
    """Divide gradients in place by the scale of a GradScaler. Return False if the step must be skipped."""
    scale, found_inf = group.pop("grad_scale", None), group.pop("found_inf", None)
    if not group.get("fused") and (scale is not None or found_inf is not None):
        raise AssertionError(
            "Expected grad_scale and found_inf to be None, because fused is not True: unscale the gradients first"
        )
    if found_inf is not None and found_inf.item():
        return False
    if scale is not None:
        for grad in grads:
            grad.div_(scale.to(grad.device))  # type: ignore[attr-defined]
    return True


def zeros(p: Tensor) -> Tensor:
    """Return a state of zeros, like its parameter."""
    return creation.zeros_like(p)


def fill_like(p: Tensor, value: complex) -> Tensor:
    """Return a state tensor filled with one value, like its parameter."""
    return creation.full_like(p, value)


def _with_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the group's options with numbers in place of one-element tensors, which waits for a GPU."""
    for v in group.values():
        if isinstance(v, Tensor) or (isinstance(v, tuple) and any(isinstance(x, Tensor) for x in v)):
            return {k: _number(v) if k != "params" else v for k, v in group.items()}
    return group


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(_number(v) for v in value) if isinstance(value, tuple) else value


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(x, Tensor) for v in values for x in (v if isinstance(v, tuple) else (v,)))


def _is_on_device(rate: Any) -> bool:
    """Return True for a learning rate that launches over lists can read: a number, or one on the current GPU."""
    return not isinstance(rate, Tensor) or (rate.meta.device.type == "cuda" and rate.meta.numel == 1)


_dtype = attrgetter("meta.dtype")


def _as_real(t: Tensor) -> Tensor:
    """Return a real view in which real and imaginary parts are separate elements."""
    return public["view_as_real"](t) if t.meta.dtype.is_complex else t


def _check_fused(p: Tensor) -> None:
    if not p.is_floating_point():
        raise RuntimeError(
            "`fused=True` requires all the params to be floating point Tensors of supported devices: "
            f"{FUSED_DEVICES} but {p.dtype} and {p.device.type}"
        )
