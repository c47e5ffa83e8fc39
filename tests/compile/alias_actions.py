"""Steps of random programs whose tensors share memory, draw random numbers, or have nodes of the program's own."""

from __future__ import annotations

import random
from typing import Any

import flambeau as torch


class Scaled(torch.autograd.Function):
    """A product with a number, whose backward computes with pending results, and may raise."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float, fails: bool) -> Any:
        ctx.factor, ctx.fails = factor, fails
        y = x * factor
        ctx.save_for_backward(x, y)
        return y + 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        scaled = grad * ctx.factor + (x - y) * 0
        if ctx.fails:
            raise ValueError("backward fails")
        return scaled, None, None


class AliasActions:
    """Steps for `Walk`, which has the values and decides."""

    choice: random.Random
    values: list[Any]
    log: list[Any]

    def any(self) -> Any:
        raise NotImplementedError

    def keep(self, t: Any) -> None:
        raise NotImplementedError

    # -- memory that several tensors share --------------------------------------------------------------
    def view_of_view(self) -> None:
        """Read and write views of views of a pending result or of a tensor."""
        x = self.any() * 2 if self.choice.random() < 0.6 else self.any().detach()
        kinds = [
            lambda t: t[..., 1:], lambda t: t.transpose(0, -1), lambda t: t[None], lambda t: t.flatten(),
            lambda t: t[::2], lambda t: t.unsqueeze(-1), lambda t: t.movedim(0, -1), lambda t: t.squeeze(),
            lambda t: t.unflatten(-1, (2, -1)), lambda t: t.narrow(0, 0, 1), lambda t: t.swapaxes(0, 1),
        ]  # fmt: skip
        views = [x]
        for _ in range(self.choice.randint(2, 4)):
            views.append(self.choice.choice(kinds)(views[-1]))
        written, read = self.choice.choice(views), self.choice.choice(views)
        if self.choice.random() < 0.5:
            written.mul_(self.choice.choice([2, 0.5, self.any()]))
        self.keep(read + 1)
        self.keep(self.choice.choice(views))

    def overlap(self) -> None:
        """Use operands and targets that share elements at other places."""
        x = (self.any() + 0 if self.choice.random() < 0.5 else self.any()).detach()
        if not x.ndim or x.shape[-1] < 3:
            return
        left, right = x[..., :-1], x[..., 1:]
        kind = self.choice.randrange(6)
        if kind == 0:
            self.keep(left * right - x[..., :1])
        elif kind == 1:
            left.copy_(right)
        elif kind == 2:
            left.add_(right.clone())
        elif kind == 3:
            right.mul_(x[..., :1])
        elif kind == 4:
            left.add_(right)
        else:
            rows = x.as_strided((3, 2), (1, 1), x.storage_offset())
            self.keep(rows * 2)
            rows.add_(1)
        self.keep(x * 0.5)

    def write_results(self) -> None:
        """Write into results that wait, by in-place operators, slices and `out=`, with older results alive."""
        x = self.any() * 0.5
        before = x - 1
        kind = self.choice.randrange(6)
        if kind == 0:
            x.add_(before).mul_(x)
        elif kind == 1:
            x[..., 0] = before[..., 0]
        elif kind == 2:
            torch.mul(before, 2, out=x)
        elif kind == 3:
            x.detach()[..., ::2].neg_()
        elif kind == 4:
            x.copy_(self.any())
        else:
            x.masked_fill_(before > 0, 1).clamp_(max=0.5)
        self.keep(x + before)
        if self.choice.random() < 0.5:
            self.keep(self.choice.choice([x, before]))

    def promote(self) -> None:
        """Combine operands of other dtypes, numbers of other kinds, and tensors without dimensions."""
        a, b = self.any(), self.any()
        number = self.choice.choice([2, 0.5, True, torch.tensor(3), torch.tensor(0.5, device="cuda")])
        kind = getattr(
            torch, self.choice.choice(["float16", "bfloat16", "float64", "int32", "uint8", "bool"])
        )
        self.keep(
            self.choice.choice([lambda: a.to(kind) * number + b, lambda: (a + b).to(kind) - number * 1])()
        )

    # -- random numbers ---------------------------------------------------------------------------------
    def draw(self) -> None:
        """Draw in different ways, and observe the generator."""
        x = self.any().float() + 1
        functional = torch.nn.functional
        self.keep(
            self.choice.choice(
                [
                    lambda: functional.dropout(x * 2, 0.25) * x,
                    lambda: torch.rand_like(x) * x,
                    lambda: functional.dropout(torch.softmax(x, -1), 0.5),
                    lambda: x.detach().clone().normal_() + x,
                    lambda: torch.bernoulli(torch.sigmoid(x)) + x,
                    lambda: functional.dropout(functional.dropout(x, 0.5), 0.5),
                    lambda: functional.dropout(x.transpose(0, -1), 0.5) - 1,
                    lambda: functional.alpha_dropout(x, 0.3),
                    lambda: functional.dropout(x[..., 1:], 0.3) * 2,
                ]
            )()
        )
        if self.choice.random() < 0.3:
            self.log.append(bytes(torch.cuda.get_rng_state().tolist()))

    # -- gradients --------------------------------------------------------------------------------------
    def own_function(self) -> None:
        """Run backward through a Function of the program, which may raise."""
        w = torch.randn(4, 6, device="cuda", requires_grad=True)
        fails = self.choice.random() < 0.2
        y = Scaled.apply(w * self.any().detach().float(), 0.5, fails) * 2
        y.sum().backward()
        self.keep(w.grad)

    def hooks(self) -> None:
        """Run hooks that compute, write, keep or raise."""
        w = torch.randn(4, 6, device="cuda", requires_grad=True)
        y = (w * self.any().detach().float()).tanh()
        kept: list[Any] = []

        def hook(grad: Any) -> Any:
            kind = self.choice.randrange(5)
            if kind == 0:
                raise ValueError("hook fails")
            if kind == 1:
                kept.append(grad * 2)
                return None
            if kind == 2:
                self.log.append(repr(grad.sum().item()))
                return None
            return grad + 1 if kind == 3 else (grad * self.any().detach().float()).reshape(grad.shape)

        y.register_hook(hook)
        if self.choice.random() < 0.5:
            w.register_post_accumulate_grad_hook(lambda t: t.grad.mul_(0.5))
        (y * y).mean().backward()
        self.keep(w.grad)
        for t in kept:
            self.keep(t)

    def block(self) -> None:
        """Compute layers of a network and their gradients: normalization, softmax, dropout, a loss of classes."""
        functional, rows = torch.nn.functional, self.choice.choice([4, 40])
        w = torch.randn(rows, 6, device="cuda", requires_grad=True)
        weight = torch.ones(6, device="cuda", requires_grad=True)
        x = w * 0.5 + self.choice.choice([w, weight, 1])
        for _ in range(self.choice.randint(1, 3)):
            x = self.choice.choice(
                [
                    lambda x: functional.layer_norm(x, (6,), weight, weight * 0.1),
                    lambda x: functional.rms_norm(x, (6,), weight) + x,
                    lambda x: torch.softmax(x, -1) * weight,
                    lambda x: functional.dropout(functional.gelu(x), 0.2),
                    lambda x: functional.silu(x.chunk(2, -1)[0]).repeat(1, 2) * x,
                    lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1),
                    lambda x: (x @ w.detach().mT @ w) * 0.1,
                ]
            )(x)
        labels = torch.arange(rows, device="cuda") % 6
        loss = self.choice.choice(
            [
                lambda: functional.cross_entropy(x, labels),
                lambda: functional.cross_entropy(x.half(), labels, label_smoothing=0.2, reduction="sum"),
                lambda: functional.cross_entropy(x, labels, reduction="none").mean(),
                lambda: functional.mse_loss(x, w.detach()),
                lambda: (functional.log_softmax(x, -1)[:, 0] * weight[0]).mean(),
            ]
        )()
        loss.backward()
        self.keep(self.choice.choice([loss.detach(), w.grad, x]))
        if weight.grad is not None:
            self.keep(weight.grad)


ACTIONS = {
    "view_of_view": 5, "overlap": 4, "write_results": 4, "promote": 3, "draw": 4, "own_function": 1, "hooks": 2, "block": 3,
}  # fmt: skip
