"""A cluster that is set up as other sites are: plugins print, processes are tracked by group, no requeue."""

import re

import pytest

from clusters.slurm import SlurmCluster
from slurm.login import Login

BANNER = "\n".join(f"Line {n} of a notice about gpu hours, memory and your account." for n in range(5))
# The plugins of a site, beside slurm.conf. They print by log_user, log_info and print.
JOB_SUBMIT = """
function slurm_job_submit(job, partitions, uid)
  if job.comment == "none" then
    slurm.log_user("Set a project with --comment.")
    return slurm.ERROR
  end
  slurm.log_user([[BANNER]])
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
slurm.log_info("loaded")
return slurm.SUCCESS
""".replace("BANNER", BANNER)
CLI_FILTER = """
function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end
function slurm_cli_pre_submit(options, offset)
  print("12")
  slurm.log_info([[BANNER]])
  return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job_id, step_id)
  print("13")
  return slurm.SUCCESS
end
return slurm.SUCCESS
""".replace("BANNER", BANNER)


class OtherSite(SlurmCluster):
    def _write_files(self) -> None:
        super()._write_files()
        for name, text in (("job_submit", JOB_SUBMIT), ("cli_filter", CLI_FILTER)):
            (self.folder / "etc" / f"{name}.lua").write_text(text)


@pytest.fixture(scope="module")
def cluster(_possible, tmp_path_factory):
    settings = {
        "JobSubmitPlugins": "lua",
        "CliFilterPlugins": "cli_filter/lua",
        "ProctrackType": "proctrack/pgid",
        "JobRequeue": 0,
    }
    with OtherSite(1, [tmp_path_factory.getbasetemp()], **settings) as made:
        yield made


def test_the_error_of_sbatch_is_shown_among_what_plugins_print(login):
    login.job(slurm={"constraint": "h100"})
    error = login.submit("job.yaml", code=3).splitlines()
    assert error[0].startswith("error: SLURM refused the job digits. sbatch printed: ")
    assert "Invalid feature specification" in error[0]
    assert "slurm.constraint" in error[-1]


def test_the_reason_of_a_plugin_is_shown(login):
    login.job(slurm={"options": ["--comment=none"]})
    assert "Set a project with --comment." in login.submit("job.yaml", code=3)


def test_what_the_site_chose_is_reported_and_a_suspended_job_trains_on(login, cluster):
    login.job()
    said = login.submit("job.yaml", "--set", "slurm.options=[--hold]")
    assert "note: ProctrackType of this cluster is proctrack/pgid" in said
    assert "JobRequeue=0" in said
    (record,) = login.records()
    assert record["job_id"] in login.jobs(), "a plugin printed lines with other numbers"
    assert cluster.job(record["job_id"])["Requeue"] == "1"
    cluster.command("scancel", record["job_id"])
    login.write_agent("#!/bin/sh\n: > $CLUSTERTRAIN_MAIL/agent; sleep 600\n")
    said = login.submit("job.yaml", "--set", "slurm.requeue=false")
    assert "JobRequeue" not in said
    job_id = login.records()[-1]["job_id"]
    assert cluster.wait_for_state(job_id, {"RUNNING"})["Requeue"] == "0"
    cluster.command("scontrol", "suspend", job_id)
    assert "proctrack/pgid suspends the agent only" in login("status", "job.yaml").stdout


def test_select_linear_gives_no_step_gpus_and_the_python_of_the_nodes_is_not_blamed(fresh_cluster, tmp_path):
    cluster = fresh_cluster(SelectType="select/linear", SelectTypeParameters="CR_Memory", ReturnToService=0)
    login = Login(cluster, tmp_path)
    login.job(resources={"workers": 1, "gpus_per_worker": 1})
    said = login.submit("job.yaml")
    assert "note: SelectType of this cluster is select/linear" in said
    (record,) = login.records()
    assert cluster.wait_for_state(record["job_id"], {"FAILED"})["ExitCode"] == "3:0"
    output = (tmp_path / f"digits-{record['job_id']}.out").read_text()
    assert "Likely cause: SLURM gave srun no step." in output
    login.job(name="cpus")
    (job_id,) = re.findall(r"as SLURM job (\d+)", login.submit("job.yaml"))
    cluster.wait_for_state(job_id, {"COMPLETED"})
