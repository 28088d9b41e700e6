"""Goldens computed under a stated thread count and kept on disk, so that a kernel's author waits for them once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from golden.experts import ExpertTensor
from golden.threads import torch_threads
from harness.cpu import cpu_features, usable_cores
from harness.golden_source import source_key
from harness.originals import Value
from harness.stage import Golden, Precision

MOST_THREADS = 8
DEFAULT_LIMIT_BYTES = 2 << 30


def cache_folder() -> Path:
    """Where goldens are kept: `$TOUCHSTONE_CACHE`, else `touchstone` in the user's cache folder."""
    chosen = os.environ.get("TOUCHSTONE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "touchstone"


def golden_threads() -> int:
    """Threads that goldens run on: part of the key, since sums depend on how they are split."""
    return min(usable_cores(), MOST_THREADS)


@dataclass(frozen=True)
class GoldenCache:
    """Golden results by input bytes, source, precision, torch version, thread count and CPU features.

    `folder=None` keeps nothing. The oldest entries go when more than `limit_bytes` are kept. A file that is missing,
    damaged or unwritable costs the time of computing, never an error.
    """

    folder: Path | None
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    def compute(
        self, golden: Golden, inputs: Mapping[str, Value], *, precision: Precision, digest: str
    ) -> dict[str, torch.Tensor]:
        """What `golden(inputs, precision=precision)` returns. `digest` is `inputs_digest(inputs)`."""
        path = self._path(golden, precision=precision, digest=digest)
        kept = _load(path)
        if kept is not None:
            return kept
        with torch_threads(golden_threads()), torch.no_grad():
            outputs = golden(inputs, precision=precision)
        if path is not None and _is_plain(outputs):
            self._keep(path, outputs)
        return outputs

    def _path(self, golden: Golden, *, precision: Precision, digest: str) -> Path | None:
        source = source_key(golden) if self.folder is not None else None
        if self.folder is None or source is None:
            return None
        parts = (source, precision, digest, torch.__version__, str(golden_threads()), *cpu_features())
        return self.folder / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()}.pt"

    def _keep(self, path: Path, outputs: dict[str, torch.Tensor]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
                try:
                    torch.save(outputs, file)
                    file.close()
                    os.replace(file.name, path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            self._forget_oldest(path.parent)
        except OSError:
            return

    def _forget_oldest(self, folder: Path) -> None:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in folder.glob("*.pt"))
        total = sum(size for _, size, _ in files)
        for _, size, entry in files:
            if total <= self.limit_bytes:
                return
            entry.unlink(missing_ok=True)
            total -= size


def inputs_digest(inputs: Mapping[str, Value]) -> str:
    """A digest of names, dtypes, shapes and bytes of a golden's inputs."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            _add_bytes(digest, value)
        elif isinstance(value, ExpertTensor):
            # What fixes the contents, and one expert's as a witness of the code that makes them.
            digest.update(f"{name}|{value.identity}|".encode())
            _add_bytes(digest, value[len(value) - 1])
        else:
            digest.update(f"{name}|{value!r}|".encode())
    return digest.hexdigest()


def _add_bytes(digest: hashlib._Hash, value: torch.Tensor) -> None:
    digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _load(path: Path | None) -> dict[str, torch.Tensor] | None:
    if path is None or not path.is_file():
        return None
    try:
        kept: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
        path.touch()
    except Exception:  # whatever a damaged file makes the reader raise
        return None
    return kept


def _is_plain(outputs: object) -> bool:
    return isinstance(outputs, dict) and all(isinstance(value, torch.Tensor) for value in outputs.values())
