"""The installed launchers: each registers a `Plugin` in the entry-point group `clustertrain.launchers`.

    [project.entry-points."clustertrain.launchers"]
    gridengine = "my_package.plugin:PLUGIN"

Reading a job file needs the sections of all launchers, so a plug-in names its other parts as text
(`package.module:NAME`), and they are imported at their first use. A plug-in that cannot be used is named in
`problems()` and skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, create_model

from clustertrain.errors import JobError
from clustertrain.job.common import CommonJob
from clustertrain.job.sections import Section
from clustertrain.node.installed import launcher_names, registered_launchers

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

    def check(self, job: CommonJob) -> None:
        """Check the keys that depend on each other or on the rest of the job.

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
        launcher: `package.module:NAME` of a Launcher (launchers/launcher.py).
        connect: `package.module:NAME` of a function `(job) -> RayCluster`; its method `connect` connects
            the driver to its Ray inside the job.
        section: the model of its section of the job file, if it has one.
        remedies: what to do if a program of its scheduler is not installed, by the program's name.
    """

    launcher: str
    connect: str
    section: type[LauncherSection] | None = None
    remedies: Mapping[str, str] = field(default_factory=dict)


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
    if name in problems():
        raise PluginProblem(problems()[name])
    if name not in plugins():
        raise JobError(f"There is no launcher {name!r}.\nThe launchers are: {', '.join(plugins())}.")
    return plugins()[name]


def part_of(name: str, path: str) -> Any:
    """Import `package.module:NAME`, a part of the plug-in `name`.

    Raises:
        PluginProblem: it cannot be imported.
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise plugin_problem(name, f"{path} cannot be imported ({type(error).__name__}: {error})") from error


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
        registered = [*registered_launchers().select(name=name)]
        try:
            usable[name] = _load(name, registered)
        except PluginProblem as error:
            refused[name] = str(error)
    return usable, refused


def _load(name: str, registered: list[EntryPoint]) -> Plugin:
    if len({(each.value, _distribution(each)) for each in registered}) > 1:
        both = " and ".join(f"{_distribution(each)} ({each.value})" for each in registered)
        raise PluginProblem(
            f"Two distributions register the launcher {name!r}: {both}.\nUninstall one of them."
        )
    plugin = part_of(name, registered[0].value)
    if not isinstance(plugin, Plugin):
        raise plugin_problem(name, f"{registered[0].value} is a {type(plugin).__name__}, not a Plugin")
    return plugin


def plugin_problem(name: str, what: str) -> PluginProblem:
    """Return the error for a plug-in that cannot be used, for the reason `what`."""
    owners = " and ".join(sorted({_distribution(each) for each in registered_launchers().select(name=name)}))
    return PluginProblem(
        f"The launcher {name!r} of {owners} is skipped: {what}.\n"
        "Update or uninstall that distribution; the other launchers work."
    )


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"
