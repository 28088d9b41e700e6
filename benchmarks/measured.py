"""What the benchmark's measurements have in common, and how they are kept and judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

JUDGED = ("torch", "checks", "threads", "nothing", "import")
"""The ratios that a baseline judges; the interpreter's is measured once, and only shown."""


@dataclass(frozen=True)
class Measured:
    """One row of the table. `ratios` are times over times, so that more is worse, by what the simulator is compared
    with; `milliseconds` are the times; `noise` is how much longer the median sample of the simulator took than its
    least, as a fraction."""

    ratios: Mapping[str, float]
    milliseconds: Mapping[str, float]
    noise: float = 0.0


@dataclass(frozen=True)
class Measurements:
    """A run of the benchmark on a processor, by the table's rows."""

    cpu: str
    rows: Mapping[str, Measured]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def read_measurements(path: Path) -> Measurements:
    """What `to_json` wrote. Raises ValueError naming the file if it is something else, OSError if it is absent."""
    try:
        record = json.loads(path.read_text())
        rows = {name: Measured(**row) for name, row in record["rows"].items()}
        return Measurements(cpu=record["cpu"], rows=rows)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no file of this benchmark: {error!r}") from error


def regressions(now: Measurements, baseline: Measurements, *, threshold: float) -> list[str]:
    """A line for each judged ratio that is worse than the baseline's by more than `threshold`, a fraction of it. Rows
    and ratios that only one of the two has are not judged."""
    found = []
    for name, row in now.rows.items():
        before = baseline.rows[name].ratios if name in baseline.rows else {}
        for rival in JUDGED:
            if rival in row.ratios and rival in before and row.ratios[rival] > before[rival] * (1.0 + threshold):
                found.append(f"{name}: {rival} {row.ratios[rival]:.3g}, {before[rival]:.3g} in the baseline")
    return found
