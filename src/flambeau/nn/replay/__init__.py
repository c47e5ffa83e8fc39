"""`mode="reduce-overhead"`: compiled functions that are captured into CUDA graphs and replayed without their Python.

`replayed_function` decides for each call between warm-up, capture, replay and the default mode; `recorded_capture`
captures a call and records its launches; `python_state` guards what the function read; `graph_results` returns a
graph's results, and `released_graphs` their autograd graphs.
"""
