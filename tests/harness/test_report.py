"""A report passes only when something was judged and nothing failed, and its JSON and table say the same."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from golden.verdict import Verdict
from harness.devices.base import LaunchRecord
from harness.report import Failure, Report, Seconds
from harness.table import closest_output, print_reports, print_traffic
from tests.harness.fakes import case

GOOD = Verdict("y", True, "Close(rtol=0.01)", figures={"max_error": 0.5, "limit_used": 0.2})
NEAR = Verdict("z", True, "Close(rtol=0.01)", figures={"max_error": 0.1, "limit_used": 0.8})
BAD = Verdict("w", False, "Exact()", "w[0] is 1, expected 2", {"outside": 0.001, "max_error": float("inf")}, (0,))
SECONDS = Seconds(fixture=1.0, golden=2.0, compile=4.0, first_launch=3.0, kernel=0.25)
REPORT = Report("toy", case(), "sim", "touchstone run toy", verdicts=(GOOD, NEAR), seconds=SECONDS)


def printed(*reports: Report) -> list[str]:
    file = io.StringIO()
    print_reports(reports, console=Console(file=file, width=160))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_nothing_judged_is_no_pass() -> None:
    assert REPORT.passed
    assert not replace(REPORT, verdicts=()).passed
    assert not replace(REPORT, verdicts=(GOOD, BAD)).passed
    assert not replace(REPORT, failures=(Failure("guard", "y", "written"),)).passed


def test_json_is_json_even_with_figures_that_are_none() -> None:
    record = json.loads(json.dumps(replace(REPORT, verdicts=(BAD,)).to_json(), allow_nan=False))
    assert record["verdicts"][0]["figures"] == {"outside": 0.001, "max_error": None}
    assert record["verdicts"][0]["first_bad"] == [0]
    assert record["seconds"] == {"fixture": 1.0, "golden": 2.0, "compile": 4.0, "first_launch": 3.0, "kernel": 0.25}
    assert record["failures"][0]["reason"] == "w[0] is 1, expected 2 (Exact())"


def test_the_output_closest_to_its_limit_is_shown() -> None:
    assert closest_output((GOOD, NEAR)) == "z 80%"
    assert closest_output((GOOD, NEAR, BAD)) == "w"
    assert closest_output((Verdict("v", True, "Exact()"),)) == "v exact"
    assert closest_output(()) == ""


def test_a_failure_is_printed_with_its_reason_and_command() -> None:
    failed = replace(REPORT, verdicts=(GOOD, BAD), warnings=("k: reads past the mask",))
    assert printed(REPORT, failed)[-5:] == [
        "toy toy-b2-s2-cold",
        "  output w: w[0] is 1, expected 2 (Exact())",
        "  warning k: reads past the mask",
        "  again: touchstone run toy",
        "1 of 2 passed",
    ]


def test_a_row_holds_the_seconds_and_the_error() -> None:
    row = printed(replace(REPORT, quantisation_error={"y": 0.0123, "z": 0.001}))[1]
    assert row.split()[:3] == ["toy", "toy-b2-s2-cold", "passed"]
    assert row.split()[-4:] == ["1.23%", "1.000", "2.000", "0.250"]


TRAFFIC = (
    LaunchRecord("copy", (4, 1, 2), {"x": 4096}, {"y": 4096}),
    LaunchRecord("add", (8, 1, 1), {"x": 1024, "y": 512}, {"y": 256}),
)


def test_traffic_is_in_the_json_by_launch_and_argument() -> None:
    record = json.loads(json.dumps(replace(REPORT, traffic=TRAFFIC).to_json()))
    assert record["traffic"] == [
        {"kernel": "copy", "grid": [4, 1, 2], "bytes_read": {"x": 4096}, "bytes_written": {"y": 4096}},
        {"kernel": "add", "grid": [8, 1, 1], "bytes_read": {"x": 1024, "y": 512}, "bytes_written": {"y": 256}},
    ]


def test_traffic_is_printed_by_argument_and_summed_by_case() -> None:
    file = io.StringIO()
    print_traffic([replace(REPORT, traffic=TRAFFIC)], console=Console(file=file, width=160))
    rows = [line.split()[2:] for line in file.getvalue().splitlines()[1:]]
    assert rows == [
        ["copy", "4", "x", "1", "x", "2", "x", "4,096", "0"],
        ["copy", "4", "x", "1", "x", "2", "y", "0", "4,096"],
        ["add", "8", "x", "1", "x", "1", "x", "1,024", "0"],
        ["add", "8", "x", "1", "x", "1", "y", "512", "256"],
        ["all", "5,632", "4,352"],
    ]


def test_a_compiler_s_error_is_shown_without_triton_s_banner() -> None:
    text = """
///------------------[ERROR][Triton][BEG]------------------
[MLIRCompile] encounters error:
kernel.py:3:1: this simulator does not support 'strange'

[INFO]: The compiled kernel cache is in /somewhere

///------------------[ERROR][Triton][END]------------------
"""
    failure = Failure.raised("launch", "toy", RuntimeError(text))
    assert failure.reason == (
        "RuntimeError: [MLIRCompile] encounters error: ... kernel.py:3:1: this simulator does not support 'strange'"
    )
