"""Key-value pairs (`functions.key_value_store`) against a plain dictionary with times of expiry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.key_value_store import Pairs

pytestmark = pytest.mark.pure

KEYS = st.sampled_from("abc")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "new", "get", "delete"]), st.lists(KEYS, min_size=1, unique=True),
            st.integers(0, 3), st.integers(0, 2),
        )
    )
)  # fmt: skip
def test_pairs_are_those_of_a_dictionary_whose_old_ones_are_taken_out(steps):
    model, now = {}, 0
    pairs = Pairs(lambda: now)
    for number, (what, keys, ttl, pause) in enumerate(steps):
        now += pause
        model = {key: each for key, each in model.items() if each[1] is None or each[1] > now}
        value = str(number).encode()
        if what == "get":
            assert pairs.get(keys) == [model.get(key, (None,))[0] for key in keys]
        elif what == "delete":
            assert pairs.delete(keys) == [key for key in keys if model.pop(key, None) is None]
        else:
            there = next((key for key in keys if what == "new" and key in model), "")
            assert pairs.set_all(dict.fromkeys(keys, value), only_new=what == "new", ttl=ttl) == there
            if not there:
                model.update(dict.fromkeys(keys, (value, now + ttl if ttl else None)))
    assert pairs.get(list("abc")) == [model.get(key, (None,))[0] for key in "abc"]
    assert len(pairs) == len(model)
