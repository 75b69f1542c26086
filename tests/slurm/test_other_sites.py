"""A cluster that is set up as other sites are: plugins print, and it requeues no job by itself."""

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
        "JobRequeue": 0,
    }
    with OtherSite(1, [tmp_path_factory.getbasetemp()], **settings) as made:
        yield made


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"constraint": "h100"}, ("Invalid feature specification", "Line 4 of a notice")),
        ({"options": ["--comment=none"]}, ("Set a project with --comment.",)),
    ],
    ids=["sbatch", "plugin"],
)
def test_a_refusal_is_shown_among_what_plugins_print(login, slurm, words):
    login.job(slurm=slurm)
    error = login("submit", "--to", "slurm", "job.yaml", code=3).stderr
    assert "error: sbatch --test-only ended with code 1:\n" in error
    assert all(each in error for each in words), error


def test_the_id_of_the_job_is_found_among_what_plugins_print(login, cluster):
    login.job()
    login.submit("job.yaml", "--set", "slurm.options=[--hold]")
    (record,) = login.records()
    assert record["job_id"] in login.jobs(), "a plugin printed lines with other numbers"
    assert cluster.job(record["job_id"])["Requeue"] == "1"
    cluster.command("scancel", record["job_id"])


def test_select_linear_gives_no_step_gpus_and_the_python_of_the_nodes_is_not_blamed(fresh_cluster, tmp_path):
    cluster = fresh_cluster(SelectType="select/linear", SelectTypeParameters="CR_Memory", ReturnToService=0)
    login = Login(cluster, tmp_path)
    login.job(resources={"workers": 1, "gpus_per_worker": 1})
    login.submit("job.yaml")
    (record,) = login.records()
    assert cluster.wait_for_state(record["job_id"], {"FAILED"})["ExitCode"] == "3:0"
    output = (tmp_path / f"digits-{record['job_id']}.out").read_text()
    assert "Likely cause: SLURM gave srun no step." in output
    login.job(name="cpus")
    (job_id,) = re.findall(r"as SLURM job (\d+)", login.submit("job.yaml"))
    cluster.wait_for_state(job_id, {"COMPLETED"})
