"""Trains a small GPT-2 on a repeating sequence and continues the sequence with greedy generation."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

PERIOD = 7
config = GPT2Config(
    vocab_size=16,
    n_positions=64,
    n_embd=64,
    n_layer=2,
    n_head=4,
    bos_token_id=0,
    eos_token_id=15,
    pad_token_id=15,
)
model = GPT2LMHeadModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

model.train()
for _step in range(60):
    starts = torch.randint(0, PERIOD, (16, 1), device=device)
    tokens = (starts + torch.arange(24, device=device)) % PERIOD
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model.eval()
prompt = torch.tensor([[2, 3, 4, 5], [6, 0, 1, 2]], device=device)
generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
expected = (prompt[:, :1] + torch.arange(16, device=device)) % PERIOD
assert torch.equal(generated, expected), generated.tolist()

sampled = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=True, top_k=4, temperature=0.7
)
beams = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, num_beams=3, do_sample=False
)
assert sampled.shape == (2, 10) and torch.equal(beams, expected[:, :10])
print(f"gpt2: loss {loss.item():.3f}, continues {generated[0].tolist()}")
