"""Saves models with save_pretrained and loads them again, sharded, in half precision and from their configuration."""

import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).to(device).eval()
tokens = torch.randint(0, 64, (2, 8), device=device)

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    model.save_pretrained(folder)
    assert (Path(folder) / "model.safetensors").exists()
    loaded = GPT2LMHeadModel.from_pretrained(folder).to(device).eval()
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight  # tied

    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.dtype is torch.bfloat16
    assert torch.equal(half.lm_head.weight.to(device), model.lm_head.weight.bfloat16())

    sharded = Path(folder) / "sharded"
    model.save_pretrained(sharded, max_shard_size="40KB")
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 1
    again = AutoModelForCausalLM.from_pretrained(sharded).to(device).eval()
    assert torch.equal(again(tokens).logits, model(tokens).logits)

    base = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    assert sum(p.numel() for p in base.parameters()) == sum(p.numel() for p in model.parameters())
print(f"save_pretrained: equal logits from one file and from {len(files)} shards")
