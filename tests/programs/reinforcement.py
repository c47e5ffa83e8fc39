"""Reinforcement learning: actor-critic with a Categorical policy, DQN with replay and a target network, PPO, SAC's squashed Gaussian."""

import math
import random
import sys
from collections import deque, namedtuple
from itertools import count

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

device = torch.device(sys.argv[1])
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
random.seed(0)
np.random.seed(0)
torch.manual_seed(543)


class Walk:
    def reset(self):
        self.s, self.t = np.array([0.1, -0.2, 0.3], dtype=np.float64), 0
        return self.s

    def step(self, a):
        self.t += 1
        self.s = self.s + 0.1 * (a - 0.5) * np.array([1.0, -1.0, 0.5]) + 0.01 * np.random.randn(3)
        return self.s, float(-np.abs(self.s).sum()), bool(self.t >= 12)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(3, 16)
        self.dropout = nn.Dropout(p=0.0)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


SavedAction = namedtuple("SavedAction", ["log_prob", "value"])
env = Walk()
model = Policy().to(device)
optimizer = optim.Adam(model.parameters(), lr=3e-2)
eps = np.finfo(np.float32).eps.item()
for i_episode in range(4):
    state, ep_reward = env.reset(), 0
    for t in range(1, 100):
        probs, value = model(torch.from_numpy(state).float().to(device))
        m = Categorical(probs.cpu())
        action = m.sample()
        model.saved_actions.append(SavedAction(m.log_prob(action), value))
        state, reward, done = env.step(action.item())
        model.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    R, returns = 0, deque()
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R]).to(device)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum().to(device) + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]
    print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tloss {loss.item():.5f}")

# DQN
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


policy_net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target_net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
target_net.load_state_dict(policy_net.state_dict())
opt = optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = ReplayMemory(100)
for ep in range(3):
    state = torch.tensor(env.reset(), dtype=torch.float32, device=device).unsqueeze(0)
    for t in count():
        if random.random() > 0.3:
            with torch.no_grad():
                action = policy_net(state).max(1).indices.view(1, 1)
        else:
            action = torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)
        obs, reward, done = env.step(action.item())
        reward = torch.tensor([reward], device=device)
        next_state = None if done else torch.tensor(obs, dtype=torch.float32, device=device).unsqueeze(0)
        memory.push(state, action, next_state, reward)
        state = next_state
        if len(memory) >= 8:
            batch = Transition(*zip(*memory.sample(8)))
            mask = torch.tensor([s is not None for s in batch.next_state], device=device, dtype=torch.bool)
            nfs = torch.cat([s for s in batch.next_state if s is not None])
            sb, ab, rb = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
            q = policy_net(sb).gather(1, ab)
            nv = torch.zeros(8, device=device)
            with torch.no_grad():
                nv[mask] = target_net(nfs).max(1).values
            loss = nn.SmoothL1Loss()(q, ((nv * 0.99) + rb).unsqueeze(1))
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
            opt.step()
        tsd, psd = target_net.state_dict(), policy_net.state_dict()
        for key in psd:
            tsd[key] = psd[key] * 0.05 + tsd[key] * 0.95
        target_net.load_state_dict(tsd)
        if done:
            break
    print(ep, f"{loss.item():.6f}", len(memory))


# PPO with a Gaussian policy
class Gauss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.log_std = nn.Parameter(torch.zeros(2))
        for l in self.mu:
            if isinstance(l, nn.Linear):
                nn.init.orthogonal_(l.weight, math.sqrt(2))
                nn.init.constant_(l.bias, 0.0)

    def forward(self, x):
        mu = self.mu(x)
        return Normal(mu, self.log_std.expand_as(mu).exp())


pi = Gauss().to(device)
po = optim.Adam(pi.parameters(), lr=1e-2, eps=1e-5)
obs = torch.randn(16, 3).to(device)
with torch.no_grad():
    old = pi(obs)
    act = old.mean + old.stddev * torch.randn(16, 2).to(device)
    oldlp = old.log_prob(act).sum(-1)
adv = torch.randn(16).to(device)
for k in range(5):
    d = pi(obs)
    ratio = (d.log_prob(act).sum(-1) - oldlp).exp()
    clipped = torch.clamp(ratio, 0.8, 1.2) * adv
    loss = -torch.min(ratio * adv, clipped).mean() - 0.01 * d.entropy().sum(-1).mean()
    po.zero_grad()
    loss.backward()
    po.step()
    with torch.no_grad():
        kl = kl_divergence(Normal(old.loc, old.scale), pi(obs)).sum(-1).mean()
    print("ppo", k, loss.item(), kl.item(), ((ratio - 1.0).abs() > 0.2).float().mean().item())
print(d, Bernoulli(torch.tensor([0.3, 0.7])), Categorical(torch.tensor([0.25, 0.75])))
# a squashed Gaussian, as in SAC, and its temperature
mu = torch.zeros(16, 2).to(device).requires_grad_()
log_alpha = torch.zeros(1).to(device).requires_grad_()
so = optim.Adam([mu, log_alpha], lr=0.1)
for k in range(4):
    squashed = Independent(TransformedDistribution(Normal(mu, 0.5), [TanhTransform(cache_size=1)]), 1)
    noise = torch.randn(16, 2).to(device)
    a = torch.tanh(mu + 0.5 * noise)
    lp = squashed.log_prob(a)
    actor = (log_alpha.exp().detach() * lp - (a - 0.3).square().sum(-1).neg()).mean()
    alpha_loss = -(log_alpha * (lp.detach() - 2.0)).mean()
    so.zero_grad()
    (actor + alpha_loss).backward()
    so.step()
    print("sac", k, actor.item(), log_alpha.exp().item())
print(
    Normal(0.0, 1.0).cdf(torch.tensor(0.5)),
    Normal(torch.tensor([0.0]), torch.tensor([1.0])).rsample((2,)).shape,
)
