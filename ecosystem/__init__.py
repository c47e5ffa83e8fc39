"""Public packages that run on Flambeau: a pinned list, one program for each, and the runner that tries them."""
