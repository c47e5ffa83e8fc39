"""Computes metrics over batches, merges two parts, and compares with scikit-learn."""

import torch
from sklearn import metrics
from torcheval.metrics import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score, R2Score
from torcheval.metrics.functional import binary_auprc, mean_squared_error, multiclass_confusion_matrix

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
scores, labels = torch.rand(200, 4, device=device), torch.randint(0, 4, (200,), device=device)
guesses, truth = scores.argmax(1).cpu(), labels.cpu()
accuracy, other = (
    MulticlassAccuracy(device=torch.device(device)),
    MulticlassAccuracy(device=torch.device(device)),
)
accuracy.update(scores[:120], labels[:120])
other.update(scores[120:], labels[120:])
accuracy.merge_state([other])
assert abs(accuracy.compute().item() - metrics.accuracy_score(truth, guesses)) < 1e-6
f1 = MulticlassF1Score(num_classes=4, average="macro", device=torch.device(device)).update(scores, labels)
assert abs(f1.compute().item() - metrics.f1_score(truth, guesses, average="macro")) < 1e-6
binary = (labels < 2).long()
area = BinaryAUROC(device=torch.device(device)).update(scores[:, 0], binary).compute().item()
assert abs(area - metrics.roc_auc_score(binary.cpu(), scores[:, 0].cpu())) < 1e-5
precision = binary_auprc(scores[:, 1], binary).item()
assert abs(precision - metrics.average_precision_score(binary.cpu(), scores[:, 1].cpu())) < 1e-4
confusion = multiclass_confusion_matrix(scores, labels, 4)
assert (confusion.cpu().numpy() == metrics.confusion_matrix(truth, guesses)).all()
x, y = scores[:, 0], scores[:, 1]
r2 = R2Score(device=torch.device(device)).update(x, y).compute().item()
assert abs(r2 - metrics.r2_score(y.cpu(), x.cpu())) < 1e-4
assert abs(mean_squared_error(x, y).item() - metrics.mean_squared_error(y.cpu(), x.cpu())) < 1e-6
print(f"torcheval: accuracy {accuracy.compute().item():.3f}, area {area:.3f}")
