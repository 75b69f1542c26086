"""Checkpoints: their format, reading and verifying, writing and pruning, saving in the background."""
