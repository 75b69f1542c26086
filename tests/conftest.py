"""CLUSTERTRAIN_REQUIRE=local,gpu,…: a skipped test of a component named there is a failure.

A component is a marker of its tests; `local` is every test without one.
"""

import os
from collections.abc import Generator

import pytest

from s3_servers import aws_environment, moto_endpoint, moto_s3, s3, versitygw_endpoint, versitygw_s3

__all__ = ["aws_environment", "moto_endpoint", "moto_s3", "s3", "versitygw_endpoint", "versitygw_s3"]
COMPONENTS = {"gpu", "s3"}
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    components = COMPONENTS & {mark.name for mark in item.iter_markers()} or {"local"}
    if report.skipped and components & REQUIRED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\nCLUSTERTRAIN_REQUIRE={','.join(sorted(REQUIRED))}: this may not be skipped."
        )
    return report
