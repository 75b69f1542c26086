"""The names that a user imports from clustertrain: those that its docstring documents, and no others."""

import re
from types import ModuleType

import pytest

import clustertrain

pytestmark = pytest.mark.slow


def is_submodule(name, value):
    return isinstance(value, ModuleType) and value.__name__ == f"clustertrain.{name}"


def test_the_docstring_documents_each_public_name():
    documented = re.findall(r"^    (\w+)  ", clustertrain.__doc__, re.MULTILINE)
    assert sorted(documented) == sorted(clustertrain.__all__)


def test_each_public_name_can_be_imported():
    imported = {}
    exec("from clustertrain import *", imported)
    assert sorted(imported.keys() - {"__builtins__"}) == sorted(clustertrain.__all__)
    assert isinstance(imported["Task"], type)
    assert callable(imported["load_job"])
    assert isinstance(imported["session"], ModuleType)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", imported["__version__"])


def test_no_other_name_of_the_module_is_public():
    """But the submodules that were imported, which Python binds by itself."""
    names = {name for name, value in vars(clustertrain).items() if not is_submodule(name, value)}
    assert not {name for name in names if not name.startswith("_")} - {*clustertrain.__all__}
