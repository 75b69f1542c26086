"""Every path of a run, in one object.

run_dir.py       the paths of a generation of a run, of an attempt and of a start of its workers
stream_names.py  which files of an attempt are streams, by their names
spool.py         where this node keeps the streams of a run on S3

The layout:

    <storage>/<name>/
      g<k>/                       a generation: `--fresh` starts the next one and keeps the old one
        job.yaml                  the job as the newest attempt runs it
        seed.json                 of a run of a function: the seed with which it begins
        submissions/              the jobs that were submitted to schedulers
          <digest>/               a snapshot: job.yaml, code.tar.gz and source.json
          slurm-<id>.json         a job of a scheduler; slurm-<id>.ended.json if `stop` cancelled it
        attempts/<n>/             one start of the run, claimed by creating claim.json
          claim.json              its process: host, pid and start of that process, scheduler's job id
          provenance.json, diff.patch  commit, packages and machine; the changes since the commit
          job.yaml, changes.json  the job of this attempt, and its differences from the one before
          rendezvous.json         the address of Ray's head; nodes/<k>.json: a node that found it
          node-failures/<k>.json  why a node cannot take part, or was lost
          restarts/<r>/           one start of the worker group; only its newest one may write
            claim.json            the process that claimed it; plan.json: what it resumes from
            failure.json          the failure that ended it; outcome.json: the report of rank 0 at its end
            reached, resize       the last finished step; a request to change the number of workers
            hang.json, stacks/    the first rank that hung; which ranks have written their stacks
            stacks-now/           a request for the stacks of all ranks, and their answers
            profile/              the ranks' profiles
            nccl/                 <rank>.log: NCCL's lines; nccl_trace_rank_<rank>: its last collectives
          heartbeat.json          a counter that changes while the driver lives
          stop, save              requests; the file exists if the request was made
          events*.jsonl           events; one writing process per file
          metrics-<r>.jsonl       metrics, by rank 0 of restart r
          logs/                   driver.log, <host>/rank-<k>.log, <host>/ray.log
          result.json             its result, written once
        checkpoints/<step>-<n>.<r>/   files, MANIFEST.json
        work/                     where the code of a submitted run works; work.json: what was copied there
        left.json                 the files that a run on one machine has left in the folder of its code
        tensorboard/              the curve, a file from each start of the worker group
        wandb/                    files of W&B, which names them itself
      data/                       data sets that are staged once for the whole cluster
      mlruns/                     MLflow's file store, for all runs of the storage

A small file contains one record (records/), and the object that names it also reads and writes it. Streams
(events, metrics, logs) are written in place, or with S3 in this node's spool, which
streams/stream_upload.py uploads.
"""
