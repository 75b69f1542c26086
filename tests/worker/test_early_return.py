"""What a rank knows of its own return; tests/whole/test_own_loops.py has whole runs."""

from clustertrain.worker import early_return


def test_torch_has_what_shows_a_collective_of_nccl():
    assert not early_return._has_active_collective()
