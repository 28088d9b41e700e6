"""Expert weights that are made when they are looked at, one expert at a time.

256 experts of DeepSeek-V4 FLASH are 6.4 GB: a golden that walks expert by expert needs only those that have tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from golden.fill import PerExpert
from golden.specs import TensorSpec

__all__ = ["ExpertTensor", "is_lazy"]


def is_lazy(spec: TensorSpec) -> bool:
    """Whether the spec's contents are kept as an `ExpertTensor`: an input by expert, filled an expert at a time."""
    return spec.role == "in" and spec.sharding == "experts" and isinstance(spec.fill, PerExpert)


class ExpertTensor:
    """Reads as a tensor [experts, ...] that is indexed by expert: `w[e]` makes expert e's part, anew each time."""

    def __init__(self, spec: TensorSpec) -> None:
        assert isinstance(spec.fill, PerExpert)
        self._spec = spec
        self._fill = spec.fill

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._spec.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self._spec.dtype

    def __len__(self) -> int:
        return self._spec.shape[0]

    def __getitem__(self, expert: int) -> torch.Tensor:
        """Expert `expert`'s part, contiguous. Raises IndexError past the last, TypeError for anything but a number."""
        if isinstance(expert, bool) or not isinstance(expert, int):
            raise TypeError(f"{self._spec.name} is indexed by one expert's number, got {expert!r}")
        if not 0 <= expert < len(self):
            raise IndexError(f"{self._spec.name} has {len(self)} experts, got {expert}")
        part = TensorSpec(
            self._spec.name, self._spec.shape[1:], self._spec.dtype, self._fill.one(expert),
            low=self._spec.low, high=self._spec.high,
        )  # fmt: skip
        return part.create()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[expert] for expert in range(len(self)))

    @property
    def identity(self) -> str:
        """What fixes the contents, given the code that makes them."""
        fill = self._fill
        made = f"{fill.made.__module__}.{fill.made.__qualname__}"
        return f"{made}{fill.key}{sorted(fill.options.items())}{fill.experts}{self._spec.shape}{self._spec.dtype}"
