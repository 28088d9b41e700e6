"""From a stage's cases and the command line's overrides to the cases to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    ep: Sequence[int] = (1,),
    experts: int | None = None,
    split: Sequence[int] = (),
    routing: str | None = None,
) -> tuple[Case, ...]:
    """The cases of `stage` on `model`; an override replaces its axis of `stage.cases`.

    `starts` gives one case a seq at exactly these positions, one a request, instead of contexts. A context that
    takes several launches gives one case each, labelled `boundary.0`, `boundary.1`. The layouts `ep` of one case follow
    one another; `split` is for the layout that has as many ranks. Raises ValueError naming the argument and the value.
    """
    for number, ranks in enumerate(ep):
        if ranks in ep[:number]:
            raise ValueError(f"ep must not name a layout twice, got {_joined(ep)}")
    if split and len(split) not in ep:
        raise ValueError(f"split {_joined(split)} is for ep {len(split)}, and ep is {_joined(ep)}")
    if not stage.collective and tuple(ep) != (1,):
        raise ValueError(f"ep must be 1 for stage {stage.name!r}, which runs on one rank, got {_joined(ep)}")

    routings = stage.cases.routings if routing is None else (routing,)
    if routing is not None and routing not in stage.cases.routings:
        raise ValueError(
            f"routing must be one that stage {stage.name!r} has ({', '.join(stage.cases.routings)}), got {routing!r}"
        )

    def layouts(**common: Any) -> list[Case]:
        return [
            Case(
                model=model, seed=seed, experts=experts, ep=ranks, routing=spread,
                split=tuple(split) if len(split) == ranks else (), **common,
            )
            for spread in routings
            for ranks in ep
        ]  # fmt: skip

    seqs = stage.cases.seq if seq is None else (seq,)
    if starts is not None:
        if contexts:
            raise ValueError(f"starts {_joined(starts)} and context {contexts[0]!r} exclude each other")
        size = len(starts) if batch is None else batch
        positions = tuple(starts)
        return tuple(
            case for length in seqs for case in layouts(batch=size, seq=length, starts=positions, context="starts")
        )
    cases: list[Case] = []
    for context in contexts or stage.cases.contexts:
        for size in stage.cases.batch if batch is None else (batch,):
            for length in seqs:
                launches = start_positions(
                    context, family=stage.family, batch=size, seq=length, max_position=model.max_position
                )
                for index, positions in enumerate(launches):
                    label = f"{context}.{index}" if context == "boundary" else context
                    cases += layouts(batch=size, seq=length, starts=positions, context=label)
    return tuple(cases)


def case_options(case: Case, *, beside: Case | None = None) -> tuple[str, ...]:
    """The options of `touchstone run` that select exactly this case, and before it the layout of `beside`."""
    options = ["--model", case.model.name, "--batch", str(case.batch), "--seq", str(case.seq)]
    if case.context == "starts" or "." in case.context:
        options += ["--starts", _joined(case.starts)]
    else:
        options += ["--context", case.context]
    if case.routing != "uniform":
        options += ["--routing", case.routing]
    if case.seed:
        options += ["--seed", str(case.seed)]
    if case.experts is not None:
        options += ["--experts", str(case.experts)]
    ranks = [case.ep] if beside is None else [beside.ep, case.ep]
    if ranks != [1]:
        options += ["--ep", _joined(ranks)]
    if case.split:
        options += ["--split", _joined(case.split)]
    return tuple(options)


def parse_integers(name: str, text: str, *, what: str) -> tuple[int, ...]:
    """`8192,127` as (8192, 127). Raises ValueError naming the argument, what it holds and the text."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} must be {what} separated by commas, got {text!r}") from None


def parse_starts(text: str) -> tuple[int, ...]:
    """`8192,127` as (8192, 127). Raises ValueError naming the text."""
    return parse_integers("starts", text, what="positions")


def _joined(starts: Sequence[int]) -> str:
    return ",".join(str(start) for start in starts)
