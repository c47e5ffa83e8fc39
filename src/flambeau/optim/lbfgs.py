"""`LBFGS`, with a line search that satisfies the strong Wolfe conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flambeau.optim.optimizer import Optimizer, check_lr, evaluate_closure
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions as public
from flambeau.tensor.tensor import Tensor

_DECREASE = 1e-4  # the required part of the decrease that the slope predicts: the first Wolfe condition
_SLOPE = 0.9  # the part of the slope that may remain: the second Wolfe condition
_LEAST_CURVATURE = 1e-10


class Point(NamedTuple):
    """A point of the line search: step length, loss, flat gradient, and slope along the line."""

    at: float
    loss: float
    grad: Tensor
    slope: float


class LBFGS(Optimizer):
    """Limited-memory BFGS: a quasi-Newton method that estimates curvature from past gradients. It has one parameter
    group.

    Each iteration makes several decisions on the host, so it waits for the device several times.

    Args:
        params: See `Optimizer`.
        lr: Step length, or the first one of the line search.
        max_iter: Iterations of a step.
        max_eval: Evaluations of a step; default: 1.25 times max_iter.
        tolerance_grad, tolerance_change: Stop if no gradient, or no change, is larger.
        history_size: Number of past steps that are stored.
        line_search_fn: None or "strong_wolfe".
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_lr(lr)
        super().__init__(params, {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        })  # fmt: skip
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Run at most `max_iter` iterations and return the first loss.

        Args:
            closure: A function that evaluates the model, calls backward and returns the loss.
        """
        with recording(False):
            return self._step(closure)

    def _step(self, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = evaluate_closure(closure)
        loss, grad = float(first_loss), self._flat_grad()
        evaluations = 1
        state["func_evals"] += 1
        if _largest(grad) <= group["tolerance_grad"]:
            return first_loss
        for n in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, grad)
            state["prev_flat_grad"], previous, state["prev_loss"] = grad, loss, loss
            lr = float(group["lr"])
            t = min(1.0, 1.0 / float(grad.abs().sum())) * lr if state["n_iter"] == 1 else lr
            state["d"], state["t"] = direction, t
            slope = float(grad.dot(direction))
            if slope > -group["tolerance_change"]:
                break
            spent = 0
            if group["line_search_fn"] is not None:
                left = group["max_eval"] - evaluations
                point, spent = self._search_line(closure, Point(0.0, loss, grad, slope), direction, t, left)
                t, loss, grad = point.at, point.loss, point.grad
                state["t"] = t
                self._move(direction, t)
            else:
                self._move(direction, t)
                if n != group["max_iter"]:
                    loss, grad = float(evaluate_closure(closure)), self._flat_grad()
                    spent = 1
            evaluations += spent
            state["func_evals"] += spent
            if n == group["max_iter"] or evaluations >= group["max_eval"]:
                break
            if _largest(grad) <= group["tolerance_grad"]:
                break
            change = group["tolerance_change"]
            if _largest(direction * t) <= change or abs(loss - previous) < change:
                break
        return first_loss

    # -- the direction ------------------------------------------------------------------------------------------

    def _direction(self, state: dict[str, Any], grad: Any) -> Any:
        """Return minus the product of the gradient and the inverse Hessian that the past steps approximate."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return -grad
        self._remember(state, grad)
        steps, changes, weights = state["old_stps"], state["old_dirs"], state["ro"]
        parts = []
        q = -grad
        for step, change, weight in zip(steps[::-1], changes[::-1], weights[::-1], strict=True):
            parts.append(float(step.dot(q)) * weight)
            q.add_(change, alpha=-parts[-1])
        r = q * state["H_diag"]
        for step, change, weight, part in zip(steps, changes, weights, parts[::-1], strict=True):
            r.add_(step, alpha=part - float(change.dot(r)) * weight)
        return r

    def _remember(self, state: dict[str, Any], grad: Any) -> None:
        """Store the last step and the change of the gradient, if they have positive curvature."""
        change = grad - state["prev_flat_grad"]
        step = state["d"] * state["t"]
        curvature = float(change.dot(step))
        if curvature <= _LEAST_CURVATURE:
            return
        if len(state["old_dirs"]) == self.param_groups[0]["history_size"]:
            for kept in (state["old_dirs"], state["old_stps"], state["ro"]):
                kept.pop(0)
        state["old_dirs"].append(change)
        state["old_stps"].append(step)
        state["ro"].append(1.0 / curvature)
        state["H_diag"] = curvature / float(change.dot(change))

    # -- parameters as one vector -------------------------------------------------------------------------------

    def _flat_grad(self) -> Any:
        parts = []
        for p in self._params:
            grad = p.grad
            flat = p.new_zeros(p.numel()) if grad is None else grad.reshape(-1)
            parts.append(public["view_as_real"](flat).reshape(-1) if flat.is_complex() else flat)
        return public["cat"](parts, 0)

    def _move(self, direction: Any, t: float) -> None:
        """Go along a direction."""
        start = 0
        for p in self._params:
            target = public["view_as_real"](p) if p.is_complex() else p
            end = start + target.numel()
            target.add_(direction[start:end].view_as(target), alpha=t)
            start = end

    # -- the line search ----------------------------------------------------------------------------------------

    def _search_line(
        self, closure: Callable[[], Any], here: Point, direction: Tensor, t: float, most: int
    ) -> tuple[Point, int]:
        """Return (a point that satisfies the strong Wolfe conditions, or the best one; the number of evaluations)."""
        if self.param_groups[0]["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")
        start = [p.clone() for p in self._params]

        def evaluate(t: float) -> Point:
            self._move(direction, t)
            loss, grad = float(evaluate_closure(closure)), self._flat_grad()
            for p, value in zip(self._params, start, strict=True):
                p.copy_(value)
            return Point(t, loss, grad, float(grad.dot(direction)))

        length = _largest(direction)
        return strong_wolfe(evaluate, here, t, length, self.param_groups[0]["tolerance_change"], most)


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, t: float, length: float, least: float, most: int,
    decrease: float = _DECREASE, flatness: float = _SLOPE,
) -> tuple[Point, int]:  # fmt: skip
    """Return the point that a line search finds (Nocedal and Wright, algorithms 3.5 and 3.6), and its evaluations.

    Args:
        evaluate: Returns the point at a step length.
        start: The point at length 0.
        t: The first step length.
        length: The direction's largest part.
        least: The search stops where the bracket is shorter than this.
        most: The most iterations.
        decrease: The part of the expected decrease that is enough (c1).
        flatness: The part of the slope that may remain (c2).
    """

    def too_high(point: Point) -> bool:
        return point.loss > start.loss + decrease * point.at * start.slope

    def flat(point: Point) -> bool:
        return abs(point.slope) <= -flatness * start.slope

    before, new = start, evaluate(t)
    evaluations, rounds = 1, 0
    while rounds < most:  # continue until the minimum is bracketed
        if too_high(new) or (rounds > 1 and new.loss >= before.loss):
            break
        if flat(new):
            return new, evaluations
        if new.slope >= 0:
            break
        bounds = (new.at + 0.01 * (new.at - before.at), new.at * 10)
        before, new = new, evaluate(_cubic_minimum(before, new, bounds))
        evaluations += 1
        rounds += 1
    else:
        before = start
    low, high = (before, new) if before.loss <= new.loss else (new, before)
    stuck = False
    while rounds < most:  # the minimum is between low and high
        if abs(high.at - low.at) * length < least:
            break
        t, stuck = _inside(before, new, stuck)
        point = evaluate(t)
        evaluations += 1
        rounds += 1
        if too_high(point) or point.loss >= low.loss:
            before, new = (before, point) if low is before else (point, new)
            low, high = (before, new) if before.loss <= new.loss else (new, before)
            continue
        if flat(point):
            return point, evaluations
        other = low if point.slope * (high.at - low.at) >= 0 else high
        before, new = (point, other) if low is before else (other, point)
        low, high = point, other
    return low, evaluations


def _inside(one: Point, other: Point, stuck: bool) -> tuple[float, bool]:
    """Return the next point inside a bracket, and True if it is near the bracket's edge, which happens once in a
    row.
    """
    t = _cubic_minimum(one, other)
    least, most = min(one.at, other.at), max(one.at, other.at)
    margin = 0.1 * (most - least)
    if min(most - t, t - least) >= margin:
        return t, False
    if not (stuck or t >= most or t <= least):
        return t, True
    return (most - margin if abs(t - most) < abs(t - least) else least + margin), False


def _cubic_minimum(one: Point, other: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum, within bounds, of the cubic through two points with their slopes."""
    low, high = bounds or (min(one.at, other.at), max(one.at, other.at))
    if one.at == other.at:  # no cubic; reachable with tolerance_change=0
        return (low + high) / 2.0
    a, b = (one, other) if one.at <= other.at else (other, one)
    d1 = one.slope + other.slope - 3 * (one.loss - other.loss) / (one.at - other.at)
    square = d1 * d1 - one.slope * other.slope
    if square < 0:
        return (low + high) / 2.0
    d2 = float(square**0.5)
    divisor = b.slope - a.slope + 2 * d2
    if divisor == 0:
        return (low + high) / 2.0
    t = b.at - (b.at - a.at) * ((b.slope + d2 - d1) / divisor)
    return min(max(t, low), high)


def _cubic_interpolate(
    x1: Any, f1: Any, g1: Any, x2: Any, f2: Any, g2: Any, bounds: tuple[float, float] | None = None
) -> float:
    """Return the minimum of a cubic. Libraries call the function by PyTorch's name."""
    one, other = [Point(float(x), float(f), None, float(g)) for x, f, g in ((x1, f1, g1), (x2, f2, g2))]  # type: ignore[arg-type]
    return _cubic_minimum(one, other, bounds)


def _strong_wolfe(
    obj_func: Callable[..., Any], x: Any, t: float, d: Tensor, f: Any, g: Tensor, gtd: Any, c1: float = _DECREASE,
    c2: float = _SLOPE, tolerance_change: float = 1e-9, max_ls: int = 25,
) -> tuple[float, Tensor, float, int]:  # fmt: skip
    """Return loss, gradient, step length and number of evaluations of a line search, as PyTorch's function."""

    def evaluate(at: float) -> Point:
        loss, grad = obj_func(x, at, d)
        return Point(at, float(loss), grad.clone(), float(grad.dot(d)))

    start = Point(0.0, float(f), g.clone(), float(gtd))
    point, count = strong_wolfe(evaluate, start, t, _largest(d), tolerance_change, max_ls, c1, c2)
    return point.loss, point.grad, point.at, count


def _largest(x: Tensor) -> float:
    return float(x.abs().max())
