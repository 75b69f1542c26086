from clustertrain.run.states import STATES, states_markdown


def test_every_state_has_a_row_in_the_table():
    rows = states_markdown().splitlines()
    assert len(rows) == len(STATES) + 2
    for name, row in zip(STATES, rows[2:], strict=True):
        assert row.startswith(f"| {name} |")


def test_final_states_have_exit_codes_and_others_none():
    for state in STATES.values():
        assert bool(state.exit_codes) == state.final
        assert state.causes
