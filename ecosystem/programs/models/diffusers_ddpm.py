"""Trains a small UNet2D with the DDPM scheduler on a fixed image and samples with DDPM and DDIM."""

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8, attention_head_dim=8,
).to(device)  # fmt: skip
scheduler = DDPMScheduler(num_train_timesteps=50, beta_schedule="squaredcos_cap_v2")
image = torch.full((1, 1, 8, 8), -0.8, device=device)
image[:, :, 2:6, 2:6] = 0.8

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _step in range(40):
    clean = image.expand(8, -1, -1, -1)
    noise = torch.randn_like(clean)
    timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (8,), device=device)
    predicted = model(scheduler.add_noise(clean, noise, timesteps), timesteps).sample
    loss = F.mse_loss(predicted, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
early, late = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
assert late < 0.6 * early, (early, late)

model.eval()
pipeline = DDPMPipeline(unet=model, scheduler=DDIMScheduler.from_config(scheduler.config))
pipeline.set_progress_bar_config(disable=True)
images = pipeline(batch_size=2, num_inference_steps=5, output_type="np").images
assert images.shape == (2, 8, 8, 1)

scheduler.set_timesteps(10)
sample = torch.randn(2, 1, 8, 8, device=device)
with torch.no_grad():
    for t in scheduler.timesteps:
        sample = scheduler.step(model(sample, t).sample, t, sample).prev_sample
distance = (sample - image).abs().mean().item()
assert distance < 0.5, distance
print(f"diffusers: loss {early:.3f} to {late:.3f}, mean distance of samples {distance:.3f}")
