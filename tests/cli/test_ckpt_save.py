"""`ckpt save` of a start that has resumed and has not finished a step yet."""

from clustertrain.checkpoints.manifest import names
from clustertrain.cli import checkpoints
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from support.sample_checkpoints import commit


def test_the_answer_is_a_checkpoint_written_after_the_request(tmp_path, monkeypatch):
    run = RunDir.newest(str(tmp_path / "runs"), "digits")
    claim_attempt(run)

    def saved_meanwhile(look, within_s, poll_s, is_met):
        assert not is_met(look())
        commit(run.checkpoints, 21)
        return look()

    commit(run.checkpoints, 20)
    monkeypatch.setattr(checkpoints, "_training", lambda run: run.newest_attempt())
    monkeypatch.setattr(checkpoints, "wait_until", saved_meanwhile)
    assert [*checkpoints.save_now(run)] == [str(names(run.checkpoints)[-1])]
    assert names(run.checkpoints)[-1].step == 21
