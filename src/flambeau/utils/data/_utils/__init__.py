"""torch.utils.data._utils: where programs find `collate`."""
