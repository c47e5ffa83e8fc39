"""Tensors: storage, views, creation, transfer, printing. `call.py` is the only caller of launch."""
