"""Data loading: datasets, samplers, collating, the loader and its workers. Public as `torch.utils.data`."""
