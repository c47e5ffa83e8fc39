"""Current device and stream, memory and random generators: the policy that is equal for every driver."""
