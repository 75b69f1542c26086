"""The laws of docs/project/architecture.md that the contracts of import-linter cannot show."""

import ast
import os
import re
import sys
import time
from functools import reduce
from pathlib import Path

import pytest

from clustertrain.node import variables
from clustertrain.observe import event_lines
from clustertrain.worker.fork import client
from support.commands import ran

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "clustertrain"
SUBMIT_SIDE = ["cli", "job", "launchers", "node", "observe", "run_files", "staging", "storage", "supervise"]


def modules_after(code: str) -> set[str]:
    """The top-level modules that are loaded once `code` has run in a fresh interpreter."""
    code += "\nimport sys; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = ran([sys.executable, "-c", code], code=0)
    return set(done.stdout.split())


def test_the_submit_side_loads_neither_torch_nor_ray(tmp_path):
    """The contract of import-linter sees neither what a library imports nor a module that is imported by its
    name, so one interpreter loads every module and validates a job."""
    job = tmp_path / "job.yaml"
    job.write_text("name: a\nfunction: m:f\n")
    modules = [
        ".".join(path.relative_to(SRC.parent).with_suffix("").parts)
        for folder in SUBMIT_SIDE
        for path in (SRC / folder).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert len(modules) > 80
    loaded = modules_after(
        f"import importlib, pathlib, clustertrain\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"clustertrain.load_job(pathlib.Path({str(job)!r}))"
    )
    assert "pydantic" in loaded
    assert not {"torch", "ray", "numpy"} & loaded


def test_help_answers_at_once():
    """The limit is 0.3 s of this program's own time, in the fastest of many: other load adds to it."""
    seconds, ends_s = [1.0], time.monotonic() + 60
    while min(seconds) >= 0.3 and time.monotonic() < ends_s:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "clustertrain.cli", "--help"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
        _, status, used = os.wait4(pid, 0)
        assert status == 0
        seconds.append(used.ru_utime + used.ru_stime)
    assert min(seconds) < 0.3


def test_the_docstring_of_a_folder_lists_its_files():
    """A newcomer finds any behaviour in two steps: the folder, then the file in its docstring."""
    wrong = {}
    for package in SRC.glob("*/**/__init__.py"):
        docstring = ast.get_docstring(ast.parse(package.read_text())) or ""
        listed = set(re.findall(r"^(\w+(?:\.py|/))  ", docstring, re.MULTILINE))
        files = {path.name for path in package.parent.glob("*.py")} - {"__init__.py"}
        folders = {f"{path.parent.name}/" for path in package.parent.glob("*/__init__.py")}
        if difference := listed ^ (files | folders):
            wrong[str(package.relative_to(SRC))] = sorted(difference)
    assert not wrong


def test_a_folder_has_at_most_20_files():
    """So its docstring can be read at a glance; what belongs together gets a folder of its own."""
    files = {
        folder.parent: len(list(folder.parent.glob("*.py"))) - 1 for folder in SRC.glob("**/__init__.py")
    }
    assert {str(folder.relative_to(SRC)): n for folder, n in files.items() if n > 20} == {}


def public_functions():
    """Each function of src that has a public name, with its file."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_private = isinstance(node, ast.FunctionDef) and re.match(r"_(?!_)", node.name)
            if isinstance(node, ast.FunctionDef) and not is_private:
                yield f"{path.relative_to(SRC)}:{node.lineno} {node.name}", node


def parameters(function):
    named = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [each for each in named if each.arg not in ("self", "cls")]


def test_a_function_has_at_most_8_parameters():
    """The program of a job is one call for every scheduler: each parameter is a trait of one of them."""
    many = [where for where, function in public_functions() if len(parameters(function)) > 8]
    assert [where.split()[1] for where in many] == ["program"]


def test_public_signatures_say_what_their_values_are():
    """`Any` is left for values that are passed on unread; training/values.py names the most common ones."""
    unnamed = [
        where
        for where, function in public_functions()
        if any(
            isinstance(node, ast.Name) and node.id == "Any"
            for annotation in (*(each.annotation for each in parameters(function)), function.returns)
            for node in ast.walk(annotation or ast.Constant(None))
        )
    ]
    assert len(unnamed) <= 120


def test_nothing_stops_a_ray_that_is_not_ours():
    assert not [path for path in SRC.rglob("*.py") if "ray stop" in path.read_text()]


def test_a_process_of_the_kit_imports_nothing_from_the_folder_of_the_call():
    """`python -m` does, and a random.py there would end it. The code of a job is put on the path later."""
    assert not [path for path in SRC.rglob("*.py") if 'sys.executable, "-m"' in path.read_text()]


def test_weights_are_never_unpickled():
    calls = [
        (f"{path}:{node.lineno}", {k.arg: ast.unparse(k.value) for k in node.keywords})
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert calls
    assert not [where for where, arguments in calls if arguments.get("weights_only") != "True"]


def test_the_console_script_is_installed():
    script = Path(sys.executable).parent / "clustertrain"
    assert os.access(script, os.X_OK)


def strings_of(path):
    """The string literals of a module and those in its f-strings, without docstrings."""
    tree = ast.parse(path.read_text())
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node.lineno, node.value


def strings_where(is_meant, *exempt):
    """The string literals that are meant, with their places, outside the files that are exempt."""
    return [
        f"{name}:{line}: {text!r}"
        for path in sorted(SRC.rglob("*.py"))
        if (name := path.relative_to(SRC).as_posix()) not in exempt
        for line, text in strings_of(path)
        if is_meant(text)
    ]


RUN_FILES = re.compile(
    r"(?:claim|heartbeat|result|rendezvous|plan|failure|outcome|ended)\.json|\.jsonl|\b(?:driver|ray)\.log"
    r"|(?:^|/)(?:rank|events|metrics|probe)-(?!export-port)|(?:^|/)(?:attempts|restarts|nodes|logs|submissions)/"
    r"|/(?:attempts|restarts|nodes|logs|submissions|stacks|reached|brought|tensorboard|checkpoints|stop|save)\b"
)


def test_run_folder_names_every_file_of_a_run():
    folder = [path.relative_to(SRC).as_posix() for path in (SRC / "run_files" / "folder").glob("*.py")]
    assert strings_where(RUN_FILES.search, *folder) == []
    texts = [text for name in folder for _, text in strings_of(SRC / name)]
    assert len([text for text in texts if RUN_FILES.search(text)]) >= 20


KNOWS_THE_COMMANDS = (
    "run_files/command_line.py",
    "cli/init.py",
    "launchers/slurm/section.py",
    "node/variables.py",
)
"""The first file makes the commands that messages advise; the others describe what a command does."""
COMMAND = re.compile(r"clustertrain (?:run|submit|status|logs|stop|ckpt|data|render|check)\b")
DESCRIPTIONS = (
    "under `clustertrain run`",
    "what `clustertrain submit` sets",
    "The script of `clustertrain submit` starts this program",
    "On one machine use `clustertrain run`",
    ": clustertrain render --to slurm ",  # in the script: what rendered it
)


def test_a_message_advises_a_command_as_the_user_typed_it():
    """With the job file and the overrides of the command line, which only run_files/command_line.py adds."""

    def is_advice(text):
        return COMMAND.search(reduce(lambda rest, part: rest.replace(part, ""), DESCRIPTIONS, text))

    assert strings_where(is_advice, *KNOWS_THE_COMMANDS) == []


def test_python_names_a_variable_of_the_environment_by_its_constant():
    fork_client_name = client.NAME  # of a program that imports nothing
    assert fork_client_name == variables.FORK_SERVER
    found = strings_where(
        lambda text: variables.PREFIX in text and text != fork_client_name, "node/variables.py"
    )
    assert found == []


def test_the_page_names_every_variable_of_the_environment():
    """Also those of shell templates, images and rendered examples; each is a constant that code uses."""
    texts = [path.read_text() for path in SRC.rglob("*.sh")]
    texts += [path.read_text() for folder in ("docker", "k8s", "slurm") for path in text_files(ROOT / folder)]
    named = {name for text in texts for name in re.findall(r"\bCLUSTERTRAIN_[A-Z_]*[A-Z]\b", text)}
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    shown = re.search(r"<!-- variables: .*?-->\n(.*)<!-- end of variables -->", page, re.DOTALL)[1]
    listed = re.findall(r"`(CLUSTERTRAIN_\w+?)(?:<NAME>)?`", shown)
    assert len(listed) == len(set(listed))
    assert len(named) >= 10
    assert named <= set(listed)
    constants = {
        name: value for name, value in vars(variables).items() if str(value).startswith("CLUSTERTRAIN_")
    }
    assert set(constants.values()) == {*listed, variables.PREFIX}
    code = "\n".join(path.read_text() for path in SRC.rglob("*.py"))
    assert [name for name in constants if not re.search(rf"\bvariables\.{name}\b", code)] == []


def text_files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def test_every_kind_of_event_is_in_the_list():
    """What is written as EventLog(…).write("kind", …), or by a function that ends so; and what has a line."""
    writes = re.compile(r"(EventLog\(.*\)|events)\.write$|_note$")
    calls = [
        node
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and writes.search(ast.unparse(node.func))
    ]
    written = {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)}
    page = (ROOT / "docs" / "reference" / "json.md").read_text("utf-8").partition("### `logs --json`")[2]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (`.*) \|$", page, re.MULTILINE)
    listed = {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    assert {*written, "stage", "train", "eval"} == set(listed), "the loop and staging name these three"
    assert set(event_lines._LINES) <= set(listed)
    for call in calls:
        for kind in {arg.value for arg in call.args if isinstance(arg, ast.Constant)}:
            fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            assert fields <= listed[kind], f"{kind}: its fields"
