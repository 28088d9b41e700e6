"""Results kept on disk by the content that they follow from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.files import write_atomically


@dataclass(frozen=True)
class ContentCache:
    """JSON values by key. `folder=None` keeps nothing; a file that is missing, damaged or unwritable counts as
    absent."""

    folder: Path | None

    def get(self, key: str) -> Any | None:
        """The value of `key`, None if there is none."""
        if self.folder is None:
            return None
        try:
            return json.loads(self._path(self.folder, key).read_text())
        except (OSError, ValueError):
            return None

    def put(self, key: str, value: Any) -> None:
        """Keep `value`, which must be of JSON's types."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(self.folder, key), json.dumps(value))
        except OSError:
            return

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"


def content_key(*parts: str) -> str:
    """A digest of the parts, in which none can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()


def source_digest(files: Iterable[Path]) -> str:
    """A digest of source files' names and contents."""
    return content_key(*(f"{path.name}\n{path.read_text()}" for path in sorted(files)))
