"""The types of values in a job file: names, paths, URIs without credentials, counts, durations, sizes.

A ValueError contains only the rule; `clustertrain.job.file` adds the value and its place. `Refused` contains
the whole message.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, JsonValue, PlainSerializer, Tag

from clustertrain.node import units, variables
from clustertrain.storage.location import CREDENTIAL_CHAIN

MOST_WORKERS = 100_000
LEAST_MEMORY_BYTES = 2**20
_SECRET_IN_QUERY = re.compile(
    r"x-(amz|goog)-(signature|credential|security-token)|(aws)?(access|api|secret|account)[-_]?key([-_]?id)?"
    r"|signature|sig|(\w+[-_])?token|password|secret",
    re.IGNORECASE,
)


_SECRET_KEY = re.compile(
    r"(aws|s3)?(access|secret)(access)?(key)?(id)?|(aws|s3)?(session|security)?token|password|credentials?"
)
_SECRET_VARIABLES = re.compile(r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|SECURITY_TOKEN)")
_SECRET_NAME = re.compile(
    r"(.*[-_.])?(token|password|passwd|passphrase|secret|credentials?|(api|access|private|secret)[-_]?key)",
    re.IGNORECASE,
)
_SPECIAL_TOKEN = re.compile(r"(.*_)?(pad|bos|eos|cls|sep|unk|mask)_token", re.IGNORECASE)  # of a tokenizer
# Without a token Ray runs code for everybody. The others connect the processes of a run, or send statistics.
_SET_BY_CLUSTERTRAIN = re.compile(
    rf"RAY_(AUTH_.*|ENABLE_K8S_TOKEN_AUTH|ADDRESS|USAGE_STATS_ENABLED)|{variables.PREFIX}.*"
)
_LOGGER_SECRETS = re.compile(r"WANDB_API_KEY|MLFLOW_TRACKING_(PASSWORD|TOKEN)")
_LOGGER_SERVERS = re.compile(r"WANDB_BASE_URL|MLFLOW_(TRACKING|REGISTRY)_URI")


class Refused(ValueError):
    """An error with its whole message: the value, the rule and the remedy, one line each.

    `at` is the path of the key in question, below the section or the value that raises the error.
    """

    def __init__(self, message: str, *at: str | int) -> None:
        super().__init__(message)
        self.at = at


def _name(name: str) -> str:
    if re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", name):
        return name
    better = as_name(name)
    raise ValueError(
        "must be 1 to 47 of a-z, 0-9 and '-', start with a letter, and end with a letter or digit "
        "(a Kubernetes name)" + (f"\nfor example: {better}" if better else "")
    )


def as_name(text: str) -> str:
    """Return the text with only the characters that a run's name may have; empty if it has no letter."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")[:47].strip("-")


def _import_path(path: str) -> str:
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ValueError("must be package.module:Name, as Python imports it")
    return path


def _module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("must be package.module, as `python -m` takes it\na file is named by the key script")
    return name


def _script(path: str) -> str:
    if path != _path(path) or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a file below `code`, written relative to it, such as train.py")
    return path


def _path(path: str) -> str:
    if not path or not path.isprintable():
        raise ValueError("must be a path of printable characters")
    if path.startswith("~"):
        raise ValueError("'~' is not expanded in a job file\nwrite ${HOME}/…")
    return path


def _scratch(place: str) -> str:
    if not place.startswith("/") and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", place):
        raise ValueError(
            "must be an absolute folder, such as /local/scratch, or the name of an environment variable, "
            "such as SLURM_TMPDIR"
        )
    return _path(place)


def _refuse_credential(uri: str) -> None:
    """Refuse a URI with a credential, before all other rules of a URI.

    The message never contains the value: errors end up in logs.
    """
    key = _secret_in_query(uri)
    secret = None if key is None else f"the query key {key}"
    if re.search(r"://[^/?#]*@|^[^/?#]+:[^/?#]*@", uri):
        secret = "a user or password before '@'"
    if secret:
        raise Refused(
            f"the URI contains a credential: {secret} (the URI is not shown here)\n"
            "a job file is copied into the run's folder, so it must not contain secrets\n"
            "put it in the environment instead: AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def _secret_in_query(uri: str) -> str | None:
    """Return the first key in the query of a URI that names a secret."""
    keys = [key for key, _ in parse_qsl(uri.partition("?")[2], keep_blank_values=True)]
    return next((key for key in keys if _SECRET_IN_QUERY.fullmatch(key)), None)


def is_secret_text(name: str, text: str) -> bool:
    """Return whether a text of this name is a secret by its name, or a URI that contains one."""
    named = _SECRET_NAME.fullmatch(name) is not None and _SPECIAL_TOKEN.fullmatch(name) is None
    return named or re.search(r"://[^/?#\s]*@", text) is not None or _secret_in_query(text) is not None


def is_secret_key(key: str) -> bool:
    """Return whether a key or a variable of this name would contain a credential of S3."""
    return _SECRET_KEY.fullmatch(re.sub(r"[-_ ]", "", key).lower()) is not None


def without_credentials(override: str) -> str:
    """Return a `--set` option as messages and records show it.

    It is without the value of a secret key, and without user, password and query of a URI.
    """
    keys, _, _ = override.partition("=")
    if is_secret_key(keys.rpartition(".")[2]):
        return f"{keys}=…"
    return re.sub(r"(?<==|/)[^/=@\s]*@|\?.*", "…", override)


def refuse_secret_keys(section: object) -> None:
    """Refuse keys of credentials in a section with S3 options; the message never contains the value."""
    for key in section if isinstance(section, dict) else ():
        if is_secret_key(str(key)):
            raise Refused(f"contains a credential\n{_NO_SECRETS}", key)


def _variables_of_a_job(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if _SET_BY_CLUSTERTRAIN.fullmatch(name):
            raise Refused(
                "this variable is set by clustertrain, and not by a job\n"
                "the protection of a run depends on it\n"
                "leave it out; those of a Ray cluster of your own are set in your shell",
                name,
            )
        if _SECRET_VARIABLES.fullmatch(name):
            raise Refused(f"contains a credential\n{_NO_SECRETS}", name)
        has_user = _LOGGER_SERVERS.fullmatch(name) and re.search(r"://[^/?#]*@", value)
        if has_user or _LOGGER_SECRETS.fullmatch(name):
            raise Refused(
                "contains a credential\n"
                "a job file is copied into the run's folder, so it must not contain secrets\n"
                "set the variable in your shell; slurm.environment or kubernetes.secrets pass it on",
                name,
            )
    return env


_NO_SECRETS = (
    "a job file is copied into the run's folder, so it must not contain secrets\n"
    f"boto3 finds credentials itself: {CREDENTIAL_CHAIN}"
)


def _uri(uri: str, schemes: tuple[str, ...]) -> str:
    """Check that a value is a path, or a URI of one of these schemes, without a credential."""
    _refuse_credential(uri)
    _path(uri)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", uri):
        return uri
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme not in schemes:
        raise ValueError(f"must be a path, or start with {' or '.join(f'{s}://' for s in schemes)}")
    urlsplit(uri).port  # noqa: B018  raises an error if it is no number, or too large
    return uri


def _endpoint(uri: str) -> str:
    _refuse_credential(uri)
    if not re.match(r"https?://[^/]", uri):
        raise ValueError("must be the address of an S3 server, such as https://minio.example.org:9000")
    return _uri(uri, ("http", "https"))


def _image(image: str) -> str:
    if not image.isprintable() or not image or image.startswith("-") or image != image.strip():
        raise ValueError("must be an image, such as registry.example.org/team/train:1.0 or /images/train.sif")
    return image


def _argument(value: object) -> object:
    """Return an argument or environment value; a number without quotes becomes its text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _count_or_range(what: str) -> BeforeValidator:
    """Return the validator of a number of these, or [min, max]."""
    rule = f"must be a number of {what}, or [min, max]"

    def bounded(value: object) -> object:
        if not isinstance(value, list | tuple):
            bounds = [units.integer(value)]
        elif len(value) == 2:
            bounds = [units.integer(bound) for bound in value]
        else:
            raise ValueError(rule)
        if bounds != sorted(bounds) or not 1 <= bounds[0] <= bounds[-1] <= MOST_WORKERS:
            raise ValueError(f"{rule}, with 1 ≤ min ≤ max ≤ {MOST_WORKERS}")
        return tuple(bounds) if len(bounds) == 2 else bounds[0]

    return BeforeValidator(bounded, json_schema_input_type=Count | tuple[Count, Count])


def _enough_memory(size: int) -> int:
    if size < LEAST_MEMORY_BYTES:
        raise ValueError("must be at least 1Mi; a bare number is bytes\nwrite the unit, such as 16Gi")
    return size


def _kind_of_args(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "mapping"


def several_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    if len(folders) > 1 and (wrong := next((each for each in folders if ":" in each), None)):
        raise ValueError(f"a folder with ':' cannot be on the import path together with others: {wrong}")
    return folders


def one_or_several(item: Any) -> BeforeValidator:
    """Return the validator of a text of this type, or a list of them."""
    return BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value, json_schema_input_type=item | list[item]
    )


ONE_AS_TEXT = PlainSerializer(lambda items: items[0] if len(items) == 1 else list(items), when_used="json")


def written_as(kind: str, *examples: str) -> Any:
    """Return the notation of the value, for the JSON schema that editors and the reference use."""
    return Field(json_schema_extra={"x-kind": kind} | ({"examples": [*examples]} if examples else {}))


Count = Annotated[int, Field(ge=1), BeforeValidator(units.integer)]
CountOrZero = Annotated[int, Field(ge=0), BeforeValidator(units.integer)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(units.number)]
PositiveOrZero = Annotated[float, Field(ge=0), BeforeValidator(units.number)]
Seconds = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(
        units.duration_s,
        json_schema_input_type=Annotated[str | float, written_as("duration", "90s", "20m", "2h", "1:30:00")],
    ),
    PlainSerializer(units.duration_text, when_used="json"),
]
Bytes = Annotated[
    int,
    AfterValidator(_enough_memory),
    BeforeValidator(
        units.size_bytes,
        json_schema_input_type=Annotated[str | float, written_as("size", "16Gi", "500MB")],
    ),
    PlainSerializer(units.size_value, when_used="json"),
]
Text = Annotated[str, Field(min_length=1)]
WrittenText = Annotated[str | float, written_as("text")]
Argument = Annotated[str, BeforeValidator(_argument, json_schema_input_type=WrittenText)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Environment = Annotated[dict[Variable, Argument], AfterValidator(_variables_of_a_job)]
LoggerName = Literal["tensorboard", "mlflow", "wandb"]
Loggers = Annotated[tuple[LoggerName, ...], one_or_several(LoggerName)]
ImportPath = Annotated[str, AfterValidator(_import_path), written_as("`package.module:Name`")]
Workers = Annotated[int | tuple[int, int], _count_or_range("workers")]
Nodes = Annotated[int | tuple[int, int], _count_or_range("nodes")]
Args = Annotated[
    Annotated[dict[str, JsonValue], Tag("mapping")] | Annotated[tuple[Argument, ...], Tag("list")],
    Discriminator(_kind_of_args),
]
Name = Annotated[str, AfterValidator(_name), written_as("name")]
Path = Annotated[Text, AfterValidator(_path), written_as("path")]
Scratch = Annotated[Text, AfterValidator(_scratch), written_as("folder or variable")]
ModuleName = Annotated[str, AfterValidator(_module), written_as("`package.module`")]
ScriptPath = Annotated[Text, AfterValidator(_script), written_as("path")]
CodeFolders = Annotated[
    tuple[Path, ...],
    Field(min_length=1),
    AfterValidator(several_folders),
    one_or_several(Path),
    ONE_AS_TEXT,
]
DataUri = Annotated[
    Text, AfterValidator(partial(_uri, schemes=("file", "http", "https", "s3"))), written_as("path or URI")
]
StorageUri = Annotated[Text, AfterValidator(partial(_uri, schemes=("s3",))), written_as("path or URI")]
Endpoint = Annotated[str, AfterValidator(_endpoint), written_as("URL")]
Sha256 = Annotated[
    str, Field(pattern=r"^[0-9a-fA-F]{64}$"), AfterValidator(str.lower), written_as("64 hexadecimal digits")
]
Image = Annotated[str, AfterValidator(_image), written_as("image")]
