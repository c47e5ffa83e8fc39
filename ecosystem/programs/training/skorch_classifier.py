"""Fits a PyTorch module as a scikit-learn classifier, in a pipeline and in a grid search."""

import pickle

import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, EpochScoring
from skorch.dataset import ValidSplit

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)
        )

    def forward(self, x):
        return self.layers(x).softmax(-1)


x, y = load_iris(return_X_y=True)
x, y = x.astype(np.float32), y.astype(np.int64)
net = NeuralNetClassifier(
    Net, max_epochs=30, lr=0.05, optimizer=torch.optim.Adam, batch_size=32, iterator_train__shuffle=True, verbose=0,
    device=device, train_split=ValidSplit(5, stratified=True),
    callbacks=[EpochScoring("f1_macro", lower_is_better=False), EarlyStopping(patience=20)],
)  # fmt: skip
pipeline = make_pipeline(StandardScaler(), net).fit(x, y)
accuracy = pipeline.score(x, y)
assert accuracy > 0.93, accuracy
assert net.history[-1, "train_loss"] < net.history[0, "train_loss"]
again = pickle.loads(pickle.dumps(pipeline))
assert np.array_equal(again.predict(x), pipeline.predict(x))

search = GridSearchCV(net, {"module__width": [4, 16]}, cv=2, scoring="accuracy", refit=False).fit(x, y)
assert search.best_score_ > 0.8
print(f"skorch: accuracy {accuracy:.3f}, best of the search {search.best_score_:.3f}")
