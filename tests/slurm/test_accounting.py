"""A cluster with slurmdbd: what it remembers of jobs that SLURM has forgotten, and whom it lets submit."""

import pytest

from clusters.slurm_accounting import ACCOUNT, AccountingCluster, why_not
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.slurm.queue import query_queue, query_squeue
from support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with AccountingCluster([tmp_path_factory.getbasetemp()]) as made:
        yield made


@pytest.mark.timeout(600)
def test_accounting_remembers_what_the_controller_forgot(cluster, login, monkeypatch):
    """SLURM looks for jobs to forget once a minute."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    login.job()
    login.submit("job.yaml", "--set", "slurm.options=[--hold]")
    (taken_out,) = login.jobs()
    cluster.command("scancel", taken_out)
    done, failed = cluster.sbatch(wrap="exit 0"), cluster.sbatch(wrap="exit 3")
    jobs = [taken_out, done, failed]
    wait_until(lambda: not query_squeue(jobs), 400, poll_s=1)
    states = query_queue([Sent(job, place={"cluster": "test"}) for job in jobs])
    assert [states[job].phase for job in jobs] == ["cancelled", "ended", "ended"]
    assert [states[job].word for job in jobs] == ["CANCELLED", "COMPLETED", "FAILED"]
    assert [states[job].hosts for job in jobs] == ["", "node1", "node1"]

    def state() -> str:
        rows = login("status", "job.yaml").stdout.splitlines()
        return next(row for row in rows if row.startswith("state ")).partition(" ")[2].strip()

    assert state() == f"cancelled (cancelled): SLURM job {taken_out}: CANCELLED"


def test_a_job_goes_to_its_account_and_qos(cluster, login):
    cluster.accounts("add", "qos", "night")
    cluster.accounts("modify", "user", "root", "set", "qos+=night")
    login.job(slurm={"account": ACCOUNT, "qos": "night"})
    login.submit("job.yaml", "--set", "slurm.options=[--hold]")
    (job_id,) = login.jobs()
    job = cluster.job(job_id)
    assert (job["Account"], job["QOS"]) == (ACCOUNT, "night")
