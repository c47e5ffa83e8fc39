"""Fine-tunes a small BERT classifier on padded batches and checks that padding does not change its answers."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

config = BertConfig(
    vocab_size=32, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
    max_position_embeddings=24, num_labels=2,
)  # fmt: skip
examples = []
for index in range(256):
    length = 6 + index % 8
    tokens = torch.randint(5, 31, (length,))
    label = index % 2
    if label:
        tokens[torch.randint(0, length, ())] = 4  # the token that decides the class
    examples.append((tokens, label))


def collate(batch):
    ids = torch.nn.utils.rnn.pad_sequence([tokens for tokens, _ in batch], batch_first=True)
    return ids, (ids != 0).long(), torch.tensor([label for _, label in batch])


model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _epoch in range(6):
    for ids, mask, labels in DataLoader(examples, batch_size=32, shuffle=True, collate_fn=collate):
        output = model(ids.to(device), attention_mask=mask.to(device), labels=labels.to(device))
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

model.eval()
with torch.no_grad():
    ids, mask, labels = (tensor.to(device) for tensor in collate(examples))
    logits = model(ids, attention_mask=mask).logits
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    short = model(ids[:1, :6], attention_mask=mask[:1, :6]).logits
    assert torch.allclose(short, logits[:1], atol=1e-2)
    masked = BertForMaskedLM(config).to(device).eval()(ids[:4], attention_mask=mask[:4]).logits
assert masked.shape == (4, 13, 32)
assert accuracy > 0.95, accuracy
print(f"bert: accuracy {accuracy:.3f}, loss {output.loss.item():.4f}")
