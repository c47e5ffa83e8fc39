"""Adapts a frozen Llama with LoRA, saves the adapter, loads it again and merges it into the weights."""

import tempfile

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"


def base():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32, bos_token_id=0, eos_token_id=1,
        )
    ).to(device)  # fmt: skip


config = LoraConfig(
    task_type=TaskType.CAUSAL_LM,
    r=8,
    lora_alpha=32,
    lora_dropout=0.0,
    target_modules=["q_proj", "v_proj", "down_proj"],
)
model = get_peft_model(base(), config)
trainable, total = model.get_nb_trainable_parameters()
assert 0 < trainable < 0.35 * total
frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}

optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-2)
tokens = torch.randint(2, 16, (4, 12), device=device)
losses = []
for _step in range(80):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.85 * losses[0], (losses[0], losses[-1])
assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)

model.eval()
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    model.save_pretrained(folder)
    loaded = PeftModel.from_pretrained(base(), folder).to(device).eval()
    logits = model(tokens).logits
    assert torch.equal(loaded(tokens).logits, logits)
    with model.disable_adapter():
        assert torch.equal(model(tokens).logits, base().eval()(tokens).logits)
    merged = loaded.merge_and_unload()
    assert torch.allclose(merged(tokens).logits, logits, atol=2e-2)
print(f"peft: {trainable} of {total} parameters, loss {losses[0]:.3f} to {losses[-1]:.3f}")
