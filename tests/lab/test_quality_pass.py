"""The teacher-forced pass: exact it is the model; with a codec every row reads what the rule says, in any chunks."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quality_kit import Bent, method, model, reads_packed, tokens  # noqa: E402
from tiny_engine import ROOT  # noqa: E402
from tiny_models import tiny  # noqa: E402

from kvist.errors import BadValue, CapacityError, ModelError, StateError, UsageError  # noqa: E402
from kvist.kernels.codec import registry  # noqa: E402
from kvist.lab.quality.ask import QualityAsk, Text  # noqa: E402
from kvist.lab.quality.attention import MixedAttention  # noqa: E402
from kvist.lab.quality.forward import Pace, Pass  # noqa: E402
from kvist.lab.quality.learn import calibrate  # noqa: E402
from kvist.lab.quality.method import Method  # noqa: E402
from kvist.lab.quality.protect import NOTHING, Protection  # noqa: E402
from kvist.lab.quality.run import Runner  # noqa: E402
from kvist.model.rope import RopeTable, rotate  # noqa: E402

FAMILIES = ["llama", "mistral-window", "gemma2", "gemma3", "qwen3", "smollm3-nope"]
PACE = Pace(chunk_tokens=17, query_rows=5)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny products: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def logits(run):
    return torch.cat([out.clone() for _, out in run.run()])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pace", [PACE, Pace(45, 64), Pace(1, 1)], ids=str)
def test_the_exact_pass_is_the_model(family, pace):
    known = tiny(family, ROOT)
    run = Pass(model(family), known.tokens, pace=pace)
    assert (logits(run) - known.logits).abs().max() < 1e-4
    assert run.reads.packed == 0 < run.reads.all


@pytest.fixture
def calls(monkeypatch):
    """Every call of the attention: (place of the layer's K, q, out, first position, what the kernel is given)."""
    seen, real = [], MixedAttention.__call__

    def spy(self, q, pool, view, work, *, scale, softcap, out):
        real(self, q, pool, view, work, scale=scale, softcap=softcap, out=out)
        group = int(self._group_of_block[work.blocks[-1]])
        kept = self._layers[group, view.k_offset_bytes]
        first = [max(0, int(f)) for f in work.row_first]
        seen.append((kept, q.clone(), out.clone(), int(work.row_end[0]) - 1, first, scale, softcap))

    monkeypatch.setattr(MixedAttention, "__call__", spy)
    return seen


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gemma2"])
@pytest.mark.parametrize("rule", ["none", "recent=6,sinks=2", "cell=8,sinks=3", "cell=8"])
@pytest.mark.parametrize("units", [(1, 1), (4, 1), (8, 3)])
def test_every_row_reads_what_a_plain_loop_says(calls, family, rule, units):
    rule = Protection.parse(rule)
    codecs = Bent(0.3, units[0]), Bent(0.2, units[1], always_packed=units[1] == 3)
    known = method(*codecs)
    logits(Pass(model(family), tokens(37), known, rule, PACE))
    assert calls
    for kept, q, out, start, first, scale, softcap in calls:
        sides = [(stream.exact, plainly_packed(stream.exact, codec), codec)
                 for stream, codec in zip((kept.k, kept.v), codecs, strict=True)]  # fmt: skip
        for i in (0, len(q) // 2, len(q) - 1):
            expected = plain_row(q[i], start + i, first[i], sides, rule, scale, softcap)
            assert (out[i] - expected).abs().max() < 1e-4


def plainly_packed(exact, codec):
    """All whole units at once; what is left over stays as it is."""
    whole = exact.shape[1] // codec.unit_tokens * codec.unit_tokens
    where = type("", (), {"start": 0})
    return torch.cat([codec.encode(exact[:, :whole], where).codes, exact[:, whole:]], dim=1)


def plain_row(q, m, first, sides, rule, scale, softcap):
    rows = []
    group = len(q) // len(sides[0][0])
    for head, query in enumerate(q):
        k, v = (
            torch.stack([(packed if reads_packed(rule, codec, m, n) else exact)[head // group, n]
                         for n in range(first, m + 1)])
            for exact, packed, codec in sides
        )  # fmt: skip
        scores = k @ query * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        rows.append(scores.softmax(0) @ v)
    return torch.stack(rows)


@pytest.mark.parametrize("rule", ["none", "recent=9,sinks=4", "cell=16,sinks=4"])
@pytest.mark.parametrize("unit", [1, 8])
def test_how_a_text_is_cut_does_not_matter(rule, unit):
    known, rule, text = method(Bent(0.3, unit), Bent(0.3)), Protection.parse(rule), tokens(100)
    runs = [
        Pass(model("llama"), text, known, rule, pace)
        for pace in (Pace(100, 100), Pace(33, 7), Pace(64, 64), Pace(1, 1))
    ]
    outs = [logits(run) for run in runs]
    assert all((out - outs[0]).abs().max() < 1e-3 for out in outs[1:])
    assert len({(run.reads.packed, run.reads.all) for run in runs}) == 1
    assert (outs[0] - logits(Pass(model("llama"), text))).abs().max() > 0.1


@pytest.mark.parametrize("unit", [1, 8])
def test_every_row_is_encoded_once_and_in_its_place(unit):
    seen = []

    class Watched(Bent):
        def encode(self, x, where):
            seen.append((where.start, where.start + x.shape[1]))
            return super().encode(x, where)

    run = Pass(model("llama"), tokens(50), method(Watched(0.1, unit), Bent()), NOTHING, PACE)
    logits(run)
    whole = 50 // unit * unit
    cuts = sorted({0, whole, *(end // unit * unit for end in (17, 34))})
    assert sorted(seen) == sorted(list(zip(cuts, cuts[1:], strict=False)) * len(run.layers))
    assert all(kept.k.packed_tokens == whole and kept.v.packed_tokens == 50 for kept in run.layers.values())


def quality_of(known, rule="none", family="llama", count=96):
    ask = QualityAsk([known], [count], [Text("t", tuple(tokens(count)))], [Protection.parse(rule)], Pace(40, 16))
    noise, row = Runner(model(family), ask).rows()
    assert noise.noise and not row.noise and noise.quality.kl_mean < 1e-9
    return row


def test_a_codec_that_loses_nothing_changes_nothing():
    row = quality_of(Method("f32", *registry.parse("f32")))
    assert abs(row.quality.kl_mean) < 1e-9 and row.quality.same_top1 == row.quality.decided_top1 == 1.0
    assert row.cost.packed_reads == 1.0 and row.cost.k_distortion == 0 and abs(row.quality.delta_ln_ppl) < 1e-5


def test_a_worse_codec_has_a_larger_kl():
    rows = [quality_of(method(Bent(bend))) for bend in (0.0005, 0.005, 0.05)]
    for mild, strong in zip(rows, rows[1:], strict=False):
        assert 0 < 3 * mild.quality.kl_mean < strong.quality.kl_mean
        assert 0 < mild.cost.k_distortion < strong.cost.k_distortion
    kl = [quality_of(Method(name, *registry.parse(name)), family="qwen3").quality.kl_mean for name in ("f16", "int8t")]
    assert 0 < kl[0] < kl[1]


def test_protection_that_covers_everything_is_exact():
    for rule in ("recent=96", "cell=96"):
        row = quality_of(method(Bent(0.3)), rule)
        assert abs(row.quality.kl_mean) < 1e-9 and row.cost.packed_reads == 0
    row = quality_of(method(Bent(0.3, always_packed=True)), "cell=96,sinks=4")
    assert row.quality.kl_mean > 1e-3 and row.cost.packed_reads == 1 and row.share_tokens == 1


def test_a_unit_that_is_not_whole_is_exact():
    row = quality_of(method(Bent(0.3, unit_tokens=128)))
    assert abs(row.quality.kl_mean) < 1e-9 and row.cost.packed_reads == 0


def test_means_are_those_of_the_rows():
    known, text = model("llama"), tokens(64)
    found = calibrate(known, b"weights", text, PACE)
    run = Pass(known, text, pace=PACE)
    logits(run)
    assert found.tokens == 64 and set(found.layers) == set(run.layers) and found.model == b"weights"
    for index, kept in run.layers.items():
        assert torch.allclose(found.layers[index].mean, kept.k.exact.mean(dim=1), atol=1e-5)
        table = RopeTable(known.spec.layers[index].attention.rope)
        table.cover(64)
        back = table_back(kept.k.exact.transpose(0, 1), table).mean(dim=0)
        assert torch.allclose(found.layers[index].pre_rope_mean, back, atol=1e-4)
        assert not torch.allclose(found.layers[index].mean, back, atol=1e-2)


def table_back(k, table):
    """Keys [tokens, heads, dim] of positions 0, 1, ... before rotation: by the table's own angles, the other way."""
    other = RopeTable.__new__(RopeTable)
    other.cos, other.sin = table.cos, -table.sin
    return rotate(k, other, torch.arange(len(k)))


@pytest.mark.parametrize("spec", ["sm4/lm4", "ms4/lm4"])
def test_means_must_be_learnt_first(spec):
    known, tall = Method(spec, *registry.parse(spec)), model("llama")
    with pytest.raises(UsageError, match=f"{spec} needs the mean.*--calibrate FILE"):
        known.check_mean()
    found = calibrate(tall, b"", tokens(32), PACE)
    layer, needs = tall.spec.layers[1], known.k.needs
    given = QualityAsk([known], [64]).given(found).methods[0]
    given.check_mean()
    assert given.where(layer, "k", 3).mean is found.layers[1].mean_for(needs)
    assert given.where(layer, "v", 3).mean is None and given.where(layer, "k", 3).start == 3


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="300 tokens do not fit a model that sees 256"):
        Pass(model("llama"), tokens(300))
    with pytest.raises(UsageError, match="0 tokens"):
        Pass(model("llama"), [])
    with pytest.raises(ModelError, match="layer 0 keeps latent"):
        Pass(model("deepseek-v3"), tokens(8))
    with pytest.raises(BadValue, match="for V: bent0.1 is not one"):
        Pass(model("llama"), tokens(8), method(Bent(), Bent(sides=("k",))))
    with pytest.raises(BadValue, match="layer 0, one number is too few"):
        method(Bent(), type("Picky", (Bent,), {"refuses": lambda self, dim: "one number is too few"})()).check_shapes(
            model("llama").spec
        )
    with pytest.raises(BadValue, match="at most 256"):
        QualityAsk([method(Bent())], [300]).check(model("llama").spec, calibrated=True)
    with pytest.raises(BadValue, match="length"):
        QualityAsk([method(Bent())], [1])
    with pytest.raises(UsageError, match="nothing"):
        QualityAsk([], [8])


def test_numbers_that_are_none_end_the_run():
    with pytest.raises(StateError, match="bentnan, none gives numbers that are not finite on t"):
        quality_of(method(Bent(float("nan"))))


def test_logits_that_do_not_fit_the_disk_are_refused_before_anything_is_written(monkeypatch):
    free = 96 * 131 * 4
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("", (), {"free": free}))
    quality_of(method(Bent()), count=96)
    with pytest.raises(CapacityError, match="97 tokens take.*TMPDIR"):
        quality_of(method(Bent()), count=97)


def test_progress_is_in_tokens_and_ends_at_all():
    told = []
    texts = [Text("a", tuple(tokens(40))), Text("b", tuple(tokens(40, 9)))]
    ask = QualityAsk([method(Bent())], [40, 20], texts, [NOTHING, NOTHING], PACE)
    rows = list(Runner(model("llama"), ask, lambda *step: told.append(step)).rows())
    assert [(r.text, r.length_tokens, r.noise) for r in rows] == [
        (text, n, noise) for text in "ab" for n in (20, 40) for noise in (True, False)
    ]
    assert told[-1][:2] == (360, 360) and sorted(told) == told and len(told[0][2]) > 10
