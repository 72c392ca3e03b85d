"""The optimum is what looking at every earlier sequence finds."""

from hypothesis import given
from hypothesis import strategies as st

from kvist.bench.optimum import ID_BYTES, Known, common_bytes, id_key, optimum_tokens

ids = st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), min_size=1, max_size=12)


def shared(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(st.lists(st.tuples(ids, st.one_of(st.none(), st.just("withdrawn"), ids)), max_size=25))
def test_against_brute_force(requests):
    known, seen = Known(), []
    for prompt, then in requests:
        expected = min(max((shared(prompt, old) for old in seen), default=0), len(prompt) - 1)
        key = id_key(prompt)
        found = known.sent(key) // ID_BYTES
        assert optimum_tokens(found, len(prompt), len(prompt)) == expected
        if then == "withdrawn":
            known.withdrawn(key)
            continue
        seen.append(prompt)
        if then is not None:
            known.answered(key, id_key([*prompt, *then]))
            seen[-1] = [*prompt, *then]


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_bytes(head, a, b):
    assert common_bytes(head + a, head + b) == shared(head + a, head + b)


def test_keys_sort_as_ids_do():
    rows = [[1], [0, 5], [256], [255, 9], [65_536, 1], [2, 2, 2]]
    assert [list(r) for r in sorted(rows)] == sorted(rows, key=id_key)


def test_the_last_token_is_always_computed():
    assert optimum_tokens(10, 10, 10) == 9
    assert optimum_tokens(0, 10, 10) == 0
    assert optimum_tokens(0, 0, 0) == 0


def test_text_is_scaled_to_the_tokens_that_usage_tells():
    assert optimum_tokens(300, 600, 100) == 50
    assert optimum_tokens(5, 600, 100) == 0
