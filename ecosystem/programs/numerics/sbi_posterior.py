"""Infers the mean of a Gaussian with sbi's neural posterior estimation."""

import torch
from sbi.inference import NPE
from sbi.utils import BoxUniform

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
prior = BoxUniform(-2 * torch.ones(2, device=device), 2 * torch.ones(2, device=device), device=device)
theta = prior.sample((600,))
x = theta + 0.3 * torch.randn_like(theta)
inference = NPE(prior=prior, density_estimator="maf", device=device, show_progress_bars=False)
estimator = inference.append_simulations(theta, x).train(
    max_num_epochs=12, training_batch_size=100, learning_rate=3e-3
)
posterior = inference.build_posterior(estimator)
observed = torch.tensor([[0.5, -0.7]], device=device)
samples = posterior.sample((400,), x=observed, show_progress_bars=False)
assert samples.shape == (400, 2)
assert torch.allclose(samples.mean(0), observed[0], atol=0.3), samples.mean(0)
assert (samples.std(0) < 0.8).all(), samples.std(0)
near = posterior.log_prob(observed, x=observed)
far = posterior.log_prob(observed + 1, x=observed)
assert near > far + 1, (near, far)
print(f"sbi: mean {samples.mean(0).tolist()}, deviation {samples.std(0).tolist()}")
