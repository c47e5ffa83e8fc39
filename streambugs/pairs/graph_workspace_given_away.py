"""Two graphs of one stream share its workspace; when one graph goes, so does the workspace that the other still writes.

Kind: freed while a graph uses it
Thread: https://github.com/pytorch/pytorch/issues/193402
"""

import torch


def program(fixed):
    stream, training = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x, workspace = torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
    out = torch.zeros(1024, device="cuda")
    with torch.cuda.graph(training, stream=stream):
        torch.mul(x, 2, out=workspace)
        torch.add(workspace, 1, out=out)
    if not fixed:
        del workspace  # with the evaluation's graph
    metrics = torch.full((1024,), 7.0, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        training.replay()
    shown = metrics + 0
    torch.cuda.synchronize()
    return shown, out
