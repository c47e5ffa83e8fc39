"""`torch.values_copy` and its kind: parts of sparse tensors as new tensors, next to PyTorch's."""

import pytest

import flambeau

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CS")
oracle = pytest.importorskip("torch")
PARTS = {"csr": ("values", "crow_indices", "col_indices"), "csc": ("values", "ccol_indices", "row_indices")}


@pytest.mark.parametrize(("layout", "part"), [(layout, part) for layout in PARTS for part in PARTS[layout]])
def test_parts_are_pytorchs_and_share_no_memory(layout, part):
    results = []
    for t in (flambeau, oracle):
        x = getattr(t.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]]), f"to_sparse_{layout}")()
        copy = getattr(t, f"{part}_copy")(x)
        copy += 1
        out = t.zeros(9, dtype=copy.dtype)[:0]
        assert getattr(t, f"{part}_copy")(x, out=out) is out
        results.append((copy.tolist(), out.tolist(), getattr(x, part)().tolist(), str(copy.dtype)))
    assert results[0] == results[1] and results[0][1] == results[0][2]


def test_coordinates_are_copied_and_dense_tensors_refused():
    x = flambeau.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert flambeau.indices_copy(x.to_sparse()).tolist() == [[0, 1], [1, 0]]
    for name in ("values_copy", "indices_copy"):
        texts = []
        for t in (flambeau, oracle):
            with pytest.raises(RuntimeError) as raised:
                getattr(t, name)(t.zeros(2, 2))
            texts.append(str(raised.value))
        assert texts[0] == texts[1]
