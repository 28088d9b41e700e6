"""Commands as a user starts them: under torchrun, and ended from outside. Nothing is left of either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

COMMAND = """
import sys
from harness import cli
from harness.registry import Registered, Registry
from tests.harness.ranks import toy

stages = [toy.STAGE, toy.wrong(toy.launch_that_raises, name="toy_raises")]
stages.append(toy.wrong(toy.launch_that_tells_and_hangs, name="toy_hangs"))
registry = Registry({stage.name: Registered(stage, {"toy": toy.RoutedToy()}, "toy") for stage in stages})
cli.load_registry = lambda: registry
if __name__ == "__main__":
    sys.exit(cli.main(["run", *sys.argv[1:]]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command line with the toy stages."""
    path = tmp_path / "toy_command.py"
    path.write_text(COMMAND)
    return path


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "TOUCHSTONE_CACHE": str(folder), "OMP_NUM_THREADS": "1"}


def torchrun(program: Path, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*command, str(program), *options], env=environment(program.parent), capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_torchrun_s_ranks_run_the_layouts_that_fit(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = torchrun(program, 2, "toy_exchange", "--ep", "1,2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    # Rank 0 alone prints.
    assert done.stdout.count("2 of 2 passed") == 1
    reports = json.loads(file.read_text())["reports"]
    assert [(report["ep"], report["passed"], len(report["ranks"])) for report in reports] == [
        (1, True, 0),
        (2, True, 2),
    ]
    assert [verdict["rule"] for verdict in reports[1]["verdicts"]][2:] == ["SameBits(ep=1)", "SameBits(ep=1)"]


@pytest.mark.slow
def test_a_rank_that_fails_under_torchrun_ends_the_job(program: Path) -> None:
    began = time.monotonic()
    done = torchrun(program, 2, "toy_raises", "--ep", "2")
    assert done.returncode != 0
    assert "touchstone run: rank 1: launch toy_raises: ArithmeticError: rank 1 can't" in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_ranks_end_with_a_command_that_is_killed(program: Path, tmp_path: Path) -> None:
    told = tmp_path / "ranks"
    told.mkdir()
    command = subprocess.Popen(
        [sys.executable, str(program), "toy_hangs", "--ep", "2"],
        env=environment(tmp_path) | {"TOY_RANKS": str(told)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 60
    while len(list(told.iterdir())) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    ranks = [int(file.name) for file in told.iterdir()]
    assert all(Path(f"/proc/{rank}").exists() for rank in ranks)
    command.send_signal(signal.SIGKILL)
    command.wait()
    end = time.monotonic() + 10
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, "a rank outlived its command"
        time.sleep(0.05)
