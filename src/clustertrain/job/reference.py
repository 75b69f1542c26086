"""Generates docs/job-file.md from the models, so that it cannot differ from what is accepted.

python -m clustertrain.job.reference > docs/job-file.md
python -m clustertrain.job.reference --schema > job.schema.json      for editors
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.fields import FieldInfo

from clustertrain import variables
from clustertrain.job.file import job_schema
from clustertrain.job.model import sections
from clustertrain.job.sections import Section
from clustertrain.units import duration_text

EXAMPLE = """\
# yaml-language-server: $schema=job.schema.json
name: cifar-resnet
task: training.cifar:Cifar            # or function: module:train, script: train.py, module: package.train
args:
  lr: 1e-3                            # arguments of your class
  augment: true

data:
  train:
    uri: https://example.org/cifar.tar.gz
    sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    extract: true

train:
  epochs: 20
  global_batch_size: 512              # stays the same with 2, 4 or 8 workers
  precision: bf16
  lr: {scaling: linear, base_batch_size: 256, warmup_steps: 500}

checkpoint:
  every: {minutes: 15, epochs: 1}
  keep_best: {metric: accuracy, mode: max}

resources:
  workers: [2, 8]                     # starts and resumes with any number in this range
  gpus_per_worker: 1
  cpus_per_worker: 8
  memory_per_worker: 32Gi

storage: ${SCRATCH:-runs}/experiments # or s3://bucket/prefix
failures:
  retries: 5
  grace: 1m30s
  watchdog: {step: 5m, first_step: 1:30:00}
env:
  OMP_NUM_THREADS: 8
"""

_INTRO = f"""\
<!-- Made from the models by: python -m clustertrain.job.reference > docs/job-file.md -->

# The job file

One YAML file describes what to train, on what data, with how many workers, and where the run is stored.
A minimal job file:

```yaml
name: my-run
task: my_package.training:MyTask
train: {{epochs: 3, batch_size: 32}}
```

A job file with most sections:

```yaml
{EXAMPLE}```

Every mistake is reported with file, line and column before anything starts, and the exit code is 2:

```
job.yaml:15:3: train: unknown key 'epcohs'
did you mean 'epochs'?
```

## Three entry points

Exactly one of these keys selects what runs. A section that the entry point cannot use is refused, not
ignored.

| key | what it names | `args` | `train` | `checkpoint` |
|---|---|---|---|---|
| `task` | a `Task` class; clustertrain runs the training loop | a mapping | required | optional |
| `function` | a function `train(config)` with its own loop | a mapping | refused | optional |
| `script` | an unchanged torchrun script | a list of arguments | refused | refused: it saves its own |
| `module` | a script as a module: `python -m` | a list of arguments | refused | refused: it saves its own |

## Setting a key from the command line

`--set train.epochs=3` replaces the value in the file or adds a missing key. The value is parsed as YAML,
missing sections are created, and the last `--set` of a key wins:

```
--set train.precision=bf16 --set "resources.workers=[2, 8]" --set data.train.uri=/data/cifar
```

## Environment variables

`${{NAME}}` is replaced from the environment of the command that reads the job file. It is allowed only in
these keys: `storage` and the keys below it, `data.*.uri`, `code`, `interpreter`, `image`, and `python`,
`output` and `mounts` of `slurm`. In `slurm.setup` the shell on the node expands it. Anywhere else but in
`env` it is refused. `${{NAME:-default}}` uses the default if NAME is unset or empty; without a default, an
unset variable is an error, and so is a brace in a default. `$$` is a plain `$`.

**In `env`** a reference is replaced where the run starts, and is recorded as it is written. On one machine
the value comes from the command's environment. On SLURM it comes from that of the job's first node: `submit`
passes on each variable that `env` refers to, and `slurm.setup` may set it. On Kubernetes it comes from that
of the head's pod: a Secret of `kubernetes.secrets` or the image sets it, and no value of your machine is
sent. All workers get the same value. A variable that is not set there is an error before the attempt begins
(exit code 2).

Two kinds of `${{…}}` are not replaced from that environment. In the `args` and `resume_args` of a script
every `${{…}}` except those below passes through unchanged, such as `${{now:%H-%M}}` for Hydra: write the
value itself in place of `${{HOME}}`. And `${{{variables.PREFIX}…}}` there and in `env.*` is replaced in each
worker:

| written | value |
|---|---|
| `${{{variables.DATA_PREFIX}TRAIN}}` or `…_train}}` | the local path of the data set `train` on this node |
| `${{{variables.CHECKPOINT_DIR}}}` | the folder, or on S3 the URI, for the checkpoints; only for a script |
| `${{{variables.ATTEMPT}}}` | the number of the attempt, from 1 |
| `${{{variables.RESTART}}}` | the number of the start of the workers in this attempt, from 0 |

```yaml
script: train.py
args:
  - --data=${{{variables.DATA_PREFIX}TRAIN}}/images
  - --out=${{{variables.CHECKPOINT_DIR}}}
  - hydra.run.dir=${{{variables.CHECKPOINT_DIR}}}/${{now:%Y-%m-%d}}
data:
  train: {{uri: https://example.org/images.tar.gz, extract: true}}
env:
  HF_HOME: ${{{variables.DATA_PREFIX}TRAIN}}/huggingface
```

Any other name after `${{{variables.PREFIX}`, such as a data set that is not in `data`, is an error. A
variable of `env` with such a reference is set as soon as the data is staged, before the code of a task or
function is imported for training; while the code is checked before the start, it is not set.

**No secrets.** The job is copied into the run's folder, with every `${{NAME}}` replaced except in `env`:
whoever can read the run can read these values. In `env`, `KEY: ${{MY_KEY}}` keeps a secret out of the record,
and `KEY: 1234` does not. A URI that contains a credential is refused, and so are keys such as
`secret_access_key` and the variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` in
`env`. On every node boto3 finds the credentials of S3: in those variables of the
environment, in the `profile` (or `AWS_PROFILE`) of `~/.aws`, or through the role of the machine or pod.

## Data and runs on S3

```yaml
data:
  train: {{uri: s3://bucket/cifar.tar}}    # by default with the options of the storage
storage:
  uri: s3://bucket/experiments
  endpoint: https://s3.example.org       # default: Amazon's
  region: eu-central-1
  profile: training
  retry: 10m                             # how long transient errors are retried
```

Transient errors (5xx, 429, resets, timeouts) are retried for `retry`, with growing pauses. Permanent errors
(403, expired credentials, no such bucket) are reported at once, with the action, the key, the HTTP status and
the likely cause.

## How values are written

- **duration**: `90s`, `20m`, `2h`, `1d12h`, `1:30:00` (h:m:s), `20:00` (m:s); a bare number is seconds.
- **size**: `16Gi` (1024³ bytes) or `500MB` (1000² bytes); k, M, G, T, P and Ki, Mi, Gi, Ti, Pi; a bare number
  is bytes.
- **number**: `0.001` or `1e-3`. A whole number may be written as `1e3`.
- **true or false**: also `on`, `off`, `yes` and `no`. Below `args` these four words are refused: write `true`
  or `false`, or put them in quotes. Where text is expected they need quotes. In `env` and in the arguments of
  a script every value is text exactly as written: `1.10` stays `1.10`.
- `010` is refused: YAML 1.1 reads it as 8, YAML 1.2 as 10.
- Not allowed: tags (`!!python/…`), merge keys (`<<`), duplicate keys, dates without quotes, more
  than 1 MiB, 20 000 values or 40 levels.
- An empty key counts as missing.

## What makes it the same run

If a run with the job's name exists, starting the job continues that run. These keys identify a run: `task`,
`function`, `script` or `module`; `args`; the data (`sha256` if given, otherwise `uri`; and `extract`); the
section `train`, except for its keys `epochs`, `steps`, `early_stop`, `log_every`, `log`, `eval_every`,
`compare_weights_every`, `loader_workers`, `metrics`, `profile`, `memory_snapshot` and `sanity`. Everything
else may change between attempts; more `epochs` or `steps` continue a finished run, and a larger
`early_stop.patience` continues a run that ended by early stopping.

If one of the keys that identify the run has changed:

- A run without a checkpoint starts over with the changed job. What ran before stays as an earlier attempt.
- A run with a checkpoint is refused, and the message lists the differences. With `--accept-changes`, an
  option of `run` and `submit`, it continues from the checkpoint with the changed job. The changes are
  printed and recorded, and `clustertrain status` shows at which step they were made.
- The `args` of a script need no option: the script itself decides what they mean for its checkpoint.

With `--accept-changes` a task loads model and optimizer state and takes learning rate, other optimizer
settings and schedule from the changed job; the schedule continues at the saved step. A function gets the
state that it saved: an optimizer state that it loads contains the old learning rate. A checkpoint that does
not fit is refused with the difference: another model, another optimizer class. Such a refusal changes
nothing: the run keeps its state and its job, with which the next start is compared. Another kind of entry
point, such as a script in place of a task, is always refused. A result with accepted changes is not that of
an uninterrupted run. `--fresh` starts over and keeps the old run.

## Completion in editors

`python -m clustertrain.job.reference --schema > job.schema.json` writes a JSON schema. With this first line,
editors that use yaml-language-server (VS Code, Neovim, Emacs, Helix) complete and check keys:

```yaml
# yaml-language-server: $schema=job.schema.json
```

## Reference
"""


def reference_markdown() -> str:
    """The whole of docs/job-file.md."""
    schema = job_schema()
    definitions = schema["$defs"]
    tables = (_section(path, model, definitions.get(model.__name__, schema)) for path, model in sections())
    return "\n".join([_INTRO, *tables])


def _section(path: tuple[str, ...], model: type[Section], schema: dict[str, Any]) -> str:
    title = f"`{_dotted(path)}`" if path else "The top level"
    lines = [f"### {title}", "", " ".join((model.__doc__ or "").split()), ""]
    lines += ["| key | what it is | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        key = info.alias or name
        value = schema["properties"][key]
        meaning = " ".join((info.description or "").split())
        cells = (f"`{key}`", _kind(value, (*path, key)), _default(value, info), meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _kind(value: dict[str, Any], path: tuple[str, ...]) -> str:
    """The type of a value as a user would describe it."""
    if "x-kind" in value:
        return str(value["x-kind"])
    if "$ref" in value:
        is_any = value["$ref"].endswith("/JsonValue")
        return "anything" if is_any else f"mapping, see [`{_dotted(path)}`](#{_anchor(path)})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "type" in value:
        return _kind_of_type(value, path)
    choices = [choice for choice in value.get("anyOf") or value["oneOf"] if choice.get("type") != "null"]
    return ", or ".join(_kind(choice, path) for choice in choices)


def _kind_of_type(value: dict[str, Any], path: tuple[str, ...]) -> str:
    match value["type"]:
        case "array":
            return "[min, max]" if "prefixItems" in value else f"list of {_kind(value['items'], path)}"
        case "object":
            patterns = value.get("patternProperties") or {"": value["additionalProperties"]}
            inner = _kind(next(iter(patterns.values())), (*path, "*"))
            return f"mapping of {inner.replace('mapping,', 'names,')}"
        case "integer":
            return f"whole number, at least {value['minimum']}"
    return {"number": "number", "boolean": "true or false", "string": "text"}[value["type"]] + (
        ", more than 0" if "exclusiveMinimum" in value else ", at least 0" if "minimum" in value else ""
    )


def _default(value: dict[str, Any], info: FieldInfo) -> str:
    default = value.get("default")
    if info.is_required():
        return "**required**"
    if value.get("x-kind") == "duration" and default is not None:
        return f"`{duration_text(default)}`"
    if isinstance(info.default, Section):  # its own table lists its defaults, except for its required key
        given = info.default.model_dump(by_alias=True, exclude_defaults=True)
        return ", ".join(f"`{key}: {inner}`" for key, inner in given.items())
    if isinstance(default, list) and len(default) == 1:  # as one of several
        return f"`{default[0]}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return "" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _anchor(path: tuple[str, ...]) -> str:
    """The anchor that GitHub makes of the section's heading."""
    return "".join(character for character in _dotted(path) if character.isalnum() or character in "-_")


if __name__ == "__main__":
    print(json.dumps(job_schema(), indent=2) if "--schema" in sys.argv[1:] else reference_markdown(), end="")
