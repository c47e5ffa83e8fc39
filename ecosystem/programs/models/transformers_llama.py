"""Trains a small Llama with grouped-query attention to copy its prompt, then generates with a key-value cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.optimization import get_cosine_schedule_with_warmup

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

config = LlamaConfig(
    vocab_size=12, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, bos_token_id=10, eos_token_id=11, pad_token_id=11,
)  # fmt: skip
model = LlamaForCausalLM(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=100)

losses = []
for _step in range(100):
    values = torch.randint(0, 5, (32, 1), device=device)
    tokens = (values + 2 * torch.arange(10, device=device)) % 10  # counts in steps of two
    labels = tokens.clone()
    labels[:, :1] = -100
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.1 < losses[0], losses[-1]

model.eval()
prompt = torch.tensor([[0, 2, 4], [1, 3, 5]], device=device)
mask = torch.ones_like(prompt)
cached = model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False)
uncached = model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False, use_cache=False)
assert torch.equal(cached, uncached)
assert cached[:, 3:].tolist() == [[6, 8, 0, 2, 4, 6], [7, 9, 1, 3, 5, 7]], cached.tolist()
with torch.no_grad():
    eager = model(cached).logits
    model.set_attn_implementation("eager")
    assert torch.allclose(model(cached).logits, eager, atol=1e-2)
print(f"llama: loss {losses[0]:.3f} to {losses[-1]:.3f}")
