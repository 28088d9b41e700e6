"""What is remembered of the installation, and that no change of it goes unseen."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from pathlib import Path

import pytest
import triton.compiler.compiler as triton_compiler
from triton.runtime.cache import get_cache_manager

from harness.devices.sim import keys
from harness.devices.sim.device import SimDevice
from harness.devices.sim.objects import CPU_VARIABLE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two files that changed long ago, and a cache of its own. What counts as long ago is cut to what a
    file system's clock needs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(keys, "_SETTLED_SECONDS", 0.05)
    inside = tmp_path / "package" / "inside"
    inside.mkdir(parents=True)
    (inside / "one.py").write_text("one")
    (tmp_path / "package" / "two.py").write_text("two")
    time.sleep(0.1)
    return tmp_path / "package"


class Reader:
    """Reads every file of a folder, and counts how often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return ",".join(f"{path.name}={path.read_text()}" for path in sorted(self.folder.rglob("*.py")))


def ask(reader: Reader) -> str:
    return keys.remembered("test", [str(reader.folder)], reader)


def test_an_unchanged_folder_is_read_once(folder):
    reader = Reader(folder)
    assert ask(reader) == ask(reader) == "one.py=one,two.py=two"
    assert reader.calls == 1


def written(folder):
    (folder / "two.py").write_text("2")


def of_the_same_size(folder):
    (folder / "two.py").write_text("owt")


def dated_back(folder):
    path = folder / "two.py"
    before = path.stat()
    path.write_text("owt")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def put_in_place_of_another(folder):
    path = folder / "two.py"
    other = folder.parent / "other.py"
    other.write_text("owt")
    shutil.copystat(path, other)
    other.replace(path)


def added(folder):
    (folder / "inside" / "three.py").write_text("three")


def removed(folder):
    (folder / "inside" / "one.py").unlink()


def renamed(folder):
    (folder / "two.py").rename(folder / "three.py")


@pytest.mark.parametrize(
    "change", [written, of_the_same_size, dated_back, put_in_place_of_another, added, removed, renamed]
)
def test_a_change_is_seen(folder, change):
    reader = Reader(folder)
    ask(reader)
    change(folder)
    assert ask(reader) == reader()
    assert reader.calls == 3


def test_what_changed_just_now_is_not_remembered(folder):
    reader = Reader(folder)
    written(folder)
    ask(reader)
    ask(reader)
    assert reader.calls == 2


def test_what_changes_while_it_is_read_is_not_remembered(folder):
    reader = Reader(folder)

    def read_and_change() -> str:
        value = reader()
        written(folder)
        return value

    state, _ = keys._state([str(folder)])
    keys.remembered("test", [str(folder)], read_and_change)
    assert get_cache_manager(state).get_file("test") is None


def test_tritons_key_is_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    SimDevice()
    assert triton_compiler.triton_key is keys.triton_key
    for _ in range(2):  # computed, then read
        keys.triton_key.cache_clear()
        assert triton_compiler.triton_key() == keys._own_triton_key()
    assert len(list(tmp_path.rglob("triton_key"))) == 1


def test_an_edit_of_the_simulator_or_another_tool_is_another_key(monkeypatch, tmp_path):
    copy = tmp_path / "sim"
    shutil.copytree(Path(keys.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(keys, "__file__", str(copy / "keys.py"))
    monkeypatch.setattr(keys, "_SETTLED_SECONDS", 0.05)
    time.sleep(0.1)

    def key(cache: str) -> str:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / cache))
        keys.version_key.cache_clear()
        return keys.version_key()

    try:
        first = key("one")
        assert key("one") == first
        version = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == "llvmlite" else version(name))
        assert key("one") == first  # nothing was installed, so no version is asked for
        assert key("another") != first
        monkeypatch.undo()
        monkeypatch.setattr(keys, "__file__", str(copy / "keys.py"))
        with (copy / "passes" / "scalars.py").open("a") as source:
            source.write("# edited\n")
        assert key("one") != first
        monkeypatch.setenv(CPU_VARIABLE, "x86-64-v2")
        edited = keys.version_key()
        assert key("one") != edited
    finally:
        monkeypatch.undo()
        keys.version_key.cache_clear()
