"""Simulated time: bandwidths, rates, contention, events, profiles and their refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_kit import NOTHING, SLEEP, adder

from flambeau.core.device import CPU
from flambeau.core.dtype import float16, float32, float64, int64
from flambeau.core.errors import DriverError
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Kernel, Launch, MatrixProduct, Work
from flambeau.driver.virtual import VirtualDriver, cost
from flambeau.driver.virtual.host_time import load_host
from flambeau.driver.virtual.profile import load_profile, profile_names
from flambeau.ops.work import product_work

NAMES = ("a100-40g", "a100-80g", "dgx-h100", "dgx-h200", "h100", "h200", "rtx4090", "v100-16g", "v100-32g")
GIB = 1 << 30


def timed(driver, work, index=0):
    """Simulated ns of what `work(stream)` queues, between two events."""
    stream = driver.stream_default(index)
    start, end = driver.event_create(index, True), driver.event_create(index, True)
    driver.event_record(start, stream)
    work(stream)
    driver.event_record(end, stream)
    driver.event_sync(end)
    return driver.event_elapsed_ns(start, end)


def matmul_ns(profile, n, dtype, rate):
    kernel = Kernel(
        "matmul", NOTHING.host, lambda launch: 2 * n**3, rate=lambda launch: rate, work=product_work.product
    )
    driver, meta = VirtualDriver(1, profile), Meta.contiguous_of((n, n), dtype, CPU)
    exe = driver.load(Launch(kernel, (meta,), (meta, meta)), 0)
    ptrs = [driver.mem_alloc(0, meta.nbytes) for _ in range(3)]
    return timed(driver, lambda stream: driver.launch(exe, ptrs, (), stream))


def test_the_notes_matmul_takes_what_the_notes_say():
    """PyTorch's CUDA notes: 10240 x 10240 on an A100, 0.016 s with TF32 and 0.11 s without."""
    assert matmul_ns("a100", 10240, float32, "tf32") / 1e9 == pytest.approx(0.016, rel=0.05)
    assert matmul_ns("a100", 10240, float32, "float32") / 1e9 == pytest.approx(0.11, rel=0.05)


@given(
    st.builds(
        MatrixProduct, *[st.integers(1, 5000)] * 4, st.sampled_from(["float16", "bfloat16", "float32", "tf32", "float64"]),
        st.sampled_from([2, 4, 8, 16]), st.floats(0.1, 1.5),
    ),
    st.floats(0, 1e12), st.integers(1, 1 << 40), st.sampled_from(NAMES),
)  # fmt: skip
def test_no_kernel_is_faster_than_the_device(product, nbytes, threads, name):
    profile = load_profile(name)
    ns = cost.kernel_ns(Work(nbytes, nbytes, threads, product=product), profile)
    rate = cost.peak(product.rate, profile) / getattr(profile.efficiency, product.rate)
    operations = 2 * product.count * product.rows * product.columns * product.depth
    assert ns >= nbytes / max(profile.l2_bandwidth, profile.bandwidth) * 1e9 - 1
    assert ns >= operations / rate * 1e9 - 1


def test_volta_has_no_tf32():
    assert matmul_ns("v100", 4096, float32, "tf32") == matmul_ns("v100", 4096, float32, "float32")


def test_rates_order_as_the_datasheets_do():
    times = [
        matmul_ns("h100", 8192, *kind)
        for kind in ((float16, "float16"), (float32, "tf32"), (float64, "float64"))
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("profile", NAMES)
def test_a_big_copy_and_a_big_addition_run_at_bandwidth(profile):
    driver, figures = VirtualDriver(1, profile), load_profile(profile)
    a, b = driver.mem_alloc(0, GIB), driver.mem_alloc(0, GIB)
    pinned = driver.host_alloc(1 << 26)
    inside = timed(
        driver, lambda stream: driver.launch(adder(driver, GIB // 4, 0, NOTHING), (a, a, b), (), stream)
    )
    assert 3 * GIB / inside == pytest.approx(figures.bandwidth / 1e9 * figures.efficiency.bandwidth, rel=0.02)
    inward = timed(driver, lambda stream: driver.copy_in(a, pinned, stream))
    assert (1 << 26) / inward == pytest.approx(figures.links.pcie / 1e9, rel=0.02)


def test_a_copy_over_a_link_is_faster_than_through_the_host():
    driver = VirtualDriver(2, "a100")
    a, b = driver.mem_alloc(0, 1 << 26), driver.mem_alloc(1, 1 << 26)
    staged = timed(driver, lambda stream: driver.copy(b, a, 1 << 26, stream))
    driver.peer_enable(0, 1)
    linked = timed(driver, lambda stream: driver.copy(b, a, 1 << 26, stream))
    assert staged > 5 * linked


def test_copies_overlap_kernels_and_the_other_direction_but_not_their_own():
    def together(*works):
        driver = VirtualDriver(1, "a100")
        sleep, pinned = driver.load(Launch(SLEEP, (), (int64,)), 0), driver.host_alloc(1 << 26)
        ptr = driver.mem_alloc(0, 1 << 26)
        queue = {
            "sleep": lambda s: driver.launch(sleep, (), (3_700_000,), s),
            "in": lambda s: driver.copy_in(ptr, pinned, s),
            "out": lambda s: driver.copy_out(pinned, ptr, s),
        }
        for work in works:
            queue[work](driver.stream_create(0, 0))
        driver.device_sync(0)
        return driver.time_ns() / 1e6

    one = together("in")
    assert together("in", "out", "sleep") == pytest.approx(one, rel=0.05)
    assert together("in", "in") == pytest.approx(2 * one, rel=0.15)


def test_small_kernels_run_side_by_side_and_large_ones_in_turn():
    def two(count):
        times = []
        for streams in (1, 2):
            driver = VirtualDriver(1, "a100")
            exe, ptr = adder(driver, count, 0, HEAVY), driver.mem_alloc(0, 4 * count)
            queues = [driver.stream_create(0, 0) for _ in range(streams)]
            for i in range(2):
                driver.launch(exe, (ptr, ptr, ptr), (), queues[i % streams])
            driver.device_sync(0)
            times.append(driver.device_time_ns(0))
        return times[0] / times[1]

    assert two(2048 * 50) > 1.8
    assert two(2048 * 200) < 1.1


HEAVY = Kernel("heavy", NOTHING.host, lambda launch: launch.outputs[0].numel * 100_000)


def test_a_long_kernel_on_one_multiprocessor_does_not_hold_up_large_ones():
    driver = VirtualDriver(1, "a100")
    sleep = driver.load(Launch(SLEEP, (), (int64,)), 0)
    large = adder(driver, 1 << 24, 0, NOTHING)
    ptr, side = driver.mem_alloc(0, 1 << 26), driver.stream_create(0, 0)
    driver.launch(sleep, (), (1_410_000_000,), side)  # a second
    driver.launch(large, (ptr, ptr, ptr), (), driver.stream_default(0))
    driver.stream_sync(driver.stream_default(0))
    assert driver.time_ns() < 10_000_000


def test_higher_priority_wins_when_the_device_is_free_again():
    driver, order = VirtualDriver(1, "a100"), []
    exe, ptr = adder(driver, 2048 * 200, 0, HEAVY), driver.mem_alloc(0, 1 << 21)
    driver.on_command = lambda record: order.append(record.stream)
    first, low, high = (driver.stream_create(0, priority) for priority in (0, 0, -1))
    for stream in (first, low, high):
        driver.launch(exe, (ptr, ptr, ptr), (), stream)
    driver.device_sync(0)
    assert order == [first, high, low]


def test_the_host_waits_for_no_kernel_until_it_synchronizes():
    driver = VirtualDriver(1)
    sleep, stream = driver.load(Launch(SLEEP, (), (int64,)), 0), driver.stream_default(0)
    for _ in range(10):
        driver.launch(sleep, (), (14_100_000,), stream)
    assert driver.time_ns() < 100_000
    driver.stream_sync(stream)
    assert driver.time_ns() == pytest.approx(100e6, rel=0.01)


def test_elapsed_time_refuses_what_is_not_complete_or_of_another_device():
    driver = VirtualDriver(2)
    sleep, stream = driver.load(Launch(SLEEP, (), (int64,)), 0), driver.stream_default(0)
    start, end, other = (
        driver.event_create(0, True),
        driver.event_create(0, True),
        driver.event_create(1, True),
    )
    driver.event_record(start, stream)
    driver.launch(sleep, (), (1_000_000,), stream)
    driver.event_record(end, stream)
    with pytest.raises(DriverError, match="not complete"):
        driver.event_elapsed_ns(start, end)
    with pytest.raises(DriverError, match="one device"):
        driver.event_elapsed_ns(start, other)
    driver.event_sync(end)
    # the stream is idle while the host launches
    host = load_host("pytorch").of_launch(SLEEP.name, 0)
    assert driver.event_elapsed_ns(start, end) == pytest.approx(1_000_000 / 1.41 + host, rel=0.01)


# -- profiles --------------------------------------------------------------------------------------------


def test_the_promised_profiles_are_there():
    assert profile_names() == sorted(NAMES)
    assert load_profile("a100") == load_profile("a100-40g")
    assert load_profile("v100") == load_profile("v100-16g")
    assert VirtualDriver(1, "h200").device_properties(0).major == 9


def test_a_users_own_file_is_a_profile(tmp_path):
    text = (PROFILE_FOLDER / "a100-40g.toml").read_text().replace("NVIDIA A100-SXM4-40GB", "My GPU")
    (tmp_path / "mine.toml").write_text(text)
    assert VirtualDriver(1, str(tmp_path / "mine.toml")).profile.name == "My GPU"


PROFILE_FOLDER = __import__("pathlib").Path(load_profile.__code__.co_filename).parent / "profiles"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sms = 108", "", "'sms' is missing"),
        ("sms = 108", "sms = 0", "'sms' must be at least 1"),
        ("sms = 108", "sms = 108.5", "'sms' must be an integer"),
        ("sms = 108", "sms = true", "'sms' must be an integer"),
        ("sms = 108", "sms = 108\nsmms = 1", "unknown key 'smms'"),
        ("float64 = 0.9", "float64 = 1.5", "'efficiency.float64' must be finite.* at most 1"),
        ("float64 = 0.9", "float64 = 1e-9", "'efficiency.float64' must be finite, at least 0.001"),
        ("queue = 1024", "queue = 9223372036854775808", "'queue' must be .* at most 9007199254740992"),
        ("queue = 1024", "queue = 1" + 5000 * "0", "cannot be read: Exceeds the limit"),
        ("queue = 1024", "queue = " + 500 * "[", "cannot be read"),
        ("sms = 108", "sms = 108\nbase = []", "'base' must be the name of a profile"),
        ("bandwidth = 1555.0e9", "bandwidth = -1.0", "'bandwidth' must be finite"),
        ("bandwidth = 1555.0e9", "bandwidth = inf", "'bandwidth' must be finite"),
        ('rule = "all"', 'rule = "ring"', "'links.rule' must be one of all, none, cube-mesh"),
        ("[rates]", "rates = 3\n[rats]", "unknown key 'rats'"),
        ("[rates]", "[rates", "cannot be read"),
        ("memory = 42505273344", "memory = 1000", "'reserved' must be less"),
    ],
)
def test_a_broken_file_is_refused_with_the_file_the_key_and_the_reason(tmp_path, old, new, reason):
    text = (PROFILE_FOLDER / "a100-40g.toml").read_text()
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=reason) as caught:
        VirtualDriver(1, str(file))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("profile", ["b100", "", "a100-40g.toml", "/no/such/file.toml", None, 3])
def test_unknown_profiles_are_refused(profile):
    with pytest.raises(ValueError, match="profile"):
        VirtualDriver(1, profile)
