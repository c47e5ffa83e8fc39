"""torch.cuda: argument normalizing over runtime, no logic."""
