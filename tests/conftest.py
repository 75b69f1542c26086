"""CLUSTERTRAIN_REQUIRE=local,gpu,…: a skipped test of a component named there is a failure.

A component is a marker of its tests; `local` is every test without one; a test with several needs them all.
The tests of `faults` are whole runs that meet one fault after another: they take longer than all others
together, and run when they are required.
"""

import os
from collections.abc import Generator

import pytest

from s3_servers import aws_environment, moto_endpoint, moto_s3, s3, versitygw_endpoint, versitygw_s3

__all__ = ["aws_environment", "moto_endpoint", "moto_s3", "s3", "versitygw_endpoint", "versitygw_s3"]
COMPONENTS = {"docker", "faults", "gpu", "kubernetes", "s3", "slurm"}
REQUIRED = {name for name in os.environ.get("CLUSTERTRAIN_REQUIRE", "").split(",") if name}


def pytest_configure() -> None:
    if unknown := REQUIRED - COMPONENTS - {"local"}:
        raise pytest.UsageError(
            f"CLUSTERTRAIN_REQUIRE names {', '.join(sorted(unknown))}; "
            f"there are: {', '.join(sorted(COMPONENTS | {'local'}))}."
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: the longest files begin together, and the quick ones fill the gaps at the end."""
    items.sort(key=lambda item: "whole" not in item.path.parts)
    for item in items:
        if _is_left_out(item):
            item.add_marker(pytest.mark.skip(reason="takes long: `make test-faults` runs it"))


def _is_left_out(item: pytest.Item) -> bool:
    return item.get_closest_marker("faults") is not None and "faults" not in REQUIRED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    components = COMPONENTS & {mark.name for mark in item.iter_markers()} or {"local"}
    if report.skipped and components <= REQUIRED and not _is_left_out(item):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\nCLUSTERTRAIN_REQUIRE={','.join(sorted(REQUIRED))}: this may not be skipped."
        )
    return report
