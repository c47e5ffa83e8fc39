"""Workers, checkpointing, GradScaler, a checkpoint on the disk, and the same epochs once more from it."""

import os
import sys
import tempfile

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

device = torch.device(sys.argv[1])


class Squares(Dataset):
    def __init__(self, n):
        self.x = torch.linspace(-1, 1, n).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.x[i] ** 2, "i": i, "name": f"n{i}"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 32)
        self.b = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.0), nn.Linear(32, 32), nn.Tanh())
        self.c = nn.Linear(32, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        h = checkpoint(self.b, h, use_reentrant=False)
        return self.c(h)


def build():
    net = Net().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, amsgrad=True)
    return (
        net,
        opt,
        torch.optim.lr_scheduler.StepLR(opt, 2, 0.5),
        torch.amp.GradScaler(device.type, enabled=device.type == "cuda", init_scale=1024.0),
    )


def epoch(net, opt, scaler, loader):
    total = 0.0
    for k, batch in enumerate(loader):
        x, y = batch["x"].to(device, non_blocking=True), batch["y"].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=False):
            loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        n = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        total += loss.item() * len(x)
    return total / len(loader.dataset), n.item(), batch["i"].tolist(), batch["name"]


def main():
    torch.manual_seed(0)
    data = Squares(40)
    train, test = random_split(data, [32, 8])
    loader = DataLoader(
        train, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
    net, opt, sched, scaler = build()
    path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")
    for e in range(4):
        r = epoch(net, opt, scaler, loader)
        sched.step()
        print(e, *(r), sched.get_last_lr())
        if e == 1:
            torch.save(
                {
                    "epoch": e,
                    "model": net.state_dict(),
                    "opt": opt.state_dict(),
                    "sched": sched.state_dict(),
                    "scaler": scaler.state_dict(),
                    "rng": torch.get_rng_state(),
                },
                path,
            )
    ck = torch.load(path, weights_only=True)
    net2, opt2, sched2, scaler2 = build()
    print(net2.load_state_dict(ck["model"]))
    opt2.load_state_dict(ck["opt"])
    sched2.load_state_dict(ck["sched"])
    scaler2.load_state_dict(ck["scaler"])
    torch.set_rng_state(ck["rng"])
    for e in range(ck["epoch"] + 1, 4):
        r = epoch(net2, opt2, scaler2, loader)
        sched2.step()
        print(e, *(r), sched2.get_last_lr())
    print(all(torch.equal(p, q) for p, q in zip(net.parameters(), net2.parameters())))
    net.eval()
    with torch.no_grad():
        for b in DataLoader(test, 4):
            print(net(b["x"].to(device)).flatten())
    s = WeightedRandomSampler(torch.arange(1.0, 41.0), 10)
    print(list(s))

    class Stream(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            lo, step = (info.id, info.num_workers) if info else (0, 1)
            return iter(range(lo, 10, step))

    print([b.tolist() for b in DataLoader(Stream(), batch_size=3, num_workers=2)])
    seq = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]).to(device)
    x = torch.randn(2, 4).to(device).requires_grad_()
    checkpoint_sequential(seq, 2, x, use_reentrant=False).sum().backward()
    print(x.grad)
    if device.type == "cuda":
        for (b,) in DataLoader(TensorDataset(torch.arange(6.0)), 3, pin_memory=True):
            assert b.is_pinned()
    print(sorted(opt.state_dict()["param_groups"][0]))


if __name__ == "__main__":
    main()
