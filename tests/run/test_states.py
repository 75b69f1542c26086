from clustertrain.run.states import STATES


def test_every_state_has_causes_and_a_final_one_exit_codes():
    final = [name for name, state in STATES.items() if state.final]
    assert final == ["done", "failed", "stopped", "preempted", "cancelled", "lost"]
    for state in STATES.values():
        assert bool(state.exit_codes) == state.final
        assert state.causes
