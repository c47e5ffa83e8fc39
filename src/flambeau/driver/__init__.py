"""What a device can do, and the drivers that do it. Only `registry.py` names them."""
