"""A wrong argument is an error at the call: the virtual GPU goes on."""

import pytest

import flambeau as torch
from flambeau.nn import functional as F

HUGE = (1 << 63) - 1
CALLS = {
    "group_norm": (TypeError, lambda x: F.group_norm(x, 2, bias=1.0)),
    "rms_norm": (TypeError, lambda x: F.rms_norm(x, (4,), 5)),
    "layer_norm": (TypeError, lambda x: F.layer_norm(x, (4,), weight=float("nan"))),
    "batch_norm": (TypeError, lambda x: F.batch_norm(x, None, None, 1.0, training=True)),
    "instance_norm": (TypeError, lambda x: F.instance_norm(x, weight=1.0)),
    "conv_dilation": (RuntimeError, lambda x: F.conv2d(x, x[:, :, :1, :1], dilation=HUGE)),
    "conv_transpose": (RuntimeError, lambda x: F.conv_transpose2d(x, x[:, :, :1, :1], stride=HUGE)),
    "einsum": (TypeError, lambda x: torch.einsum("abcd,ef->abcd", x, 1.0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_argument_raises_at_the_call(name):
    kind, call = CALLS[name]
    with torch.virtual(1):
        x = torch.ones(2, 2, 4, 4, device="cuda")
        with pytest.raises(kind):
            call(x)
        assert torch.ones(1, device="cuda").add(1).item() == 2


def test_a_stride_beyond_the_input_leaves_one_window():
    with torch.virtual(1):
        x = torch.ones(2, 2, 4, 4, device="cuda")
        assert F.conv2d(x, x, stride=HUGE).tolist() == torch.full((2, 2, 1, 1), 32.0).tolist()
        assert F.unfold(x, 1, stride=HUGE).tolist() == torch.ones(2, 2, 1).tolist()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_output_beyond_the_devices_memory_is_refused_before_work_in_proportion_to_it(device: str) -> None:
    with torch.virtual(1):
        x = torch.ones(2, 3, 8, 8, device=device)
        for sizes in ((1, 1 << 35), (1 << 20, 1 << 20)):
            with pytest.raises(RuntimeError, match="ried to allocate"):
                torch.nn.functional.adaptive_avg_pool2d(x, sizes)
            with pytest.raises(RuntimeError, match="ried to allocate"):
                torch.nn.functional.interpolate(x, size=sizes)
        assert torch.ones(1, device=device).add(1).item() == 2
