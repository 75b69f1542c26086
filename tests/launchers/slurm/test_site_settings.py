"""Which settings of a cluster `submit` reports."""

import pytest

from clustertrain.job.model import Job
from clustertrain.launchers.slurm.site_settings import site_notes


@pytest.mark.parametrize(
    ("settings", "slurm", "said"),
    [
        ({"SelectType": "select/linear"}, {}, []),
        ({}, {}, []),
        ({"ProctrackType": "proctrack/cgroup", "JobRequeue": "1", "PreemptMode": "REQUEUE"}, {}, []),
        ({"ProctrackType": "proctrack/pgid"}, {}, ["proctrack/pgid"]),
        ({"JobRequeue": "0", "PreemptMode": "GANG,CANCEL"}, {}, ["JobRequeue=0 and PreemptMode=CANCEL"]),
        ({"JobRequeue": "0", "PreemptMode": "CANCEL"}, {"requeue": False}, []),
    ],
)
def test_a_setting_that_changes_what_a_run_can_expect_is_a_note(settings, slurm, said):
    job = Job.model_validate({"name": "a", "function": "m:f", "slurm": slurm})
    notes = site_notes(job, settings)
    assert len(notes) == len(said)
    assert all(text in note for text, note in zip(said, notes, strict=True))
