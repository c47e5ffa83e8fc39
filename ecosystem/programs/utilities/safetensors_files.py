"""Writes tensors and models to safetensors files and reads them again, whole, by name and by slice."""

import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

tensors = {
    "float": torch.randn(6, 5, device=device),
    "half": torch.randn(7, device=device).half(),
    "brain": torch.randn(3, 2, 2, device=device).bfloat16(),
    "long": torch.arange(9, device=device),
    "bool": torch.tensor([True, False, True], device=device),
    "eight": torch.randn(8, device=device).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(2.5, device=device),
    "empty": torch.empty(0, 4, device=device),
}
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/tensors.safetensors"
    save_file(tensors, path, metadata={"author": "test"})
    for where in ("cpu", device):
        loaded = load_file(path, device=where)
        assert set(loaded) == set(tensors)
        for name, tensor in tensors.items():
            got = loaded[name]
            assert got.dtype == tensor.dtype and got.shape == tensor.shape and got.device.type == where
            assert torch.equal(got.to(device).float(), tensor.float()), name
    with safe_open(path, framework="pt", device=device) as file:
        assert file.metadata() == {"author": "test"} and len(list(file.keys())) == len(tensors)
        part = file.get_slice("float")
        assert part.get_shape() == [6, 5] and torch.equal(part[1:4, ::1], tensors["float"][1:4])

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    model[1].weight = model[0].weight  # shared
    save_model(model, f"{folder}/model.safetensors")
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    other[1].weight = other[0].weight
    missing, unexpected = load_model(other, f"{folder}/model.safetensors")
    assert not missing and not unexpected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
data = save(tensors)
assert torch.equal(load(data)["long"].to(device), tensors["long"])
try:
    save_file({"a": tensors["float"], "b": tensors["float"][1:]}, "/dev/null")
except RuntimeError as error:
    assert "share memory" in str(error)
else:
    raise AssertionError("views that share memory were saved")
print(f"safetensors: {len(tensors)} tensors, {len(data)} bytes")
