"""Several runs: a table with sparklines, their curves in one chart, the differences of their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.report.curves import SECONDARY, Curve
from clustertrain.report.facts import RunFacts
from clustertrain.report.one_run import repository_text
from clustertrain.report.parts import Html, table
from clustertrain.report.svg import COLOURS, chart, number_text, sparkline

_MOST_METRICS = 4
_NOT_COMPARED = (*SECONDARY, "samples_per_s")


def comparison(runs: Sequence[RunFacts]) -> dict[str, str]:
    """The sections about all runs by their titles."""
    compared = {id(run): _compared(run) for run in runs}
    differing = _differences(list(compared.values()))
    metrics = _metrics(runs)
    args = [key for key in differing if key.startswith(("args.", "train."))]
    header = ["run", "state", *(key.removeprefix("args.") for key in args)]
    header += [*(f"{name} ({kind})" for name, kind in metrics), "samples/s", "ETTR", "hours"]
    rows = [_row(run, args, metrics) for run in runs]
    charts = "".join(_overlaid(runs, metric) for metric in metrics)
    if len(runs) > COLOURS:
        charts += f'<p class="soft">The charts have the first {COLOURS} runs.</p>'
    body = [(key, *(values.get(key, "-") for values in compared.values())) for key in differing]
    names = ("key", *(run.name for run in runs))
    same = "<p>The jobs of these runs are equal.</p>"
    return {
        "Runs": f'{table(header, rows, "runs")}<div class="charts">{charts}</div>',
        "Differences": table(names, body, "differences") if body else same,
    }


def _compared(run: RunFacts) -> dict[str, str]:
    """The keys of the job, the commits and the versions of a run."""
    values = {key: str(value) for key, value in run.settings.items() if key != "name"}
    if (known := run.provenance) is not None:
        values["commit"] = "; ".join(map(repository_text, known.source.repositories)) or "-"
        values |= {"python": known.python, "clustertrain": known.version, "host": known.host}
        values |= {
            f"package {name}": version for name, _, version in (p.partition("==") for p in known.packages)
        }
    return values


def _differences(compared: Sequence[dict[str, str]]) -> list[str]:
    """The keys whose values differ, the args first."""
    keys = dict.fromkeys(key for values in compared for key in values)
    differing = [key for key in keys if len({values.get(key) for values in compared}) > 1]
    return sorted(differing, key=lambda key: not key.startswith("args."))


def _metrics(runs: Sequence[RunFacts]) -> list[tuple[str, str]]:
    """(name, kind) of the metrics that are compared: those of evaluations before those of training."""
    found = dict.fromkeys((c.name, c.kind) for run in runs for c in run.curves if c.name not in _NOT_COMPARED)
    return sorted(found, key=lambda metric: metric[1] != "eval")[:_MOST_METRICS]


def _curve(run: RunFacts, name: str, kind: str) -> Curve | None:
    return next((each for each in run.curves if (each.name, each.kind) == (name, kind)), None)


def _row(run: RunFacts, args: Sequence[str], metrics: Sequence[tuple[str, str]]) -> list[str]:
    values = [str(run.settings.get(key, "-")) for key in args]
    for name, kind in [*metrics, ("samples_per_s", "train")]:
        found = _curve(run, name, kind)
        values.append(
            "-"
            if found is None
            else Html(f"{sparkline(name, found.points)} {number_text(found.points[-1][1])}")
        )
    ettr = run.ledger.ettr if run.ledger is not None else None
    values.append("-" if ettr is None else f"{ettr:.3f}")
    values.append("-" if run.ledger is None else f"{run.ledger.device_hours:.3g}")
    return [run.name, run.status.state, *values]


def _overlaid(runs: Sequence[RunFacts], metric: tuple[str, str]) -> str:
    found = [(run.name, _curve(run, *metric)) for run in runs[:COLOURS]]
    lines = [(name, curve.points) for name, curve in found if curve is not None]
    return chart(f"{metric[0]} ({metric[1]})", lines)
