"""Optimizers and schedules that programs derive, and PyTorch's own with their options."""

import math
import sys
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, _LRScheduler
from torch.optim.optimizer import required

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(43)


def tried(label, run):
    try:
        print(label, run())
    except Exception as error:
        print(label, type(error).__name__, str(error).split("\n")[0])


class SAM(Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        n = self._norm()
        for g in self.param_groups:
            sc = g["rho"] / (n + 1e-12)
            for p in g["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * sc.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()

    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.first_step(True)
        closure()
        self.second_step()

    def _norm(self):
        return torch.norm(
            torch.stack(
                [
                    p.grad.norm(p=2).to(self.param_groups[0]["params"][0].device)
                    for g in self.param_groups
                    for p in g["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def __setstate__(self, s):
        super().__setstate__(s)
        [g.setdefault("foo", 1) for g in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - g["lr"] * g["weight_decay"])
                st = self.state[p]
                if len(st) == 0:
                    st["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    st["step"] = 0
                st["step"] += 1
                m = st["exp_avg"]
                b1, b2 = g["betas"]
                u = m * b1 + p.grad * (1 - b1)
                p.add_(torch.sign(u), alpha=-g["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


class OldAdam(Optimizer):
    def __init__(self, params, lr=required):
        super().__init__(params, {"lr": lr})

    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                d = p.grad.data
                st = self.state[p]
                if not st:
                    st["m"], st["v"], st["t"] = torch.zeros_like(p.data), torch.zeros_like(p.data), 0
                st["t"] += 1
                st["m"].mul_(0.9).add_(d, alpha=0.1)
                st["v"].mul_(0.999).addcmul_(d, d, value=0.001)
                den = st["v"].sqrt().add_(1e-8)
                p.data.addcdiv_(
                    st["m"], den, value=-g["lr"] * math.sqrt(1 - 0.999 ** st["t"]) / (1 - 0.9 ** st["t"])
                )


class Lookahead(Optimizer):
    def __init__(self, opt, k=2, alpha=0.5):
        self.optimizer, self.k, self.alpha = opt, k, alpha
        self.param_groups = opt.param_groups
        self.defaults = opt.defaults
        self.state = defaultdict(dict)
        self.n = 0
        self._optimizer_step_pre_hooks = {}
        self._optimizer_step_post_hooks = {}

    def step(self, closure=None):
        l = self.optimizer.step(closure)
        self.n += 1
        for g in self.param_groups:
            for f in g["params"]:
                s = self.state[f]
                if "slow" not in s:
                    s["slow"] = torch.zeros_like(f.data).copy_(f.data)
                if self.n % self.k == 0:
                    s["slow"] += (f.data - s["slow"]) * self.alpha
                    f.data.copy_(s["slow"])
        return l

    def zero_grad(self):
        self.optimizer.zero_grad()


class Noam(LRScheduler):
    def __init__(self, o, d, w, last_epoch=-1):
        self.d, self.w = d, w
        super().__init__(o, last_epoch)

    def get_lr(self):
        n = max(1, self._step_count)
        return [b * self.d**-0.5 * min(n**-0.5, n * self.w**-1.5) for b in self.base_lrs]


class Warm(_LRScheduler):
    def __init__(self, o, t):
        self.t = t
        super().__init__(o)

    def get_lr(self):
        return [b * min(1.0, (self.last_epoch + 1) / self.t) for b in self.base_lrs]


x, y = torch.randn(8, 4).to(dev), torch.randn(8, 1).to(dev)


def mk():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(dev)


def run(name, f, n=4):
    m = mk()
    o = f(m)
    L = []
    for _ in range(n):

        def clo():
            o.zero_grad()
            l = F.mse_loss(m(x), y)
            l.backward()
            return l

        if isinstance(o, SAM):
            L.append(clo().item())
            o.step(clo)
        else:
            l = clo()
            o.step() if name == "old" else o.step(clo)
            L.append(l.item())
    print(name, [round(v, 5) for v in L])
    return m, o


m, o = run("sam", lambda m: SAM(m.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9))
print(o)
m, o = run("lion", lambda m: Lion(m.parameters(), 1e-2, weight_decay=0.01))
sd = o.state_dict()
o2 = Lion(m.parameters())
o2.load_state_dict(sd)
print(o2.param_groups[0]["lr"], o2.state[m[0].weight]["step"], sorted(sd["state"]), sd["param_groups"])
print(o2)
s = Noam(o2, 64, 10)
L = []
for _ in range(4):
    o2.step()
    s.step()
    L.append(round(s.get_last_lr()[0], 8))
print(L, s.state_dict()["d"])
run("old", lambda m: OldAdam(m.parameters(), 1e-2))
tried("required", lambda: OldAdam(mk().parameters()))
run("look", lambda m: Lookahead(torch.optim.Adam(m.parameters(), 1e-2)))
w = Warm(torch.optim.SGD(mk().parameters(), 1.0), 3)
print(w.get_last_lr())
tried("neg", lambda: Lion(mk().parameters(), lr=-1))
for C, kw in (
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.RMSprop, {"momentum": 0.5}),
    (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    (torch.optim.Adadelta, {"rho": 0.8}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.01}),
    (torch.optim.RAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adafactor, {"lr": 0.05}),
    (torch.optim.LBFGS, {"max_iter": 3}),
    (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    (torch.optim.Adam, {"fused": False, "differentiable": False}),
):
    m, o = run(C.__name__, lambda m, C=C, kw=kw: C(m.parameters(), **kw))
    print(o)
p = nn.Parameter(torch.ones(2, device=dev))
o = torch.optim.SGD([p], 0.1)
p.grad = torch.ones(2, device=dev)
o.step()
print(p)
o.zero_grad()
print(p.grad)
p.grad = torch.ones(2, device=dev)
o.zero_grad(set_to_none=False)
print(p.grad)
o.param_groups[0]["lr"] = 1.0
p.grad.fill_(0.5)
o.step()
print(p, o.state)
o.add_param_group({"params": [nn.Parameter(torch.zeros(1, device=dev))], "lr": 5})
print(len(o.param_groups), o)

print(repr(o.state_dict()))
