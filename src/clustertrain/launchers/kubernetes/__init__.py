"""Kubernetes: a job is checked, rendered as a RayJob and its objects, applied, and observed.

plugin.py            registers the launcher
section.py           the section `kubernetes` of a job file
pod_sections.py      parts of that section: pods, volumes, outgoing traffic
patch_section.py     the patches of that section
devices.py           devices that a cluster names itself
launcher.py          the launcher
submit.py            check, render, apply
check.py             `check`: what the cluster would refuse, and advice
render/              the objects of a job; pure
rayjob_rules.py      mistakes that patches make and that the API server accepts
dry_run.py           the API server checks every object before any is applied
operator_version.py  which KubeRay operator is installed, for a field that its CRDs do not have
operator_pods.py     the API server checks the pods that the operator will create
job_keys.py          the keys of a job file that decide what a refusal names
pod_layout.py        how many nodes a job with GPUs runs on, where the job does not say
node_room.py         how many worker pods the nodes hold; pure
preflight.py         checks that the image fits, and that what the job names exists
first_word.py        what the cluster says first of a run that was just applied
view.py              reads the state of a run from the cluster and its storage
state.py             the state of a run, from its storage, RayJob, queue, pods and events; pure
last_known.py        what was read last of a storage that no pod can read now
lost_pods.py         lost nodes, and what containers printed last
pod_problems.py      why pods do not run, one line for each problem
status.py            `status`, `ls` and `submit --wait`
logs.py              `logs`
stop.py              `stop`
storage.py           commands that read the run's storage in the cluster
reader_pod.py        a short-lived pod that reads the storage of a run whose pods are gone
fields.py            reads values of objects that patches may have changed
kubectl.py           runs kubectl with the job's context and namespace
ray.py               how the driver connects to the Ray of its pods
in_pod/              the programs that run in pods
"""
