"""A masked language model from scratch: collator, trainer, checkpointing, tied weights, saving; then a beam search over flat beams."""

import json
import math
import os
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader, Dataset

device = torch.device(sys.argv[1])
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
random.seed(0)
torch.manual_seed(0)


@dataclass
class Config:
    vocab_size: int = 30
    hidden_size: int = 16
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 20
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    gradient_checkpointing: bool = True


class BertEmbeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(2, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.register_buffer(
            "position_ids", torch.arange(c.max_position_embeddings).expand((1, -1)), persistent=False
        )

    def forward(self, input_ids, token_type_ids=None):
        n = input_ids.size(1)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        return self.LayerNorm(
            self.word_embeddings(input_ids)
            + self.token_type_embeddings(token_type_ids)
            + self.position_embeddings(self.position_ids[:, :n])
        )


class SelfAttention(nn.Module):
    def __init__(self, c, relative=False):
        super().__init__()
        self.h, self.d = c.num_attention_heads, c.hidden_size // c.num_attention_heads
        self.query, self.key, self.value, self.dense = (
            nn.Linear(c.hidden_size, c.hidden_size) for _ in range(4)
        )
        self.rel = nn.Embedding(8, self.h) if relative else None
        slopes = torch.tensor([2 ** (-8 * (i + 1) / self.h) for i in range(self.h)])
        self.register_buffer("slopes", slopes.view(1, -1, 1, 1), persistent=False)

    @staticmethod
    def bucket(rel, n=8, maxd=16):
        ret, n = 0, n // 2
        ret = (rel > 0).long() * n
        rel = rel.abs()
        exact = n // 2
        small = rel < exact
        large = exact + (torch.log(rel.float() / exact) / math.log(maxd / exact) * (n - exact)).long()
        return ret + torch.where(small, rel, torch.min(large, torch.full_like(large, n - 1)))

    def split(self, x):
        return x.view(*x.size()[:-1], self.h, self.d).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.d) + mask
        pos = torch.arange(x.size(1), device=x.device)
        rel = pos[None, :] - pos[:, None]
        s = s + (
            self.rel(self.bucket(rel)).permute(2, 0, 1).unsqueeze(0)
            if self.rel is not None
            else -self.slopes * rel.abs()
        )
        return self.dense((s.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous().flatten(2))


class Layer(nn.Module):
    def __init__(self, c, relative):
        super().__init__()
        self.attn, self.n1, self.n2 = (
            SelfAttention(c, relative),
            nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps),
            nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps),
        )
        self.ff = nn.Sequential(nn.Linear(c.hidden_size, 32), nn.GELU(), nn.Linear(32, c.hidden_size))

    def forward(self, x, mask):
        x = self.n1(x + self.attn(x, mask))
        return self.n2(x + self.ff(x))


@dataclass
class MaskedLMOutput:
    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor = None


class BertForMaskedLM(nn.Module):
    _tied_weights_keys = ["decoder.weight"]

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList([Layer(config, i % 2 == 0) for i in range(config.num_hidden_layers)])
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.apply(self._init_weights)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = (1.0 - attention_mask[:, None, None, :].to(dtype=self.dtype)) * torch.finfo(self.dtype).min
        x = self.embeddings(input_ids)
        for layer in self.layers:
            if self.config.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(layer.__call__, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        logits = self.decoder(x) + self.bias
        loss = None
        if labels is not None:
            loss = CrossEntropyLoss()(logits.view(-1, self.config.vocab_size), labels.view(-1))
        return MaskedLMOutput(loss=loss, logits=logits)

    def save_pretrained(self, path):
        os.makedirs(path, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(path, "pytorch_model.bin"))
        Path(path, "config.json").write_text(json.dumps(asdict(self.config)))

    @classmethod
    def from_pretrained(cls, path):
        model = cls(Config(**json.loads(Path(path, "config.json").read_text())))
        missing, unexpected = model.load_state_dict(
            torch.load(os.path.join(path, "pytorch_model.bin"), map_location="cpu"), strict=False
        )
        print("missing", missing, "unexpected", unexpected)
        return model


class Text(Dataset):
    def __init__(self, n):
        self.rows = [
            [1] + [3 + (s + i * st) % 27 for i in range(random.randint(3, 12))] + [2]
            for s, st in ((random.randint(0, 26), random.randint(1, 3)) for _ in range(n))
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": torch.tensor(self.rows[i], dtype=torch.long)}


class Collator:
    def __call__(self, ex: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        n = max(len(e["input_ids"]) for e in ex)
        ids = torch.stack([F.pad(e["input_ids"], (0, n - len(e["input_ids"])), value=0) for e in ex])
        mask = ids.ne(0).long()
        labels = ids.clone()
        prob = torch.full(labels.shape, 0.3)
        prob.masked_fill_(ids < 3, value=0.0)
        masked = torch.bernoulli(prob).bool()
        labels[~masked] = -100
        repl = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & masked
        ids[repl] = 29
        rnd = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & masked & ~repl
        ids[rnd] = torch.randint(30, labels.shape, dtype=torch.long)[rnd]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Trainer:
    def __init__(self, model, data, lr=5e-3, epochs=2):
        self.model, self.loader = model.to(device), DataLoader(data, 8, shuffle=True, collate_fn=Collator())
        nd = ["bias", "LayerNorm.weight"]
        groups = [
            {
                "params": [p for n, p in model.named_parameters() if not any(k in n for k in nd)],
                "weight_decay": 0.01,
            },
            {
                "params": [p for n, p in model.named_parameters() if any(k in n for k in nd)],
                "weight_decay": 0.0,
            },
        ]
        self.opt = torch.optim.AdamW(groups, lr=lr, eps=1e-8)
        total = epochs * len(self.loader)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: s / 2 if s < 2 else max(0.0, (total - s) / (total - 2))
        )
        self.epochs = epochs

    def train(self):
        step = 0
        for ep in range(self.epochs):
            self.model.train()
            for batch in self.loader:
                batch = {k: v.to(device) for k, v in batch.items()}
                out = self.model(**batch)
                out.loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                self.model.zero_grad()
                step += 1
                print({"loss": round(out.loss.item(), 5), "lr": self.sched.get_last_lr()[0], "step": step})


model = BertForMaskedLM(Config())
print(
    sum(p.numel() for p in model.parameters()),
    [n for n, _ in model.named_parameters()][:4],
    model.embeddings.word_embeddings.weight is model.decoder.weight,
)
Trainer(model, Text(32)).train()
with tempfile.TemporaryDirectory() as d:
    model.save_pretrained(d)
    again = BertForMaskedLM.from_pretrained(d).to(device).eval()
model.eval()
ids = torch.tensor([[1, 5, 6, 29, 8, 2]], device=device)
with torch.no_grad():
    a, b = model(ids, torch.ones_like(ids)).logits, again(ids, torch.ones_like(ids)).logits
print(torch.allclose(a, b), a[0, 3].topk(3))
# beam search as in transformers: flat beams, divmod by vocabulary, cache reorder
torch.manual_seed(0)
table = torch.randn(30, 30).log_softmax(-1).to(device)
nb, cache = 3, torch.zeros(3, 1, dtype=torch.long, device=device)
scores = torch.tensor([0.0, -1e9, -1e9], device=device)
cache[:] = 1
for t in range(5):
    lp = table[cache[:, -1]]
    nxt = (scores[:, None] + lp).view(-1)
    scores, flat = torch.topk(nxt, nb, dim=0, largest=True, sorted=True)
    beam, tok = torch.div(flat, 30, rounding_mode="floor"), flat % 30
    cache = torch.cat([cache.index_select(0, beam), tok.unsqueeze(-1)], dim=-1)
print(cache, scores, flat // 30 == beam)
