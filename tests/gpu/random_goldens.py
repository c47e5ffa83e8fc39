"""Print what PyTorch's CUDA generator gives on this GPU, as JSON: goldens for the virtual GPU of its profile.

Run where PyTorch sees a GPU: `python tests/gpu/random_goldens.py > tests/goldens/random_h100.json`. Each row holds a
call, the first values, and a digest of all bits, so that the whole tensor is compared.
"""

import hashlib
import json

import torch

SIZES = [1, 5, 255, 1000, 4097, 300_000, 1_100_003, 3_000_000]
CALLS = {
    "rand": lambda n, d: torch.rand(n, device="cuda", dtype=d),
    "uniform": lambda n, d: torch.empty(n, device="cuda", dtype=d).uniform_(-2, 3),
    "randn": lambda n, d: torch.randn(n, device="cuda", dtype=d),
    "normal": lambda n, d: torch.empty(n, device="cuda", dtype=d).normal_(1, 2),
    "bernoulli": lambda n, d: torch.empty(n, device="cuda", dtype=d).bernoulli_(0.3),
    "exponential": lambda n, d: torch.empty(n, device="cuda", dtype=d).exponential_(),
    "random": lambda n, d: torch.empty(n, device="cuda", dtype=d).random_(),
    "randint10": lambda n, d: torch.empty(n, device="cuda", dtype=d).random_(-5, 10),
    "randint_wide": lambda n, d: torch.empty(n, device="cuda", dtype=d).random_(0, 1 << 40),
    "randint_28": lambda n, d: torch.empty(n, device="cuda", dtype=d).random_(0, 1 << 28),
    "randint_28_less": lambda n, d: torch.empty(n, device="cuda", dtype=d).random_(0, (1 << 28) - 1),
    "randperm": lambda n, d: torch.randperm(n, device="cuda", dtype=d),
}
FLOATS = ["float32", "float64", "float16", "bfloat16"]
DTYPES = {
    "rand": FLOATS, "uniform": FLOATS, "randn": FLOATS, "normal": FLOATS, "exponential": FLOATS,
    "bernoulli": [*FLOATS, "uint8", "int32", "int64", "bool"],
    "random": [*FLOATS, "uint8", "int8", "int16", "int32", "int64", "bool"],
    "randint10": ["float32", "int8", "int32", "int64"],
    "randint_wide": ["int64", "float64"],
    "randint_28": ["int64", "int32"],
    "randint_28_less": ["int64", "int32"],
    "randperm": ["int64", "int32"],
}  # fmt: skip


def bits(t: torch.Tensor) -> bytes:
    return bytes(t.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def main() -> None:
    rows = []
    for name, call in CALLS.items():
        for dtype in DTYPES[name]:
            for size in SIZES:
                torch.cuda.manual_seed(1234)
                call(7, getattr(torch, dtype))  # so that the offset is not zero
                values = call(size, getattr(torch, dtype))
                state = torch.cuda.get_rng_state()
                rows.append({
                    "call": name, "dtype": dtype, "size": size,
                    "first": values[:6].double().tolist(), "last": values[-2:].double().tolist(),
                    "digest": hashlib.sha256(bits(values)).hexdigest(), "offset": int(state[8:].view(torch.int64)[0]),
                })  # fmt: skip
    properties = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "device": properties.name, "torch": torch.__version__, "multi_processor_count": properties.multi_processor_count,
        "max_threads_per_multi_processor": properties.max_threads_per_multi_processor, "rows": rows,
    }, indent=None, separators=(",", ":")))  # fmt: skip


if __name__ == "__main__":
    main()
