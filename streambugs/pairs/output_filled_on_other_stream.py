"""An output's fill runs on the compute stream, its result is written on the communication stream: the fill comes last.

Kind: write after write
Thread: https://github.com/deepseek-ai/DeepEP/issues/589
"""

import torch


def program(fixed):
    comm = torch.cuda.Stream()
    out = torch.empty(128, device="cuda")
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    if fixed:
        comm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(comm):
        out.fill_(1.0)
    torch.cuda.synchronize()
    return out
