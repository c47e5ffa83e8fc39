"""Race reports speak of devices as the program does, whatever CUDA_VISIBLE_DEVICES leaves out or reorders."""

import flambeau
import flambeau as torch
from flambeau.runtime import system


def test_reports_name_the_visible_index(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with flambeau.virtual(devices=4, races="warn"):
        assert torch.cuda.device_count() == 2
        for index in (0, 1):
            x = torch.ones(100, device=f"cuda:{index}")
            with torch.cuda.stream(torch.cuda.Stream(index)):
                x + 1
            torch.cuda.synchronize(index)
            x.mul_(2)  # in order after the wait for its device
        races = system.accelerator().detector.certificate().races
    for index, race in enumerate(races):
        assert race.device == f"cuda:{index}"
        assert f"the default stream of cuda:{index}" in str(race.first)
        assert f"side stream 1 of cuda:{index}" in str(race.second)
        assert "torch.cuda.default_stream()" in race.fix.text  # the block's device is current
    assert len(races) == 2
