"""Trains PPO and DQN on a small environment whose best action is a threshold of the observation."""

import tempfile
import warnings

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy

warnings.simplefilter("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"


class Threshold(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 8
        self.value = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.value, {}

    def step(self, action):
        reward = float(action == (self.value[0] > 0.3))
        self.value = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        self.left -= 1
        return self.value, reward, self.left == 0, False, {}


environment = Threshold()
ppo = PPO(
    "MlpPolicy",
    environment,
    n_steps=128,
    batch_size=64,
    n_epochs=5,
    learning_rate=1e-2,
    seed=0,
    device=device,
)
before, _ = evaluate_policy(ppo, environment, n_eval_episodes=5, warn=False)
ppo.learn(1024)
after, _ = evaluate_policy(ppo, environment, n_eval_episodes=5, warn=False)
assert after >= max(before, 7.0), (before, after)

with tempfile.TemporaryDirectory() as folder:
    ppo.save(f"{folder}/ppo")
    loaded = PPO.load(f"{folder}/ppo", device=device)
    points = np.linspace(-1, 1, 11, dtype=np.float32)[:, None]
    assert np.array_equal(
        ppo.predict(points, deterministic=True)[0], loaded.predict(points, deterministic=True)[0]
    )

dqn = DQN(
    "MlpPolicy",
    environment,
    learning_starts=50,
    train_freq=4,
    buffer_size=500,
    seed=0,
    device=device,
    gamma=0.0,
)
dqn.learn(300)
assert dqn.predict(points, deterministic=True)[0].shape == (11,)
print(f"stable-baselines3: reward {before:.1f} to {after:.1f} of 8")
