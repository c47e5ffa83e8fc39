"""Fine-tunes a small Llama on texts with TRL's supervised trainer and a tokenizer made by hand."""

# flambeau run --devices 1

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
words = ["<pad>", "<eos>", "<unk>", "the", "cat", "dog", "sat", "ran", "on", "to", "mat", "park"]
core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
texts = ["the cat sat on the mat", "the dog ran to the park"] * 16
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )
)  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder, per_device_train_batch_size=4, num_train_epochs=5, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, max_length=16, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
    )
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert losses[-1] < 0.4 * losses[0], (losses[0], losses[-1])

model.eval()
prompt = tokenizer("the cat sat", return_tensors="pt", return_token_type_ids=False).to(model.device)
text = tokenizer.decode(
    model.generate(**prompt, max_new_tokens=4, do_sample=False)[0], skip_special_tokens=True
)
assert text == "the cat sat on the mat", text
assert torch.isfinite(torch.tensor(losses)).all()
print(f"trl: loss {losses[0]:.3f} to {losses[-1]:.3f}: {text}")
