"""A shared peer buffer is written for the next round before the other device has read this one.

Kind: write after read
Thread: https://github.com/pytorch/pytorch/issues/137171
"""

import torch


def program(fixed):
    writer, reader, read = torch.cuda.Stream(0), torch.cuda.Stream(0), []
    shared = torch.zeros(32, device="cuda:0")
    torch.cuda.synchronize()
    for turn in range(2):
        if fixed:
            writer.wait_stream(reader)
        with torch.cuda.stream(writer):
            shared.fill_(turn + 1.0)
        reader.wait_stream(writer)
        with torch.cuda.stream(reader):
            read.append(shared.to("cuda:1", non_blocking=True))
    torch.cuda.synchronize()
    return read
