"""Lists the packages of an image, and fails if a label does not match the installed version.

    inventory.py ray==2.60.0 ...      the versions in the labels; each must be the installed one

It writes two files beside itself. sbom.json is the bill of materials (CycloneDX 1.5) of the Python and Debian
packages; pins.txt contains the versions that a later `pip install` may not change.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

_FOLDER = Path(__file__).parent
_Component = dict[str, object]


def _name(package: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()


def _python_packages() -> dict[str, Distribution]:
    return {_name(package): package for package in distributions()}


def _python_component(name: str, package: Distribution) -> _Component:
    purl = f"pkg:pypi/{name}@{quote(package.version)}"
    component: _Component = {"type": "library", "name": name, "version": package.version, "purl": purl}
    keys = [key for key in ("License-Expression", "License") if key in package.metadata]
    stated = package.metadata[keys[0]] if keys else ""
    if stated and "\n" not in stated:  # some packages put the whole license text there
        component["licenses"] = [{"license": {"name": stated}}]
    return {"bom-ref": purl, **component}


def _debian_components() -> list[_Component]:
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    components: list[_Component] = []
    for line in listed.splitlines():
        name, version, architecture = line.split(" ")
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
        components.append(
            {"bom-ref": purl, "type": "library", "name": name, "version": version, "purl": purl}
        )
    return components


def main(labels: list[str]) -> str | None:
    packages = _python_packages()
    for label in labels:
        name, _, version = label.partition("==")
        installed = packages[name].version if name in packages else "not installed"
        # torch from another index has a local version part: 2.13.0+cpu
        if version != installed.partition("+")[0]:
            return f"{name} is {installed}, but its label would be {version!r}: build with `make image`"
    pins = [f"{name}=={package.version}\n" for name, package in sorted(packages.items())]
    (_FOLDER / "pins.txt").write_text("".join(pins))
    components = [_python_component(name, package) for name, package in sorted(packages.items())]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": components + _debian_components(),
    }
    (_FOLDER / "sbom.json").write_text(json.dumps(bill, indent=1))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
