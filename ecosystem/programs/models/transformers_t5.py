"""Trains a small T5 to reverse sequences and generates the reversed sequence."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

config = T5Config(
    vocab_size=12, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
    decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, feed_forward_proj="gated-gelu",
)  # fmt: skip
model = T5ForConditionalGeneration(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def batch(size):
    source = torch.randint(2, 12, (size, 3), device=device)
    target = torch.cat([source.flip(1), torch.ones(size, 1, dtype=torch.long, device=device)], 1)
    return source, target


first = None
for _step in range(200):
    source, target = batch(64)
    loss = model(input_ids=source, labels=target).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    first = loss.item() if first is None else first
assert loss.item() < 0.5 * first, (first, loss.item())

model.eval()
source, target = batch(32)
generated = model.generate(source, max_new_tokens=5, do_sample=False)
right = (generated[:, 1:4] == target[:, :3]).float().mean().item()
assert right > 0.7, right
print(f"t5: loss {first:.3f} to {loss.item():.3f}, {right:.0%} of the tokens are right")
