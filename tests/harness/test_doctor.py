"""The doctor sees what stops kernels from running, says how to mend it, and survives whatever breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli, doctor
from harness.doctor import MEND_SIM, MEND_TRITON, Finding, examine, triton_finding


@pytest.mark.parametrize(
    ("triton", "ascend", "state", "mend"),
    [
        (None, "3.2.0", "ok", ""),
        ("3.5.0", "3.2.0", "failed", MEND_TRITON),
        ("3.5.0", None, "failed", MEND_TRITON),
        (None, "3.2.1", "failed", MEND_TRITON),
        (None, None, "failed", MEND_SIM),
    ],
    ids=["right", "both", "upstream alone", "another version", "neither"],
)
def test_upstream_triton_is_a_failure(triton: str | None, ascend: str | None, state: str, mend: str) -> None:
    found = triton_finding(triton=triton, ascend=ascend)
    assert (found[0], found[2]) == (state, mend)


def test_two_in_one_folder_are_both_named() -> None:
    found = triton_finding(triton="3.5.0", ascend="3.2.0")[1]
    assert found == "both triton 3.5.0 and triton-ascend 3.2.0 are installed, in one folder"


def test_the_mend_puts_triton_ascend_last() -> None:
    assert MEND_TRITON == ("pip uninstall -y triton && pip install --force-reinstall --no-deps triton-ascend==3.2.0")


def test_what_raises_is_a_failed_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> tuple[doctor.State, str, str]:
        raise OSError("libLLVM.so:\n not found")

    monkeypatch.setattr(doctor, "EXAMINATIONS", {"simulator": breaks})
    assert examine() == (Finding("simulator", "failed", "OSError: libLLVM.so: not found"),)


@pytest.mark.parametrize(("state", "status"), [("ok", 0), ("note", 0), ("failed", 1)])
def test_only_a_failure_sets_the_exit_status(
    state: doctor.State, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "EXAMINATIONS", {"triton": lambda: (state, "found [1]", "pip install 'a[b]'")})
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().out.split("\n")[:2] == [
        f"{state:7} triton: found [1]",
        "        mend: pip install 'a[b]'",
    ]


def test_a_cache_that_cannot_be_written_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "file" / "cache"))
    (cache,) = (finding for finding in examine() if finding.subject == "cache")
    assert cache.state == "note"
    assert "goldens cannot be kept" in cache.found
