"""The warm-up before a graph's capture runs on the capture stream and reads input buffers that another stream fills.

Kind: missing wait
Thread: https://github.com/vllm-project/vllm/pull/6788
"""

import torch


def program(fixed):
    capture, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    tokens = torch.full((128,), 4.0, device="cuda")
    if fixed:
        capture.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(capture):
        logits = tokens[:32] + 1
    with torch.cuda.graph(graph, stream=capture):
        replayed = tokens[:32] + 1
    graph.replay()
    torch.cuda.synchronize()
    return logits, replayed
