"""Summarizes a convolutional network: shapes, parameters and multiply-adds."""

import torch
from torch import nn
from torchinfo import summary

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.rnn = nn.LSTM(14, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        features = self.features(x).mean(1)
        return self.head(self.rnn(features)[0][:, -1])


model = Net().to(device)
result = summary(
    model, input_size=(4, 1, 28, 28), col_names=("input_size", "output_size", "num_params", "mult_adds"), verbose=0,
    device=device,
)  # fmt: skip
assert result.total_params == sum(p.numel() for p in model.parameters()) == 2314, result.total_params
assert result.trainable_params == result.total_params
rows = {info.var_name: info.output_size for info in result.summary_list}
assert rows["features"] == [4, 8, 14, 14] and rows["head"] == [4, 10], rows
convolution = 4 * 8 * 28 * 28 * (9 + 1)
assert result.total_mult_adds > convolution
text = str(result)
assert "Conv2d" in text and "Total params: 2,314" in text
print(f"torchinfo: {result.total_params} parameters, {result.total_mult_adds} multiply-adds")
