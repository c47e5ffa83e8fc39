"""A recurrent encoder over packed sequences and a decoder with attention."""

import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

device = torch.device(sys.argv[1])
random.seed(1)
torch.manual_seed(1)


class EncoderRNN(nn.Module):
    def __init__(self, n, h):
        super().__init__()
        self.embedding = nn.Embedding(n, h, padding_idx=0)
        self.gru = nn.GRU(h, h, num_layers=2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, lengths):
        e = self.dropout(self.embedding(x))
        p = pack_padded_sequence(e, lengths, batch_first=True, enforce_sorted=False)
        o, h = self.gru(p)
        o, l = pad_packed_sequence(o, batch_first=True)
        return o, h, l


class Attn(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.Wa = nn.Linear(h, h)
        self.Ua = nn.Linear(2 * h, h)
        self.Va = nn.Linear(h, 1)

    def forward(self, q, k, mask):
        s = self.Va(torch.tanh(self.Wa(q) + self.Ua(k))).squeeze(2).unsqueeze(1)
        s = s.masked_fill(mask.unsqueeze(1), float("-inf"))
        w = F.softmax(s, dim=-1)
        return torch.bmm(w, k), w


class Decoder(nn.Module):
    def __init__(self, n, h):
        super().__init__()
        self.embedding = nn.Embedding(n, h)
        self.attention = Attn(h)
        self.gru = nn.GRUCell(3 * h, h)
        self.out = nn.Linear(h, n)

    def forward(self, enc, mask, h, target):
        outs, inp = [], torch.ones(enc.size(0), dtype=torch.long, device=enc.device)
        for t in range(target.size(1)):
            e = self.embedding(inp)
            c, w = self.attention(h.unsqueeze(1), enc, mask)
            h = self.gru(torch.cat((e, c.squeeze(1)), dim=1), h)
            o = self.out(h)
            outs.append(o)
            if random.random() < 0.5:
                inp = target[:, t]
            else:
                _, topi = o.topk(1)
                inp = topi.squeeze(-1).detach()
        return F.log_softmax(torch.stack(outs, 1), dim=-1), w


enc = EncoderRNN(20, 12).to(device)
dec = Decoder(20, 12).to(device)
eo = optim.Adam(enc.parameters(), lr=1e-2)
do = optim.Adam(dec.parameters(), lr=1e-2)
crit = nn.NLLLoss(ignore_index=0)
for step in range(6):
    seqs = [torch.randint(2, 20, (random.randint(3, 7),)) for _ in range(5)]
    lengths = torch.tensor([len(s) for s in seqs])
    x = pad_sequence(seqs, batch_first=True).to(device)
    y = pad_sequence([s.flip(0) for s in seqs], batch_first=True).to(device)
    eo.zero_grad()
    do.zero_grad()
    o, h, l = enc(x, lengths)
    mask = torch.arange(o.size(1))[None, :].to(device) >= l[:, None].to(device)
    out, w = dec(o, mask, h[-1] + h[-2], y)
    loss = crit(out.reshape(-1, 20), y.reshape(-1))
    loss.backward()
    n = torch.nn.utils.clip_grad_norm_(list(enc.parameters()) + list(dec.parameters()), max_norm=0.5)
    eo.step()
    do.step()
    print(step, f"{loss.item():.5f} {n:.5f}", w.sum().item())
print(enc)
print(dec)
print(w.squeeze(1)[0])
print(l, o.shape)
lstm = nn.LSTM(4, 6, 2, dropout=0.0, bidirectional=True, proj_size=3).to(device)
a, (hn, cn) = lstm(torch.randn(5, 2, 4).to(device))
print(a.shape, hn.shape, cn.shape, a.sum().item())
