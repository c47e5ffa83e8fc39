"""A residual net learns noise: OneCycleLR, clipping, state_dict, deepcopy, pickles of modules."""

import copy
import io
import pickle
import sys

import torch
import torch.nn as nn

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

dev = torch.device(sys.argv[1])


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


torch.manual_seed(0)
net = ResNet().to(dev)
print(net)
print(sum(p.numel() for p in net.parameters() if p.requires_grad))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=12)
crit = nn.CrossEntropyLoss(label_smoothing=0.1)
xs = torch.randn(12, 8, 3, 16, 16)
ys = torch.randint(0, 10, (12, 8))
for x, y in zip(xs, ys):
    x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
    opt.zero_grad(set_to_none=True)
    out = net(x)
    loss = crit(out, y)
    loss.backward()
    total = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    pred = out.argmax(1)
    print(
        f"{loss.item():.4f} {total.item():.4f} {sched.get_last_lr()[0]:.6f} {(pred == y).float().mean().item():.3f}"
    )
net.eval()
with torch.no_grad():
    print(net(xs[0].to(dev)).softmax(-1).max(1).values)
for k, v in net.state_dict().items():
    if "running" in k or "num_batches" in k:
        print(k, v.float().mean().item())
clone = copy.deepcopy(net)
buf = io.BytesIO()
torch.save(net.state_dict(), buf)
buf.seek(0)
print(clone.load_state_dict(torch.load(buf, map_location=dev, weights_only=True)))
again = pickle.loads(pickle.dumps(net))
with torch.inference_mode():
    a, b, c = (m(xs[1].to(dev)) for m in (net, clone, again))
    print(torch.equal(a, b), torch.equal(a, c), torch.allclose(a, b))
buf = io.BytesIO()
torch.save(net, buf)
buf.seek(0)
whole = torch.load(buf, weights_only=False)
print(type(whole).__name__, whole.training)
print(net.layer1[0].conv1.weight.shape, net.fc, list(net.children())[-1].weight.device.type == dev.type)
