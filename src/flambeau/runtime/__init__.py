"""Policy over a driver, the same for every driver: current device and stream, memory, generators."""
