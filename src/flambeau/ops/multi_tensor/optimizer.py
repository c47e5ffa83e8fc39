"""The elementwise updates of optimizers: one operator over lists of tensors for each optimizer.

The lists are parameters, gradients, then states; all except the gradients are changed. Scalars are the values of one
step of a parameter group: learning rates, weight decay, bias corrections. Formulas are PyTorch's. See Note [One
formula, three readings].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau.ops.multi_tensor.foreach import Foreach, foreach
from flambeau.ops.op import note
from flambeau.ops.work import workspaces

X = Sequence[Any]


def _all_but_gradients(lists: int) -> tuple[int, ...]:
    return (0, *range(2, lists))


def _towards(a: Any, b: Any, weight: Any) -> Any:
    return a + (b - a) * weight


# -- SGD ----------------------------------------------------------------------------------------------------


class SGDOptions(NamedTuple):
    momentum: bool
    nesterov: bool
    decay: bool
    maximize: bool
    first: bool  # True if the momentum buffers are not initialized yet


def _sgd(f: Any, o: SGDOptions, x: X, s: X) -> X:
    lr, decay, momentum, dampening = s
    p, g = x[:2]
    g = -g if o.maximize else g
    if o.decay:
        g = g + p * decay
    if not o.momentum:
        return (p - g * lr,)
    buffer = g if o.first else x[2] * momentum + g * (1 - dampening)
    step = g + buffer * momentum if o.nesterov else buffer
    return p - step * lr, buffer


sgd = foreach(
    "_sgd", _sgd, lambda o: 3 if o.momentum else 2, lambda o: (0.1, 0.05, 0.9, 0.0 if o.nesterov else 0.25),
    changed=lambda o: _all_but_gradients(3 if o.momentum else 2),
    options=(
        SGDOptions(False, False, False, False, False), SGDOptions(False, False, True, True, False),
        SGDOptions(True, False, True, False, True), SGDOptions(True, False, False, True, False),
        SGDOptions(True, True, True, False, False),
    ),
)  # fmt: skip
note(sgd, "SGD.step")


# -- Adam and its relatives -----------------------------------------------------------------------------------


class AdamOptions(NamedTuple):
    amsgrad: bool
    decay: bool
    decoupled: bool
    maximize: bool


def _apply_weight_decay(o: Any, p: Any, g: Any, lr: Any, decay: Any) -> tuple[Any, Any]:
    """Return parameter and gradient after weight decay, either decoupled or as part of the gradient."""
    g = -g if o.maximize else g
    if not o.decay:
        return p, g
    return (p * (1 - lr * decay), g) if o.decoupled else (p, g + p * decay)


def _adam(f: Any, o: AdamOptions, x: X, s: X) -> X:
    lr, beta1, beta2, eps, decay, bias1, root_bias2 = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    m = _towards(x[2], g, 1 - beta1)
    v = x[3] * beta2 + g * g * (1 - beta2)
    top = f.maximum(x[4], v) if o.amsgrad else v
    p = p - m / (f.sqrt(top) / root_bias2 + eps) * (lr / bias1)
    return (p, m, v, top) if o.amsgrad else (p, m, v)


adam = foreach(
    "_adam", _adam, lambda o: 5 if o.amsgrad else 4, lambda o: (0.1, 0.9, 0.99, 1e-8, 0.05, 0.19, 0.14),
    changed=lambda o: _all_but_gradients(5 if o.amsgrad else 4), positive=lambda o: (3, 4),
    workspace=workspaces.one_list, options=(
        AdamOptions(False, False, False, False), AdamOptions(False, True, False, True),
        AdamOptions(True, True, True, False),
    ),
)  # fmt: skip
note(adam, "Adam.step")


class CountedAdamOptions(NamedTuple):
    amsgrad: bool
    decay: bool
    decoupled: bool
    maximize: bool
    has_rates: bool  # True if the last list holds the learning rate of each parameter

    @property
    def lists(self) -> int:
        return 4 + self.amsgrad


def _counted_adam(f: Any, o: CountedAdamOptions, x: X, s: X) -> X:
    """Return the results of `_adam`, with bias corrections, and maybe a learning rate, that lie on the device."""
    (bias1, root_bias2, *rates), scalars = x[o.lists :], s if o.has_rates else s[1:]
    lr = rates[0] if o.has_rates else s[0]
    return _adam(f, AdamOptions(*o[:4]), x[: o.lists], (lr, *scalars, bias1, root_bias2))


counted_adam = foreach(
    "_counted_adam", _counted_adam, lambda o: o.lists + 2 + o.has_rates,
    lambda o: (0.9, 0.99, 1e-8, 0.05) if o.has_rates else (0.1, 0.9, 0.99, 1e-8, 0.05),
    changed=lambda o: _all_but_gradients(o.lists), positive=lambda o: (3, 4, o.lists, o.lists + 1),
    single=lambda o: 2 + o.has_rates, workspace=workspaces.one_list, options=(
        CountedAdamOptions(False, False, False, False, False), CountedAdamOptions(False, True, False, True, True),
        CountedAdamOptions(True, True, True, False, True), CountedAdamOptions(True, False, False, False, False),
    ),
)  # fmt: skip
note(counted_adam, "Adam.step(capturable=True)")


class DecayOptions(NamedTuple):
    decay: bool
    maximize: bool
    decoupled: bool = False


_PLAIN = (DecayOptions(False, False), DecayOptions(True, True))
_COUPLED = (*_PLAIN, DecayOptions(True, False, True))


def _adamax(f: Any, o: DecayOptions, x: X, s: X) -> X:
    lr, beta1, beta2, eps, decay, bias1 = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    m = _towards(x[2], g, 1 - beta1)
    u = f.maximum(x[3] * beta2, f.abs(g) + eps)
    return p - m / u * (lr / bias1), m, u


adamax = foreach(
    "_adamax", _adamax, lambda o: 4, lambda o: (0.1, 0.9, 0.99, 1e-8, 0.05, 0.19),
    changed=lambda o: (0, 2, 3), positive=lambda o: (3,), options=_PLAIN,
)  # fmt: skip
note(adamax, "Adamax.step")


def _nadam(f: Any, o: DecayOptions, x: X, s: X) -> X:
    lr, beta1, beta2, eps, decay, bias2, of_gradient, of_average = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    m = _towards(x[2], g, 1 - beta1)
    v = x[3] * beta2 + g * g * (1 - beta2)
    below = f.sqrt(v / bias2) + eps
    return p - g / below * of_gradient - m / below * of_average, m, v


nadam = foreach(
    "_nadam", _nadam, lambda o: 4, lambda o: (0.1, 0.9, 0.99, 1e-8, 0.05, 0.02, 0.01, 0.09),
    changed=lambda o: (0, 2, 3), positive=lambda o: (3,), options=_COUPLED,
)  # fmt: skip
note(nadam, "NAdam.step")


class RAdamOptions(NamedTuple):
    decay: bool
    maximize: bool
    decoupled: bool
    rectified: bool


def _radam(f: Any, o: RAdamOptions, x: X, s: X) -> X:
    lr, beta1, beta2, eps, decay, bias1, root_bias2, rectification = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    m = _towards(x[2], g, 1 - beta1)
    v = x[3] * beta2 + g * g * (1 - beta2)
    step = m * (lr / bias1)
    if o.rectified:
        step = step * (root_bias2 * rectification) / (f.sqrt(v) + eps)
    return p - step, m, v


radam = foreach(
    "_radam", _radam, lambda o: 4, lambda o: (0.1, 0.9, 0.99, 1e-8, 0.05, 0.19, 0.14, 0.7),
    changed=lambda o: (0, 2, 3), positive=lambda o: (3,),
    options=(RAdamOptions(False, False, False, False), RAdamOptions(True, True, False, True),
             RAdamOptions(True, False, True, True)),
)  # fmt: skip
note(radam, "RAdam.step")


# -- squares of gradients ---------------------------------------------------------------------------------------


def _adagrad(f: Any, o: DecayOptions, x: X, s: X) -> X:
    lr, decay, eps = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    total = x[2] + g * g
    return p - g / (f.sqrt(total) + eps) * lr, total


adagrad = foreach(
    "_adagrad", _adagrad, lambda o: 3, lambda o: (0.1, 0.05, 1e-10),
    changed=lambda o: (0, 2), positive=lambda o: (2,), options=_PLAIN,
)  # fmt: skip
note(adagrad, "Adagrad.step")


def _adadelta(f: Any, o: DecayOptions, x: X, s: X) -> X:
    lr, rho, eps, decay = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    squares = x[2] * rho + g * g * (1 - rho)
    step = f.sqrt(x[3] + eps) / f.sqrt(squares + eps) * g
    return p - step * lr, squares, x[3] * rho + step * step * (1 - rho)


adadelta = foreach(
    "_adadelta", _adadelta, lambda o: 4, lambda o: (0.1, 0.9, 1e-6, 0.05),
    changed=lambda o: (0, 2, 3), positive=lambda o: (2, 3), options=_PLAIN,
)  # fmt: skip
note(adadelta, "Adadelta.step")


class RMSpropOptions(NamedTuple):
    momentum: bool
    centered: bool
    decay: bool
    maximize: bool
    decoupled: bool = False

    @property
    def lists(self) -> int:
        return 3 + self.momentum + self.centered


def _rmsprop(f: Any, o: RMSpropOptions, x: X, s: X) -> X:
    """Return the next states of RMSprop: the average of squares, the momentum buffer, the average of gradients."""
    lr, alpha, eps, decay, momentum = s
    p, g = _apply_weight_decay(o, x[0], x[1], lr, decay)
    squares = x[2] * alpha + g * g * (1 - alpha)
    average, spread = None, squares
    if o.centered:
        average = _towards(x[-1], g, 1 - alpha)
        spread = squares - average * average
    step = g / (f.sqrt(spread) + eps)
    if o.momentum:
        step = x[3] * momentum + step
    states = (squares, *((step,) if o.momentum else ()), *((average,) if o.centered else ()))
    return (p - step * lr, *states)


rmsprop = foreach(
    "_rmsprop", _rmsprop, lambda o: o.lists, lambda o: (0.1, 0.9, 1e-8, 0.05, 0.8),
    changed=lambda o: _all_but_gradients(o.lists),
    positive=lambda o: (2,),
    options=(RMSpropOptions(False, False, False, False), RMSpropOptions(True, False, True, True),
             RMSpropOptions(True, True, False, False)),
)  # fmt: skip
note(rmsprop, "RMSprop.step")


# -- averaged SGD, resilient propagation ----------------------------------------------------------------------------


class ASGDOptions(NamedTuple):
    decay: bool
    maximize: bool
    averaged: bool
    decoupled: bool = False


def _asgd(f: Any, o: ASGDOptions, x: X, s: X) -> X:
    lambd, eta, mu, decay = s
    p, g = _apply_weight_decay(o, x[0], x[1], eta, decay)
    p = p * (1 - lambd * eta) - g * eta
    return p, _towards(x[2], p, mu) if o.averaged else p


asgd = foreach(
    "_asgd", _asgd, lambda o: 3, lambda o: (1e-4, 0.1, 0.5, 0.05), changed=lambda o: (0, 2),
    options=(ASGDOptions(False, False, False), ASGDOptions(True, True, True)),
)  # fmt: skip
note(asgd, "ASGD.step")


class RpropOptions(NamedTuple):
    maximize: bool


def _rprop(f: Any, o: RpropOptions, x: X, s: X) -> X:
    """Return the next states of Rprop: the last gradient, and each element's step size."""
    less, more, smallest, largest = s
    p, g, before, size = x
    g = -g if o.maximize else g
    product = g * before
    size = f.where(product > 0, size * more, f.where(product < 0, size * less, size))
    size = f.minimum(f.maximum(size, smallest), largest)
    g = f.where(product < 0, 0.0, g)
    signed = f.where(g > 0, size, f.where(g < 0, -size, 0.0))
    return p - signed, g, size


rprop = foreach(
    "_rprop", _rprop, lambda o: 4, lambda o: (0.5, 1.2, 1e-6, 50.0), changed=lambda o: (0, 2, 3),
    positive=lambda o: (3,), options=(RpropOptions(False), RpropOptions(True)),
)  # fmt: skip
note(rprop, "Rprop.step")


# -- gradients that a loss scale multiplied -------------------------------------------------------------------------


def _unscale(f: Any, o: tuple[()], x: X, s: X) -> X:
    """Return a gradient times the inverse scale, and whether it has a non-finite element."""
    g, inverse = x
    return g * inverse, ~f.isfinite(g)


unscale: Foreach = foreach(
    "_amp_foreach_non_finite_check_and_unscale_", _unscale, lambda o: 2, lambda o: (), flag=True
)
note(unscale, "GradScaler.unscale_")
