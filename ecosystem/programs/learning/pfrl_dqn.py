"""Trains a DQN agent of PFRL on a corridor that rewards walking to the right."""

import gymnasium
import numpy
import pfrl
import torch
from torch import nn

gpu = 0 if torch.cuda.is_available() else -1
torch.manual_seed(0)
numpy.random.seed(0)


class Corridor:
    """Six cells; the last one gives a reward and ends the episode."""

    def reset(self):
        """Return to the first cell."""
        self.cell, self.steps = 0, 0
        return self.observe()

    def observe(self):
        """Return the cell as a one-hot vector."""
        return numpy.eye(6, dtype=numpy.float32)[self.cell]

    def step(self, action):
        """Move left or right."""
        self.cell = min(max(self.cell + (1 if action == 1 else -1), 0), 5)
        self.steps += 1
        return self.observe(), float(self.cell == 5), self.cell == 5 or self.steps >= 30, {}


actions = gymnasium.spaces.Discrete(2)
network = nn.Sequential(
    nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2), pfrl.q_functions.DiscreteActionValueHead()
)
agent = pfrl.agents.DoubleDQN(
    network,
    torch.optim.Adam(network.parameters(), lr=5e-3),
    pfrl.replay_buffers.ReplayBuffer(1000),
    0.9,
    pfrl.explorers.ConstantEpsilonGreedy(0.3, lambda: int(numpy.random.randint(2))),
    gpu=gpu,
    replay_start_size=64,
    update_interval=2,
    target_update_interval=50,
    minibatch_size=32,
    phi=lambda value: value.astype(numpy.float32),
)
world = Corridor()
for _episode in range(40):
    observation, done = world.reset(), False
    while not done:
        observation, reward, done, _ = world.step(agent.act(observation))
        agent.observe(observation, reward, done, False)
with agent.eval_mode():
    observation, done = world.reset(), False
    while not done:
        observation, reward, done, _ = world.step(agent.act(observation))
        agent.observe(observation, reward, done, False)
assert reward == 1.0 and world.steps == 5, (reward, world.steps)
print(f"pfrl: {world.steps} steps to the goal, {dict(agent.get_statistics())}")
