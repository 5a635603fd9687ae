"""The timeline has what ran in each step, for those who watch, and nothing for others."""

from __future__ import annotations

from itertools import pairwise

from kukri.runtime.engine.timeline import StepPart, Timeline

from .scheduling.test_many import few, new_engine


def test_it_has_every_row_of_every_step():
    engine = new_engine()
    engine.timeline.watch()
    prompts = [[i, i + 1, i + 2] * (i + 1) for i in range(3)]
    generations = [engine.submit(prompt, few(5)) for prompt in prompts]
    for generation in generations:
        list(generation)
    steps = engine.timeline.since()
    assert [step.number for step in steps] == list(range(len(steps)))
    assert [sum(part.rows for part in step.parts) for step in steps] == engine.machine.fed
    for sequence, prompt in enumerate(prompts, 1):
        parts = [part for step in steps for part in step.parts if part.sequence == sequence]
        ends = [part.first + part.rows - part.drafted + part.right for part in parts]
        assert [part.first for part in parts] == [0, *ends[:-1]]  # each begins where the last one ended
        assert ends[-1] >= len(prompt) + 4
        assert sum(part.rows for part in parts if part.kind == "prefill") == len(prompt)
        assert [part.pages for part in parts] == [-(-(part.first + part.rows) // 4) for part in parts]
    assert all(step.seconds > 0 for step in steps)
    assert all(a.start + a.seconds <= b.start for a, b in pairwise(steps))
    assert {len(step.parts) for step in steps} > {3}
    assert engine.timeline.since(steps[-2].number) == steps[-1:]


def test_nothing_is_kept_unless_somebody_watches():
    engine = new_engine()
    list(engine.submit([1, 2, 3], few(5)))
    assert engine.timeline.since() == []
    engine.timeline.watch(-1)
    list(engine.submit([1, 2, 3], few(5)))
    assert engine.timeline.since() == []
    assert not engine.timeline.watching


def test_only_the_last_steps_are_kept():
    timeline = Timeline(steps=3)
    timeline.watch()
    for i in range(5):
        timeline.note(0.0, 0.1, [StepPart(1, "decode", i, 1, 0, 0, 1)], 1, 0, 9)
    assert [step.number for step in timeline.since()] == [2, 3, 4]
    assert [step.parts[0].first for step in timeline.since(3)] == [4]
