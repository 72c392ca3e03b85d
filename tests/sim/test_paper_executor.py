"""Paper memory is a judge: each kind of wrong letter must be seen."""

from dataclasses import replace

import pytest

from kvist.errors import BadValue
from kvist.ids import NULL_BLOCK
from kvist.sim.draws import Cell, PaperModel, extend, mix
from kvist.sim.memory import PaperFault
from kvist.spec.sampling import Sampling
from kvist.step import Chunk, NewSequence, StepPlan, TableChange
from paperwork import LAYOUTS, B, Outcome, ask, drive, paper, recorded, words


class Forger:
    """Passes plans on after changing one."""

    def __init__(self, inner, change):
        self.inner, self.change, self.hits = inner, change, 0

    def execute(self, plan):
        forged = self.change(plan)
        self.hits += forged != plan
        return self.inner.execute(forged)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def forged(layout, change, requests, **more):
    p = paper(layout, **more)
    p.engine.executor = Forger(p.engine.executor, change)
    try:
        for request in requests:
            p.engine.add(request)
            out = Outcome()
            while not p.engine.idle:
                out.note(p.engine.step())
    finally:
        assert p.engine.executor.hits, "the forgery never happened"


PROMPT = words(3 * B + 5)
TWICE = [ask("a", PROMPT, 20), ask("b", PROMPT, 20)]


def no_copies(plan):
    return replace(plan, copies=())


def swapped_copy(plan):
    return replace(plan, copies=tuple(replace(c, src=c.dst, dst=c.src) for c in plan.copies))


def poison_first_block(plan):
    return replace(plan, fresh=(*plan.fresh, 0)) if plan.step == 6 else plan


def wrong_block(plan):
    if plan.step == 1 or not plan.tables:
        return plan
    return replace(plan, tables=tuple(replace(t, append=tuple(reversed(t.append))) for t in plan.tables))


def lost_table(plan):
    return replace(plan, tables=()) if plan.step > 1 else plan


def early_null(plan):
    return replace(plan, tables=tuple(replace(t, null_to=t.null_to + 1) if t.null_to else t for t in plan.tables))


def wrong_token(plan):
    return replace(plan, chunks=tuple(replace(c, tokens=(*c.tokens[:-1], c.tokens[-1] ^ 1)) for c in plan.chunks))


def shifted(plan):
    return replace(plan, chunks=tuple(replace(c, start=c.start + 1) for c in plan.chunks))


def empty_chunk(plan):
    return replace(plan, chunks=tuple(replace(c, tokens=()) for c in plan.chunks), samples=())


def wrong_row(plan):
    return replace(plan, samples=tuple(replace(s, row=0) for s in plan.samples))


def wrong_index(plan):
    return replace(plan, samples=tuple(replace(s, index=s.index + 1) for s in plan.samples))


@pytest.mark.parametrize(
    "change,layout",
    [
        (no_copies, "full"),
        (swapped_copy, "full"),
        (poison_first_block, "full"),
        (wrong_block, "full"),
        (lost_table, "full"),
        (early_null, "hybrid"),
        (wrong_token, "full"),
        (shifted, "full"),
        (empty_chunk, "full"),
        (wrong_row, "full"),
        (wrong_index, "full"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_forged_letters_are_seen(change, layout):
    with pytest.raises(PaperFault):
        forged(layout, change, TWICE if layout == "full" else [ask("a", PROMPT, 60)], budget=2 * B)


def test_the_same_requests_pass_unforged():
    for layout in ("full", "hybrid"):
        drive(paper(layout, budget=2 * B), *TWICE)


def test_writing_into_anothers_block_is_seen():
    p = paper(budget=64)
    (a,) = p.engine.add(ask("a", words(20, 1), 30))
    (b,) = p.engine.add(ask("b", words(20, 2), 30))
    for _ in range(3):
        p.engine.step()
    memory = p.engine.executor.memory
    memory._tables[b][0][1] = memory._tables[a][0][1]
    with pytest.raises(PaperFault, match="should hold"):
        p.engine.step()


def test_null_and_missing_blocks_are_seen():
    p = paper(budget=64)
    (a,) = p.engine.add(ask("a", words(20, 1), 30))
    p.engine.step()
    memory = p.engine.executor.memory
    memory._tables[a][0][0] = NULL_BLOCK
    with pytest.raises(PaperFault, match="block 0 of its table is -1"):
        p.engine.step()


def test_blocks_are_fresh_before_they_are_written():
    with pytest.raises(PaperFault, match="never made fresh"):
        forged("full", lambda plan: replace(plan, fresh=()), TWICE)


def test_unknown_cells_differ_by_history_not_by_token_alone():
    one, two = [], []
    extend(one, (1, 2, 3))
    extend(two, (4, 2, 3))
    assert [c.token for c in one[1:]] == [c.token for c in two[1:]]
    assert all(a.history != b.history for a, b in zip(one, two, strict=True))
    again = []
    extend(again, (1,))
    extend(again, (2, 3))
    assert again == one
    assert mix(1, 2) != mix(2, 1)


CELL = Cell(3, 5, 12345)


def new(stop_ids=(), **knobs):
    return NewSequence(0, (1,), Sampling(**knobs), stop_ids)


def test_draws_depend_on_history_and_when_not_greedy_on_seed_and_index():
    model = PaperModel(vocab=1000)
    greedy = {model.draw(CELL, new(temperature=0.0, seed=s), i)[0] for s in range(5) for i in range(5)}
    assert len(greedy) == 1
    drawn = {model.draw(CELL, new(seed=s), i)[0] for s in range(5) for i in range(5)}
    assert len(drawn) > 20
    assert model.draw(CELL, new(seed=1), 4) == model.draw(CELL, new(seed=1), 4)


def test_stop_ids_are_barred_below_min_tokens_and_eos_has_its_share():
    model = PaperModel(vocab=10, eos_id=3, eos_probability=0.5)
    cells = [Cell(0, 0, mix(i, i)) for i in range(400)]
    share = sum(model.draw(c, new(temperature=0.0), 0)[0] == 3 for c in cells) / 400
    assert 0.45 < share < 0.65
    barred = {model.draw(c, new(stop_ids=(3, 4), min_tokens=2), 1)[0] for c in cells}
    assert not barred & {3, 4} and len(barred) == 8


@pytest.mark.parametrize("knobs", [{"vocab": 1}, {"eos_probability": 1.5}])
def test_bad_models_are_refused(knobs):
    with pytest.raises(BadValue):
        PaperModel(**knobs)


def test_unchecked_paper_gives_the_same_tokens():
    requests = [ask(f"r{i}", words(40, i), 30) for i in range(4)]
    checked = drive(paper("hybrid", blocks=20), *requests)
    assert drive(paper("hybrid", blocks=20, check=False), *requests).tokens == checked.tokens


def test_layouts_used_here_have_several_rules():
    assert len(LAYOUTS["hybrid"].groups) > 1
    sizes = {g.tokens_per_block for g in LAYOUTS["uneven"].groups}
    assert len(sizes) == 2


def test_recorder_sees_every_plan():
    p = paper()
    log = recorded(p)
    drive(p, ask("r", words(5), 3))
    assert [plan.step for plan in log.plans] == [1, 2, 3]


def executor():
    p = paper(blocks=8)
    return p.engine.executor


def two_prompts(tables, chunks):
    new = tuple(NewSequence(i, (1, 2, 3, 4), Sampling()) for i in range(2))
    return StepPlan(1, new=new, fresh=(0, 1), tables=tables, chunks=chunks)


def test_reading_what_is_only_written_in_the_same_step_is_seen():
    """All rows of a step are computed at once: no row may count on another's write (blocks matched too early)."""
    tables = (TableChange(0, 0, 0, (0,)), TableChange(1, 0, 0, (0,)))
    with pytest.raises(PaperFault, match="poison"):
        executor().execute(two_prompts(tables, (Chunk(0, 0, (1, 2, 3, 4)), Chunk(1, 3, (4,)))))
    apart = (TableChange(0, 0, 0, (0,)), TableChange(1, 0, 0, (1,)))
    executor().execute(two_prompts(apart, (Chunk(0, 0, (1, 2, 3, 4)), Chunk(1, 0, (1, 2, 3, 4)))))


def test_overwriting_another_row_of_the_same_step_is_seen():
    tables = (TableChange(0, 0, 0, (0,)), TableChange(1, 0, 0, (0,)))
    new = (NewSequence(0, (1, 2), Sampling()), NewSequence(1, (5, 6), Sampling()))
    plan = StepPlan(1, new=new, fresh=(0,), tables=tables, chunks=(Chunk(0, 0, (1, 2)), Chunk(1, 0, (5, 6))))
    with pytest.raises(PaperFault, match="should hold"):
        executor().execute(plan)
