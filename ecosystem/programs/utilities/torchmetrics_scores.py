"""Accumulates metrics over batches and compares them with scikit-learn's."""

import numpy as np
import torch
from sklearn import metrics as reference
from torchmetrics import MeanMetric, MetricCollection, PearsonCorrCoef, R2Score
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

scores = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(4, average="micro"),
        "f1": MulticlassF1Score(4, average="macro"),
        "confusion": MulticlassConfusionMatrix(4),
    }
).to(device)
area, fit, correlation, mean = BinaryAUROC().to(device), R2Score(), PearsonCorrCoef(), MeanMetric().to(device)
logits, labels = torch.randn(6, 32, 4), torch.randint(0, 4, (6, 32))
for batch, target in zip(logits.to(device), labels.to(device)):
    scores.update(batch, target)
    area.update(batch[:, 0], (target > 1).int())
    mean.update(batch.mean())
    fit.update(batch[:, 0].cpu(), batch[:, 1].cpu())
    correlation.update(batch[:, 0].cpu(), batch[:, 1].cpu())
result = {name: value.cpu().numpy() for name, value in scores.compute().items()}
predicted, truth = logits.argmax(-1).flatten().numpy(), labels.flatten().numpy()
first, second = logits[..., 0].flatten().numpy(), logits[..., 1].flatten().numpy()
pairs = [
    (result["accuracy"], reference.accuracy_score(truth, predicted)),
    (result["f1"], reference.f1_score(truth, predicted, average="macro")),
    (result["confusion"], reference.confusion_matrix(truth, predicted)),
    (area.compute().cpu(), reference.roc_auc_score(truth > 1, first)),
    (fit.compute(), reference.r2_score(second, first)),
    (correlation.compute(), np.corrcoef(first, second)[0, 1]),
    (mean.compute().cpu(), logits.mean()),
]
for got, expected in pairs:
    assert np.allclose(got, expected, atol=1e-4), (got, expected)

image = torch.rand(2, 1, 32, 32, device=device)
assert abs(StructuralSimilarityIndexMeasure(data_range=1.0).to(device)(image, image).item() - 1) < 1e-4
noise = PeakSignalNoiseRatio(data_range=1.0).to(device)(image, image + 0.1)
assert abs(noise.item() - 20) < 1e-3, noise
scores.reset()
assert scores["accuracy"].update_count == 0
print(f"torchmetrics: accuracy {float(result['accuracy']):.4f}, all equal to scikit-learn's")
