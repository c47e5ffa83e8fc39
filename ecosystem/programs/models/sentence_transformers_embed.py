"""Builds a sentence embedder from modules, trains it so that paraphrases are close, and searches with it."""

import tempfile

import torch
from sentence_transformers import InputExample, SentenceTransformer, losses, models, util
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

animals = ["cat", "dog", "horse", "mouse"]
colors = ["red", "blue", "green", "white"]
words = animals + colors + ["the", "runs", "is", "a", "color"]
tokenizer = WhitespaceTokenizer(words, stop_words=[])
embedding = models.WordEmbeddings(tokenizer, torch.randn(len(words) + 1, 24), update_embeddings=True)
model = SentenceTransformer(
    modules=[embedding, models.Pooling(24), models.Dense(24, 16), models.Normalize()], device=device
)

pairs = [
    InputExample(texts=[f"the {group[i]} runs", f"a {group[j]} runs"], label=label)
    for group, other in ((animals, colors), (colors, animals))
    for i in range(4)
    for j in range(4)
    for label in (1.0,)
] + [InputExample(texts=[f"the {a} runs", f"a {c} runs"], label=0.0) for a in animals for c in colors]
loader = DataLoader(pairs, batch_size=16, shuffle=True, collate_fn=lambda batch: batch)
criterion = losses.CosineSimilarityLoss(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
model.train()
for _epoch in range(15):
    for batch in loader:
        features = [model.preprocess([e.texts[side] for e in batch]) for side in (0, 1)]
        features = [{k: v.to(device) if hasattr(v, "to") else v for k, v in f.items()} for f in features]
        loss = criterion(features, torch.tensor([e.label for e in batch], device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

corpus = model.encode([f"a {w} runs" for w in animals + colors], convert_to_tensor=True)
query = model.encode(["the cat runs", "the blue runs"], convert_to_tensor=True)
hits = util.semantic_search(query, corpus, top_k=4)
assert [{h["corpus_id"] // 4 for h in hit} for hit in hits] == [{0}, {1}], hits
scores = util.cos_sim(query, corpus)
with tempfile.TemporaryDirectory() as folder:
    model.save(folder)
    again = SentenceTransformer(folder, device=device)
    assert torch.allclose(
        util.cos_sim(again.encode(["the cat runs"], convert_to_tensor=True), corpus), scores[:1]
    )
print(f"sentence-transformers: loss {loss.item():.4f}")
