"""`F.scaled_grouped_mm`: products of groups of float8 matrices, compared with products in float64."""

import pytest

import flambeau as torch
import flambeau.nn.functional as F
from flambeau.core.errors import NotSupportedError

ROWS = F.ScalingType.RowWise
ENDS = [16, 16, 48]  # the second group is empty; rows from 48 on belong to none


def factors(shape, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(torch.float8_e4m3fn)


def scales(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def by_columns(x):
    return x.transpose(-2, -1).contiguous().transpose(-2, -1)


def test_rows_of_groups():
    a, b = factors((64, 32), 1), by_columns(factors((3, 32, 16), 2))
    sa, sb = scales(64, seed=3), scales(3, 16, seed=4)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    got = F.scaled_grouped_mm(a, b, sa, ROWS, sb, ROWS, offs=offs, output_dtype=torch.float32)
    want = torch.zeros(64, 16, dtype=torch.float64)
    for group, (i, j) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        want[i:j] = (a[i:j].double() * sa[i:j, None]) @ (b[group].double() * sb[group])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_columns_of_groups():
    a, b = factors((3, 16, 32), 1), by_columns(factors((32, 64), 2))
    sa, sb = scales(3, 16, seed=3), scales(64, seed=4)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    got = F.scaled_grouped_mm(a, b, sa, ROWS, sb, ROWS, offs=offs, output_dtype=torch.float32)
    want = torch.zeros(16, 64, dtype=torch.float64)
    for group, (i, j) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        want[:, i:j] = (a[group].double() * sa[group, :, None]) @ (b[:, i:j].double() * sb[i:j])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_groups_of_the_common_dimension():
    a, b = factors((16, 64), 1), by_columns(factors((64, 32), 2))
    sa, sb = scales(3 * 16, seed=3), scales(3 * 32, seed=4)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    got = F.scaled_grouped_mm(a, b, [sa], [ROWS], [sb], [ROWS], offs=offs, output_dtype=torch.float32)
    parts = zip([0, *ENDS], ENDS, sa.reshape(3, 16, 1), sb.reshape(3, 1, 32), strict=False)
    want = torch.stack([(a[:, i:j].double() @ b[i:j].double()) * x * y for i, j, x, y in parts])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_batches_have_no_offsets_and_the_default_dtype_is_bfloat16():
    a, b = factors((3, 16, 32), 1), by_columns(factors((3, 32, 16), 2))
    sa, sb = scales(3, 16, seed=3), scales(3, 16, seed=4)
    got = F.scaled_grouped_mm(a, b, sa, ROWS, sb, ROWS)
    want = (a.double() * sa[..., None]) @ (b.double() * sb[:, None])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)
    with torch.virtual(1):
        given = [t.cuda() for t in (a, b, sa, sb)]
        assert torch.equal(F.scaled_grouped_mm(*given[:2], given[2], ROWS, given[3], ROWS).cpu(), got)


def test_what_does_not_fit_raises():
    a, b, sa, sb = factors((3, 16, 32), 1), factors((3, 32, 16), 2), scales(3, 16), scales(3, 16)
    one = F.ScalingType.TensorWise
    with pytest.raises(NotSupportedError, match="RowWise"):
        F.scaled_grouped_mm(a, b, sa, one, sb, one)
    with pytest.raises(RuntimeError, match="scale_b must be float32 of shape"):
        F.scaled_grouped_mm(a, b, sa, ROWS, sb[:2], ROWS)
    with pytest.raises(RuntimeError, match="Float8"):
        F.scaled_grouped_mm(a.float(), b, sa, ROWS, sb, ROWS)
    with pytest.raises(RuntimeError, match="offsets"):
        F.scaled_grouped_mm(a[0], b, sa[0], ROWS, sb, ROWS)
    with pytest.raises(RuntimeError, match="Bias"):
        F.scaled_grouped_mm(a, b, sa, ROWS, sb, ROWS, bias=sa)
