"""From a stage's cases and the command line's overrides to the cases to run."""

from __future__ import annotations

from collections.abc import Sequence

from decode_metadata import start_positions
from harness.case import Case, ModelConfig
from harness.stage import Stage


def expand_cases(
    stage: Stage,
    *,
    model: ModelConfig,
    contexts: Sequence[str] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    starts: Sequence[int] | None = None,
    seed: int = 0,
) -> tuple[Case, ...]:
    """The cases of `stage` on `model`; an override replaces its axis of `stage.cases`.

    `starts` gives one case a seq at exactly these positions, one a request, instead of contexts. A context that
    takes several launches gives one case each, labelled `boundary.0`, `boundary.1`. Raises ValueError naming the
    argument and the value.
    """
    seqs = stage.cases.seq if seq is None else (seq,)
    if starts is not None:
        if contexts:
            raise ValueError(f"starts {_joined(starts)} and context {contexts[0]!r} exclude each other")
        size = len(starts) if batch is None else batch
        return tuple(
            Case(model=model, batch=size, seq=length, starts=tuple(starts), context="starts", seed=seed)
            for length in seqs
        )
    cases = []
    for context in contexts or stage.cases.contexts:
        for size in stage.cases.batch if batch is None else (batch,):
            for length in seqs:
                launches = start_positions(
                    context, family=stage.family, batch=size, seq=length, max_position=model.max_position
                )
                for index, positions in enumerate(launches):
                    label = f"{context}.{index}" if context == "boundary" else context
                    cases.append(Case(model=model, batch=size, seq=length, starts=positions, context=label, seed=seed))
    return tuple(cases)


def case_options(case: Case) -> tuple[str, ...]:
    """The options of `touchstone run` that select exactly this case."""
    options = ["--model", case.model.name, "--batch", str(case.batch), "--seq", str(case.seq)]
    if case.context == "starts" or "." in case.context:
        options += ["--starts", _joined(case.starts)]
    else:
        options += ["--context", case.context]
    if case.seed:
        options += ["--seed", str(case.seed)]
    return tuple(options)


def parse_starts(text: str) -> tuple[int, ...]:
    """`8192,127` as (8192, 127). Raises ValueError naming the text."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"starts must be positions separated by commas, got {text!r}") from None


def _joined(starts: Sequence[int]) -> str:
    return ",".join(str(start) for start in starts)
