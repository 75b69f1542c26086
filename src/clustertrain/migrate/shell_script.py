"""A shell script, for sbatch or for one machine: its #SBATCH lines, what it sets up, and the launch."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator

from clustertrain.migrate.finding import (
    ADDRESS,
    SECRET,
    Finding,
    Kind,
    contains_secret,
    kept,
    settings_of,
    variable,
)
from clustertrain.migrate.launch_line import launch_in
from clustertrain.migrate.options import split_options, table
from clustertrain.migrate.shape import Shape

_CONTROL = re.compile(
    r"(if|then|else|elif|fi|for|while|until|do|done|case|esac|select|function|[{}])(\s|;|$)|\w+\s*\(\s*\)|\(\("
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"\s*([A-Za-z_]\w*)(\+?)=\((.*)\)\s*", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*\d]+\])?(?::?-([^{}]*))?\})")
_OF_ADDRESS = re.compile(
    r"(?i:\w*(master|head_?node|nodes?_?(array|list)|rdzv)\w*|(\w*_)?(port|ip|addr)) .*"
    r"|.*(scontrol|hostname|NODELIST|MASTER_ADDR|MASTER_PORT|SLURM_PROCID|SLURM_NODEID|SLURM_LOCALID).*",
    re.DOTALL,
)
_COMMAND = re.compile(r"\$\(|`")
_EXPORTS_ALL = re.compile(r"[-+][b-z]*a[a-z]*|allexport")  # of `set`
_PIECE = re.compile(  # an operator, and a command with the & behind it
    r"""(&&|\|\||\|&|[;|])?((?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[<>]&|&>|[^;|&\\'"])*(?:&(?!&))?)""", re.DOTALL
)
_AROUND_DIRNAME = {"cd", "pwd", "readlink", "realpath", "f", "P", "/dev/null", "1", "2"}
_WHERE_USED = "its value stands where it is used"
_MOST_LINES = 200  # of one command
_OF_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "most_nodes"),
    **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), "node_gpus"),
    **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "node_tasks"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), "all_tasks"),
    "SLURM_CPUS_PER_TASK": "cpus_per_task",
}


class ShellScript:
    """Reads the lines in order; `findings` and `variables` grow with each.

    Args:
        setup: whether the job can have shell lines that run first; in a pod it has none.
        cluster: whether GPUs are there only if the file requests them.
        folder: that of the script.
    """

    def __init__(self, *, setup: bool, cluster: bool, folder: str = ".") -> None:
        self.setup, self.folder = setup, folder
        self.findings: list[Finding] = []
        self.variables: dict[str, str] = {}
        self.is_started = False
        self.text = ""
        if cluster:
            self.findings.append(Finding(0, "", Kind.DONE, settings=(("@cluster", True),)))

    def read(self, text: str, first_line: int = 1) -> list[Finding]:
        """The findings of these lines, which are added to those before."""
        before = len(self.findings)
        self.text = self.text or text
        for line in _directives(text, first_line):
            self._directive(*line)
        for number, command in _commands(text, first_line):
            masked = _masked(command, len(self.variables))
            if masked is None:
                self._say(number, command, Kind.UNKNOWN, "a quote or bracket is not closed")
                continue
            commands = masked[1]
            self.variables |= {name: self._value_of(inner) for name, inner in commands.items()}
            if masked[0].strip():
                self._command(number, command, masked[0])
        return self.findings[before:]

    def _directive(self, line: int, text: str) -> None:
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            words = [text]
        findings, rest = split_options(words, table("sbatch", "size"), line)
        unknown = [Finding(line, word, Kind.UNKNOWN, "it belongs to no option of sbatch") for word in rest]
        self.findings += [*findings, *unknown]

    def _command(self, line: int, text: str, masked: str) -> None:
        array = _ARRAY.fullmatch(masked)
        if array and self._assign(line, array[1], array[2], " ".join(array[3].split())):
            return
        if _words(masked) is None or _CONTROL.match(masked.strip()):
            self._say(line, text, Kind.UNKNOWN, "not a plain command: write out what it runs")
            return
        parts: list[tuple[str, bool]] = []  # what only a shell can run, and whether the training is before
        is_open = False
        for operator, piece, is_read in _pieces(masked):
            if self._is_known(line, *_without_redirections(piece), is_read=is_read):
                is_open = False
            elif is_open:
                parts[-1] = f"{parts[-1][0]}{operator} {piece}", parts[-1][1]
            else:
                parts.append((piece, self.is_started))
                is_open = True
        for each, is_after in parts:
            own = _REFERENCE.sub(lambda match: self.variables.get(match[1] or match[2], match[0]), each)
            self._set_up(line, own, is_after=is_after)

    def _is_known(self, line: int, words: list[str], is_written: bool, *, is_read: bool) -> bool:
        """Whether a command is more than a line of shell; then its findings are added.

        Args:
            is_written: whether its output is a file.
            is_read: whether its output is the input of the next command.
        """
        assigned: list[tuple[str, str, str]] = []
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            assigned.append((match[1], match[2], match[3]))
            words = words[1:]
        expanded = [each for word in words for each in self._split(word)]
        name = expanded[0] if expanded else ""
        if not words:
            known_values = [self._assign(line, *each) for each in assigned]
            return all(known_values)
        known = next((row for row in table("shell") if name in row.names.split()), None)
        is_needed = name in ("echo", "printf") and (is_written or is_read)
        is_needed |= name == "set" and any(map(_EXPORTS_ALL.fullmatch, words))
        if is_needed or (name == "tee" and not self.is_started):
            return False
        if known is not None:
            self._say(line, " ".join(words[:3]), known.kind, known.done)
        elif name in ("export", "declare", "typeset"):
            for word in words[1:]:
                variable_name, is_set, value = word.partition("=")
                value = value if is_set else f"${variable_name}"
                if not self._assign(line, variable_name, "", value, is_exported=True):
                    return False
        elif name == "cd" and len(expanded) == 2:
            self._change_folder(line, expanded[1])
        elif name in ("source", ".") and expanded[1:] and expanded[1].endswith("/bin/activate"):
            folder = expanded[1].removesuffix("/bin/activate")
            self.findings.append(kept(line, " ".join(words), {"interpreter": folder}))
        else:
            return self._is_launch(line, assigned, expanded)
        return True

    def _is_launch(self, line: int, assigned: list[tuple[str, str, str]], words: list[str]) -> bool:
        was_started, outer = self.is_started, len(self.findings)
        found = launch_in(words, line, self.read)
        del self.findings[outer:]
        if found is not None and not any(key == "args" for each in found for key, _ in each.settings):
            if any(each.kind is Kind.UNKNOWN for each in found):
                self.findings += found
                return True
            found = None
        if found is None and words[0] == "srun":
            finds = _OF_ADDRESS.fullmatch(" ".join(words))
            why = ADDRESS if finds else "on every node: `data` is staged there, slurm.setup runs on the first"
            self._say(line, " ".join(words), Kind.DONE if finds else Kind.LOST, why)
            return True
        if found is None:
            self.is_started = was_started
            return False
        self.is_started = True
        self.findings += [
            *(variable(line, name, self._expanded(value)) for name, _, value in assigned),
            *found,
        ]
        return True

    def _assign(self, line: int, name: str, plus: str, text: str, *, is_exported: bool = False) -> bool:
        """Whether the value is known, or nothing needs it; if not, the shell has to find it."""
        value = self._expanded(text)
        found = variable(line, name, value)
        is_used = re.search(rf"\$\{{?{re.escape(name)}\b", self.text) is not None
        is_command = _COMMAND.search(value) is not None
        is_of_launch = (is_exported or value.startswith("-")) and is_used and " " in value
        is_of_launch = is_of_launch and not _COMMAND.match(value)
        if is_of_launch:
            self._say(line, f"{name}={value}", Kind.KEPT, _WHERE_USED)
        elif found.meaning in (SECRET, ADDRESS):
            self.findings.append(found)
        elif _OF_ADDRESS.fullmatch(f"{name} {value}"):
            self._say(line, f"{name}=…", Kind.DONE, ADDRESS)
        elif is_command and not is_exported:
            return False
        elif is_exported and "$" in value and self.setup and not self.is_started:
            self.variables.pop(name, None)
            return False
        elif is_exported:
            self.findings.append(found)
        else:
            self._say(line, f"{name}={value}", Kind.KEPT, _WHERE_USED)
        self.variables[name] = f"{self.variables.get(name, '')} {value}".strip() if plus else value
        if is_command and not is_of_launch:
            del self.variables[name]
        return True

    def _change_folder(self, line: int, folder: str) -> None:
        code = str(dict(settings_of(self.findings)).get("code", "."))
        below = re.sub(r"^\$\{(SLURM_SUBMIT_DIR|PWD)\}(/|$)", "", folder)
        if not below.startswith("$"):
            below = posixpath.join("." if folder.startswith("${SLURM_SUBMIT_DIR}") else code, below)
        below = below if "$" in below else posixpath.normpath(below)
        if self.is_started:
            self._say(line, f"cd {folder}", Kind.DONE, "it is after the training")
        elif below == code:
            self._say(line, "cd", Kind.DONE, "the workers start in the first folder of `code`")
        elif re.search(r"\$(?!\{[A-Za-z_]\w*\})|`", folder):
            self._say(line, f"cd {folder}", Kind.UNKNOWN, "the folder is known only where it runs")
        else:
            self.findings.append(kept(line, f"cd {folder}", {"code": below}))

    def _set_up(self, line: int, text: str, *, is_after: bool) -> None:
        if contains_secret(text):
            self._say(line, f"{text.split(maxsplit=1)[0]} …", Kind.LOST, SECRET)
        elif is_after:
            self._say(
                line, text, Kind.LOST, "it runs after the training: submit with --wait, and start it then"
            )
        elif re.search(r"\$[\d@*]", text):
            self._say(line, text, Kind.LOST, "an argument of the script: write its value under slurm.setup")
        elif "\n" in text:
            self._say(line, text, Kind.LOST, "it has several lines: write it as one line of slurm.setup")
        elif not self.setup:
            self._say(line, text, Kind.LOST, "a pod has no setup: it belongs into the image")
        else:
            may_fail = " || true" if text.startswith(("[", "test ")) and "||" not in text else ""
            self.findings.append(kept(line, text, {"slurm.setup[]": text + may_fail}))
            if re.match(r"(conda|mamba|micromamba|source|\.)\s", text) and "activate" in text:
                why = "without clustertrain in that environment, name its Python as `interpreter`"
                self._say(line, text, Kind.LOST, why)

    def _say(self, line: int, text: str, kind: Kind, meaning: str) -> None:
        shown = "…" if contains_secret(text) else re.sub(r"\$\{__\d+\}", "$(…)", " ".join(text.split()))
        self.findings.append(Finding(line, shown, kind, meaning))

    # ------------------------------------------------------------------------------- variables

    def _split(self, word: str) -> list[str]:
        """The words of a word: a lone variable may have several."""
        expanded = self._expanded(word)
        if not _REFERENCE.fullmatch(word) or " " not in expanded or _COMMAND.match(expanded):
            return [expanded] if expanded or not _REFERENCE.fullmatch(word) else []
        try:
            return shlex.split(expanded)
        except ValueError:
            return expanded.split()

    def _expanded(self, text: str) -> str:
        """The text with the values of the variables that are known."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            known = self.variables.get(name)
            if known is None and name in _OF_SLURM:
                shape = Shape.of(self.findings)
                own = getattr(shape, _OF_SLURM[name])
                known = str(own) if own else None
            if known is None and match[3] is not None:
                known = match[3]
            return f"${{{name}}}" if known is None else known

        return _REFERENCE.sub(value, re.sub(r"^~(?=/|$)", "${HOME}", text).replace("\\$", "$"))

    def _value_of(self, command: str) -> str:
        """What $(…) prints, if the file shows it; else the command itself."""
        inner = self._expanded(command.removeprefix("$(").removesuffix(")"))
        if "nvidia-smi" in inner and "wc" in inner:
            return str(Shape.of(self.findings).node_gpus or "gpu")
        words = (word for word in re.findall(r"[\w./]+", inner) if word not in _AROUND_DIRNAME)
        if (own := re.fullmatch(r"dirname (?:0|BASH_SOURCE) ?(/\S*)?", " ".join(words))) is not None:
            return self.folder + (own[1] or "")
        if inner.startswith("(") and inner.endswith(")"):
            text = re.sub(
                r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda name: self._expanded(f"${name[1]}"), inner[1:-1]
            )
            if re.fullmatch(r"\s*\d{1,9}(\s*[*/]\s*[1-9]\d{0,8})*\s*", text, re.ASCII):
                return str(_product(text))
        return command


# ---------------------------------------------------------------------------------------- text


def _product(text: str) -> int:
    """The value of `8 * 4 / 2`, in the shell's whole numbers."""
    first, *rest = re.findall(r"[*/]?\s*\d+", text)
    result = int(first)
    for factor in rest:
        number = int(factor[1:])
        result = result * number if factor[0] == "*" else result // number
    return result


def _directives(text: str, first: int) -> Iterator[tuple[int, str]]:
    """The options of the #SBATCH lines."""
    for number, line in enumerate(text.splitlines(), first):
        if match := re.match(r"#SBATCH\s+(.*)", line):
            yield number, match[1]


def _commands(text: str, first: int) -> Iterator[tuple[int, str]]:
    """The lines of a shell text; lines that a backslash, a quote or a bracket continues are joined."""
    pending: list[str] = []
    start = first
    for number, line in enumerate(text.splitlines(), first):
        start = start if pending else number
        pending.append(line)
        joined = "\n".join(pending)
        is_open = joined.endswith("\\") or _masked(joined, 0) is None
        if not is_open or len(pending) == _MOST_LINES:
            yield start, joined.replace("\\\n", " ")
            pending = []
    if pending:
        yield start, "\n".join(pending).replace("\\\n", " ").rstrip("\\")


def _masked(text: str, first: int) -> tuple[str, dict[str, str]] | None:
    """The text without comments, with a variable for each $(…), and the commands by the names of these
    variables, which are numbered from `first`; None if a quote or a bracket is open."""
    out, quote, index = "", "", 0
    commands: dict[str, str] = {}
    while index < len(text):
        char = text[index]
        if char == "\\" and quote != "'":
            out, index = out + text[index : index + 2], index + 2
            continue
        if quote != "'" and (char == "`" or text.startswith("$(", index)):
            end = _end_of_command(text, index)
            if end is None:
                return None
            name = f"__{first + len(commands)}"
            commands[name] = text[index:end]
            out, index = out + f"${{{name}}}", end
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        elif char == "#" and not quote and (not out or out[-1].isspace()):
            end = text.find("\n", index)
            index = len(text) if end < 0 else end
            continue
        out, index = out + char, index + 1
    is_open = quote or (re.match(r"\s*[A-Za-z_]\w*\+?=\(", out) and ")" not in out)
    return None if is_open else (out, commands)


def _end_of_command(text: str, start: int) -> int | None:
    """The index after the $(…) or `…` that begins at `start`; None if it is open."""
    if text[start] == "`":
        return text.find("`", start + 1) + 1 or None
    depth = 0
    for index in range(start + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return None


def _words(text: str) -> list[str] | None:
    """The words and operators of a command, without quotes; None if it is no command."""
    lexer = shlex.shlex(re.sub(r"(?<=\s)[012](?=[<>])", "", text), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    return None if any(re.fullmatch(r"[();<>|&]*([()]|<<)[();<>|&]*", word) for word in words) else words


def _pieces(text: str) -> Iterator[tuple[str, str, bool]]:
    """The commands that `&&`, `|` and the like join: the operator before each, the command, and whether the
    next one reads its output."""
    found = [(match[1] or "", match[2]) for match in _PIECE.finditer(text) if match[2].strip()]
    following = [operator for operator, _ in found[1:]]
    for (operator, piece), after in zip(found, [*following, ""], strict=False):
        command = piece.strip()
        command += " " * command.endswith("\\")  # which escapes it
        yield f" {operator}".rstrip(), command, after in ("|", "|&")


def _without_redirections(text: str) -> tuple[list[str], bool]:
    """The words of a command, and whether its output is a file."""
    rest, found, is_written = iter(_words(text) or ()), [], False
    for word in rest:
        if word and not {*word} - {*"<>&"}:
            target = next(rest, "")
            is_written |= ">" in word and not target.startswith("/dev/") and not target.isdigit()
        else:
            found.append(word)
    return found, is_written
