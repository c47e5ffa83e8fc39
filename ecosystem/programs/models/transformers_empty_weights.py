"""Builds a model of 1.5 billion parameters without memory, then a small one on the meta device that gets weights."""

import torch
from accelerate import init_empty_weights
from accelerate.utils import set_module_tensor_to_device
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

with init_empty_weights():
    large = GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25))
large.tie_weights()
count = sum(parameter.numel() for parameter in large.parameters())
assert count == 1_557_611_200, count
assert all(parameter.device.type == "meta" for parameter in large.parameters())

config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
source = GPT2LMHeadModel(config).to(device).eval()
with init_empty_weights():
    target = GPT2LMHeadModel(config)
for name, value in source.state_dict().items():
    set_module_tensor_to_device(target, name, device, value=value)
target.tie_weights()
target.eval()

with torch.device("meta"):
    shapes = torch.nn.Linear(10, 20)(torch.empty(5, 10))
assert shapes.shape == (5, 20) and shapes.is_meta

tokens = torch.randint(0, 32, (2, 8), device=device)
with torch.no_grad():
    assert torch.equal(target(tokens).logits, source(tokens).logits)
print(f"init_empty_weights: {count:,} parameters without memory")
