"""`checkpoint` of a start that has resumed and has not finished a step yet."""

from clustertrain.checkpoints.manifest import names
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import Writer
from clustertrain.cli import now
from clustertrain.run.claims import claim_attempt
from clustertrain.run.folder import RunDir
from clustertrain.training.ranks.host import SaveProgress


def test_the_answer_is_a_checkpoint_written_after_the_request(tmp_path, monkeypatch):
    run = RunDir.newest(str(tmp_path / "runs"), "digits")
    claim_attempt(run)
    writer = Writer(run.checkpoints, 1, 0, "0" * 64, {"torch": "2"}, Retention(keep_last=5), lambda: True)

    def save(step):
        content = {"model.pt": lambda file: file.write(b"weights")}
        writer.commit(content, SaveProgress(step, 0, 8, 1, {}, "steps"))

    def saved_meanwhile(look, within_s, poll_s, is_met):
        assert not is_met(look())
        save(21)
        return look()

    save(20)
    monkeypatch.setattr(now, "_training", lambda run, *why: run.newest_attempt())
    monkeypatch.setattr(now, "wait_until", saved_meanwhile)
    assert [*now.checkpoint_now(run)] == [str(names(run.checkpoints)[-1])]
    assert names(run.checkpoints)[-1].step == 21
