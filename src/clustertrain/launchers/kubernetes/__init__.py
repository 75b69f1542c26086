"""Kubernetes: a job is checked, rendered as a RayJob and its objects, applied, and observed.

plugin.py     registers the launcher
section.py    the section `kubernetes` of a job file
pod_sections.py  parts of that section, with their rules
scheduler.py  the scheduler: its script are the manifests; dry run, apply, query, delete
render/       the objects of a job, and mistakes in them; pure
cluster/      kubectl
observed/     the state of a run
storage.py    the way to a run's storage in the cluster: runs commands in its pods
ray.py        how the driver connects to the Ray of its pods
in_pod/       the programs that run in pods

Reasons:

  submit ─▶ manifests ─▶ dry run ─▶ apply ─▶ operator ─▶ head, workers ─▶ submitter's pod
                                                          │ entrypoint ◀─────────┘ again, if the head was lost
                                                          └─▶ driver ─▶ workers

- A refused submission leaves nothing applied: `kubectl apply` sends one object after another, so the same
  call with --dry-run=server runs first. Only this dry run checks the schemas of CRDs, with those of the
  cluster. A RayJob that replaces a finished one is checked as a new object, because other rules apply to
  changes.
- Who decides is asked, not computed. Fields, types and admission are the API server's, so its dry run is
  the check. Whether the pods get nodes is the scheduler's, quotas and Pod Security are the API server's
  when the pods are created, queues and RayJobs are Kueue's and the operator's: `submit` waits up to 10 s
  for what they say (`observed/view.py`), and `status` prints the newest event of each pod that does
  not run, in their words. A simulation of them is never right for long.
- The state of a run is derived as on every scheduler (`launchers/scheduler/run_state.py`): a RayJob, its
  pods and their events are one `State` with KubeRay's words and why the pods do not run
  (`observed/state.py`); what `status --json` prints in a pod stands for the files of the run. The
  commands that need the storage run in one way, in the head's pod or in a reader pod
  (`observed/run_storage.py`). `logs`, `stop`, `exec` and `submit --wait` are shared code
  (`launchers/elsewhere.py`) over the operations of a scheduler and a `Reach` (`launchers/target.py`),
  which runs a command where the storage is.
- The submitter's pod runs clustertrain's own submitter. KubeRay's command submits once and follows the
  log. If the head is lost, that command ends, and the RayJob fails although the head is replaced.
  clustertrain's submitter submits again under the same id. It always exits with 0 when Ray's job is over:
  KubeRay takes success and failure from Ray, and another exit code would only cause a retry of the pod.
- A preemption is not a failure of the RayJob: the run's entrypoint stays until the pod ends, so that
  KubeRay sees no FAILED while the head is being replaced.
- Two starts of one run: the second finds the heartbeat of the first and follows it. Same RayJob, same
  namespace.
- backoffLimit is 0: it counts every failure, also a permanent one. The driver restarts workers, and the
  operator replaces the head; the remaining failures would also occur in another cluster.
- preStop: a worker's pod requests a save and waits for its commit; the head's pod requests a stop and
  waits for the result. KubeRay suspends a RayJob without stopping Ray's job, so this hook also handles
  Kueue's preemption. Ray's own drain after SIGTERM is off: it waits up to 30 s for actors to move, and a
  rank never does.
- The end of a run frees its GPUs at once: `ttlSecondsAfterFinished` is 0, and the head's preStop hook
  waits for `kubernetes.ttl`. Nothing in the pods has rights in the cluster, and a worker that ended by
  itself would be created again; KubeRay's deletionStrategy excludes Kueue and suspension.
  RAY_JOB_STOP_WAIT_TIME_S is rendered, because the driver of a deleted RayJob is otherwise killed 3 s
  after TERM.
- Probes: the operator's probes start after 10 s, run every 5 s, and restart a container whose Ray has not
  started within a minute. clustertrain's own readiness and startup probes run every second.
- The code is one archive in a ConfigMap named after its content (900 kB); an init container unpacks it
  into a writable folder. A submission adds the state of the code's repositories (source.json); a
  rendering reads no git. A relative `storage: runs` becomes the folder of that name on the first volume.
- With storage on S3 a worker's pod uploads its streams itself: only Ray runs there, so postStart starts
  an upload process beside it. If each rank uploaded its own streams, the last lines of a killed rank
  would be lost, and these matter most; a sidecar container would take resources from every pod. preStop
  uploads as well: the uploader holds a lock and continues from the positions noted beside the files.
- With a PVC the laptop cannot access the storage: active runs are read by `kubectl exec` on the head,
  ended runs by a short-lived reader pod of the same image; the Role allows both. The job file is an
  annotation of that pod: nothing of an ended run has to stay in the cluster, so the RayJob owns all its
  objects but claims.
- Workers with GPUs share the pod of their node, because GPUs of separate pods exchange gradients without
  NVLink. How many nodes that are is `resources.nodes`, or follows from `kubernetes.gpus_per_node` of the
  site file, so rendering stays pure.
- With `host_network` only the workers use the network of their node. The head keeps an address of its
  own, so its ports cannot collide, and the operator and the submitter reach it as always. Two ports of
  Ray are ports of the workers' container, so the scheduler puts one such pod on a node.
- `workers: [min, max]` renders max replicas, without the autoscaler: KubeRay submits a RayJob only when
  all pods of `replicas` run, and only its autoscaler, a sidecar of the head with rights on the cluster,
  could add pods later.
- No PodDisruptionBudget: it blocks drains.
- No GCS fault tolerance: the driver ends with its node anyway, and the run resumes.
"""
