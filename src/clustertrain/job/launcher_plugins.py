"""The installed launchers: each registers a `Plugin` in the entry-point group `clustertrain.launchers`.

    [project.entry-points."clustertrain.launchers"]
    gridengine = "my_package.plugin:PLUGIN"

Reading a job file needs the sections of all launchers, so a plug-in names its other parts as text
(`package.module:NAME`), and they are imported at their first use. A plug-in that cannot be used is named in
`problems()` and skipped.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from inspect import getsourcefile, getsourcelines
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, create_model

from clustertrain.errors import JobError
from clustertrain.job.common import CommonJob
from clustertrain.job.sections import Section
from clustertrain.node.installed import launcher_names, registered_launchers

API = 1
"""The number of the interface of launchers."""

_OWN = "clustertrain."  # the modules of the launchers of this distribution
_PACKAGE = Path(__file__).parents[1]

LauncherSectionT = TypeVar("LauncherSectionT", bound="LauncherSection")
FileT = TypeVar("FileT", bound="WithLaunchers")


class LauncherSection(Section):
    """Base of a launcher's section of the job file and of the site file. All of its keys have defaults.

    Attributes:
        text_keys: keys whose value is text exactly as written: `010` stays `010`.
        expanded_keys: keys in whose value ${NAME} is replaced from the environment of the command.
        shell_keys: keys in whose value `$` is left to a shell on the node.
    """

    text_keys: ClassVar[frozenset[str]] = frozenset()
    expanded_keys: ClassVar[tuple[str, ...]] = ()
    shell_keys: ClassVar[frozenset[str]] = frozenset()

    def check(self, image: str | None) -> None:
        """Check the keys that depend on each other or on the image of the job.

        Raises:
            Refused: they are inconsistent; `at` begins with the name of the section.
        """

    def with_site(self, site: Self) -> Self:
        """Return this section with the site's values for keys that the job file does not have."""
        keys = site.model_fields_set - self.model_fields_set
        return self.model_copy(update={key: getattr(site, key) for key in keys})

    def may_set(self, variable: str) -> bool:
        """Return whether the launcher may set a variable of the workers that this machine does not have."""
        return False

    @property
    def starts_after_another(self) -> bool:
        """Whether the job waits for another one of its run, which may be active at the submission."""
        return False

    @property
    def has_own_packages(self) -> bool:
        """Whether the job runs with another Python than that of this command."""
        return False


class WithLaunchers(Section):
    """Base of a file that contains the sections of the launchers: the job file, the site file."""

    @property
    def launcher_sections(self) -> dict[str, LauncherSection]:
        """The section of each installed launcher that has one, by the name of the launcher."""
        return {name: getattr(self, name) for name in launcher_sections()}

    def section(self, kind: type[LauncherSectionT]) -> LauncherSectionT:
        """Return the section of a launcher, by its model."""
        return next(each for each in self.launcher_sections.values() if isinstance(each, kind))


@dataclass(frozen=True)
class Plugin:
    """What a distribution registers as a launcher.

    Attributes:
        scheduler: `package.module:NAME` of a Scheduler (launchers/scheduler/interface.py).
        section: the model of its section of the job file, if it has one.
        remedies: what to do if a program of its scheduler is not installed, by the program's name.
        connect: `package.module:NAME` of a function `(job) -> RayCluster`; its method `connect` connects
            the driver to its Ray inside the job. By default the driver starts Ray on its own host.
        reach: `package.module:NAME` of a Reach (launchers/target.py), if only the cluster has the storage.
        api: the number of the interface that it was written for.
    """

    scheduler: str
    section: type[LauncherSection] | None = None
    remedies: Mapping[str, str] = field(default_factory=dict)
    connect: str = "clustertrain.launchers.local.ray:ray_cluster"
    reach: str = ""
    api: int = API


class PluginProblem(JobError):
    """A plug-in that cannot be used; the text names it and its distribution."""


def plugins() -> Mapping[str, Plugin]:
    """Return the plug-ins that can be used, by name."""
    return _loaded()[0]


def problems() -> Mapping[str, str]:
    """Return the reason for each plug-in that cannot be used, by name."""
    return _loaded()[1]


def plugin_of(name: str) -> Plugin:
    """Return the plug-in of that name.

    Raises:
        JobError: no such launcher is installed, or it cannot be used; the text has the reason.
    """
    if name in plugins():
        return plugins()[name]
    if name in problems():
        raise PluginProblem(problems()[name])
    raise JobError(f"There is no launcher {name!r}.\nThe launchers are: {', '.join(plugins())}.")


def part_of(name: str, path: str) -> Any:
    """Import `package.module:NAME`, a part of the plug-in `name`.

    Raises:
        PluginProblem: it cannot be imported.
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise plugin_problem(name, f"{path} cannot be imported ({raised(error)})") from error


def raised(error: Exception) -> str:
    """Name an error of a plug-in, and the line of its code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    paths = {each.filename: Path(each.filename) for each in frames}
    of_plugin = [name for name, path in paths.items() if path.exists() and _PACKAGE not in path.parents]
    last = [*frames, *(each for each in frames if each.filename in of_plugin)][-1]
    return f"{type(error).__name__}: {error}, {last.filename}:{last.lineno}"


def launcher_sections() -> dict[str, type[LauncherSection]]:
    """Return the sections of the job file that belong to launchers, by name."""
    return {name: plugin.section for name, plugin in plugins().items() if plugin.section is not None}


def with_launcher_sections(model: type[FileT]) -> type[FileT]:
    """Decorate the model of a file: add a field for the section of each launcher."""
    fields: dict[str, Any] = {
        name: (kind, Field(kind(), description=kind.__doc__)) for name, kind in launcher_sections().items()
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
    )


@cache
def _loaded() -> tuple[dict[str, Plugin], dict[str, str]]:
    usable, refused = {}, {}
    for name in launcher_names():
        registered = {
            (each.value, _distribution(each)): each for each in registered_launchers().select(name=name)
        }
        own = [each for each in registered.values() if each.value.startswith(_OWN)]
        if len(registered) > 1:
            both = " and ".join(f"{distribution} ({value})" for value, distribution in registered)
            which = "the one that is not clustertrain: it is skipped" if own else "one of them"
            refused[name] = f"Two distributions register the launcher {name!r}: {both}.\nUninstall {which}."
        for entry in own or ([] if name in refused else registered.values()):
            try:
                usable[name] = _load(name, entry)
            except PluginProblem as error:
                refused[name] = str(error)
    return usable, refused


def _load(name: str, entry: EntryPoint) -> Plugin:
    """Return the plug-in of an entry point.

    Raises:
        PluginProblem: it cannot be used.
    """
    if name in CommonJob.model_fields:
        raise plugin_problem(name, f"{name} is a key of the job file; the entry point needs another name")
    plugin = part_of(name, entry.value)
    if not isinstance(plugin, Plugin):
        raise plugin_problem(name, f"{entry.value} is a {type(plugin).__name__}, not a Plugin")
    if plugin.api != API:
        raise plugin_problem(name, f"it is for interface {plugin.api}, and this clustertrain has {API}")
    _check_section(name, plugin.section)
    return plugin


def _check_section(name: str, section: object) -> None:
    """Check that the section is a model whose keys all have defaults.

    Raises:
        PluginProblem: it is not.
    """
    if section is None:
        return
    if not (isinstance(section, type) and issubclass(section, LauncherSection)):
        raise plugin_problem(name, f"its section is {section!r}, not a subclass of LauncherSection")
    try:
        section()
    except Exception as error:
        file, (_, line) = getsourcefile(section), getsourcelines(section)
        why = str(error).replace("\n", " ")
        what = f"its section {section.__name__} at {file}:{line} has a key without a default: {why}"
        raise plugin_problem(name, what) from error


def plugin_problem(name: str, what: str) -> PluginProblem:
    """Return the error for a plug-in that cannot be used, for the reason `what`."""
    return PluginProblem(
        f"The launcher {name!r} of {distribution_of(name)} is skipped: {what}.\n"
        "Update or uninstall that distribution; the other launchers work."
    )


def distribution_of(name: str) -> str:
    """Name the distribution that registers a launcher."""
    return " and ".join(sorted({_distribution(each) for each in registered_launchers().select(name=name)}))


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"
