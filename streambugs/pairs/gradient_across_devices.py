"""A gradient made on one device is accumulated on another, whose stream does not wait for the producer's.

Kind: cross-device default streams
Thread: https://github.com/pytorch/pytorch/pull/31930
"""

import torch


def program(fixed):
    producer = torch.cuda.Stream(0)
    with torch.cuda.stream(producer):
        grad = torch.ones(64, device="cuda:0") * 4
    if fixed:
        torch.cuda.default_stream(0).wait_stream(producer)
    there = grad.to("cuda:1")
    return there + 1
