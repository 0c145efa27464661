"""Released checkpoints of the dummy family: there are none."""
