"""Values are compared by type and value, element by element; equal values have equal canonical bytes."""

import json
import math
from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.canonical import canonical, canonical_json, code_points, difference, look_alike, same_value, show


@dataclass
class Point:
    x: int


EXPECTED = {"n": 20, "flag": True, "price": 9.5}
E_ACUTE, E_COMBINED = "caf\u00e9", "cafe\u0301"

scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-3, 3).map(float)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
)
values = st.recursive(
    scalars | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def respell(value, rng):
    """The same value written otherwise: keys in another order, null entries added, small whole numbers as floats."""
    if isinstance(value, dict):
        items = [(key, respell(item, rng)) for key, item in value.items()]
        items += [(f"null-{rng.randrange(3)}", None)]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [respell(item, rng) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53:
        return float(value)
    return value


def test_whole_floats_are_equal_to_integers_in_value_and_in_canonical_bytes():
    """C21 (a)"""
    actual = {"n": 20.0, "flag": True, "price": 9.5}
    assert same_value(EXPECTED, actual)
    assert canonical_json(canonical(actual)) == canonical_json(canonical(EXPECTED))
    assert canonical_json(canonical(actual)) == b'{"flag":true,"n":20,"price":9.5}'


def test_whole_numbers_have_no_tolerance_of_their_own():
    """C21 (b)"""
    assert not same_value(EXPECTED, {"n": 21, "flag": True, "price": 9.5})


def test_a_boolean_is_not_a_number():
    """C21 (c)"""
    assert not same_value(EXPECTED, {"n": 20, "flag": 1, "price": 9.5})
    assert not same_value(1, True)
    assert not same_value(False, 0, absolute=1)
    assert same_value(False, False)


def test_a_text_of_digits_is_not_a_number():
    """C21 (d)"""
    assert not same_value(EXPECTED, {"n": "20", "flag": True, "price": 9.5})
    assert not same_value("20", 20)


def test_the_order_of_keys_does_not_matter():
    """C21 (e)"""
    actual = {"price": 9.5, "flag": True, "n": 20}
    assert same_value(EXPECTED, actual)
    assert canonical_json(canonical(actual)) == canonical_json(canonical(EXPECTED))


def test_arguments_that_share_a_prefix_or_a_length_differ():
    """C22"""
    expected, actual = {"port": 80, "kinds": ["namespaces"]}, {"port": 8080, "kinds": ["nodes"]}
    assert not same_value(expected["port"], actual["port"])
    assert not same_value(expected["kinds"], actual["kinds"])
    assert not same_value(["a"], ["a", "b"])
    assert not same_value(["a", "b"], ["b", "a"])
    assert not same_value("ab", ["a", "b"])


def test_texts_in_different_unicode_forms_differ_and_the_difference_shows_code_points():
    """C22, the Unicode pair"""
    assert not same_value(E_ACUTE, E_COMBINED)
    assert canonical_json(canonical(E_ACUTE)) != canonical_json(canonical(E_COMBINED))
    assert difference({"name": E_ACUTE}, {"name": E_COMBINED}) == (
        f'expected {{"name": "{E_ACUTE}"}}, found {{"name": "{E_COMBINED}"}}'
        " (they look alike: U+00E9 against U+0065 U+0301)"
    )


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("t", "t ", "nothing against U+0020"),
        ("pay\u200bment", "payment", "U+200B against nothing"),
        ("a\u00a0b", "a b", "U+00A0 against U+0020"),
        ("\uff11", "1", "U+FF11 against U+0031"),
        ("Total", "total", "U+0054 against U+0074"),
    ],
)
def test_blanks_case_and_invisible_characters_matter_and_are_shown(one, other, shown):
    assert not same_value(one, other)
    assert look_alike(one, other)
    assert look_alike(other, one)
    assert difference(one, other).endswith(f"(they look alike: {shown})")


def test_texts_that_look_different_are_not_said_to_look_alike():
    assert difference("late", "early") == 'expected "late", found "early"'
    assert not look_alike("same", "same")


def test_code_points_are_named_in_order():
    assert code_points("e\u0301\U0001f600") == "U+0065 U+0301 U+1F600"


def test_null_entries_are_the_same_as_no_entries_at_any_depth():
    assert same_value({"a": {"b": None}}, {"a": {}})
    assert same_value({"a": 1}, {"a": 1, "cursor": None})
    assert canonical({"a": None, "b": [{"c": None}, None]}) == {"b": [{}, None]}
    assert not same_value([None], [])
    assert same_value(None, None)
    assert not same_value(None, 0)


def test_an_extra_entry_makes_a_mapping_different():
    assert not same_value({"a": 1}, {"a": 1, "b": 2})
    assert not same_value({"a": 1, "b": 2}, {"a": 1})
    assert not same_value({}, [])


def test_nan_equals_nothing_and_infinity_is_near_nothing():
    assert not same_value(math.nan, math.nan)
    assert not same_value(math.nan, math.nan, absolute=math.inf)
    assert not same_value(1.0, math.nan, absolute=1e9)
    assert not same_value(1.0, math.inf, absolute=1e308)


@pytest.mark.parametrize(
    ("expected", "actual", "absolute", "relative", "same"),
    [
        (1, 1.1, 0.1, 0, True),  # the floats are 0.10000000000000009 apart
        (1, 1.1000001, 0.1, 0, False),
        (0.3, 0.1 + 0.2, 0, 0, False),
        (0.3, 0.1 + 0.2, 1e-9, 0, True),
        (200, 202, 0, 0.01, True),
        (-200, -202, 0, 0.01, True),
        (200, 203, 0, 0.01, False),
        (200, 203, 3, 0.01, True),  # the larger of the two
        (20, 21, 1, 0, True),
        (20, "20", 1, 0, False),
        (10**400, 10**400 + 1, 1, 0, True),
        (10**400, 1.0, 1, 0, False),
        (2**53, float(2**53), 0, 0, True),
        (2**53 + 1, float(2**53), 0, 0, False),
    ],
)
def test_tolerances_are_inclusive_and_compare_numbers_as_written(expected, actual, absolute, relative, same):
    assert same_value(expected, actual, absolute=absolute, relative=relative) is same
    assert same_value({"x": [expected]}, {"x": [actual]}, absolute=absolute, relative=relative) is same


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**63, -(2**63) - 1, "\ud800", {"\udfff": 1}, [math.nan]],
    ids=repr,
)
def test_what_no_record_can_hold_is_refused_as_a_value(value):
    with pytest.raises(ValueError, match=r"JSON|64 bits|surrogates"):
        canonical(value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {1, 2}}, b"bytes", object()], ids=["key", "set", "bytes", "object"])
def test_what_is_not_json_is_refused_as_a_type(value):
    with pytest.raises(TypeError):
        canonical(value)


@given(values, st.randoms(use_true_random=False))
def test_spelling_changes_neither_the_value_nor_its_canonical_bytes(value, rng):
    other = respell(value, rng)
    assert same_value(value, other)
    assert same_value(other, value)
    assert canonical_json(canonical(value)) == canonical_json(canonical(other))


@given(values, values)
def test_values_are_the_same_exactly_when_their_canonical_bytes_are(one, other):
    assert same_value(one, other) == (canonical_json(canonical(one)) == canonical_json(canonical(other)))


@given(values)
def test_canonical_values_stay_as_they_are(value):
    once = canonical(value)
    assert canonical_json(canonical(once)) == canonical_json(once)
    assert same_value(once, value)


def test_whole_floats_too_large_for_a_record_stay_floats():
    assert canonical(2.0**63) == 2.0**63
    assert isinstance(canonical(2.0**63), float)
    assert canonical(-(2.0**63)) == -(2**63)
    assert isinstance(canonical(-(2.0**63)), int)


def test_shown_values_are_bounded():
    assert show("x" * 1000, limit=10) == '"xxxxxxxxx… (1002 characters)'
    assert show({"b": 1, "a": {2}}) == '{"a": "{2}", "b": 1}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=[])),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_canonical_json_is_what_the_standard_library_writes(value: object) -> None:
    """Whole numbers of any size and lone surrogates too; floats are written as shortly as they can be."""
    plain = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert canonical_json(value) == plain.encode("utf-8", "surrogatepass")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_written_so_that_it_is_read_back(number: float) -> None:
    assert json.loads(canonical_json([number])) == [number]


@pytest.mark.parametrize("value", [{1, 2}, object(), date(2026, 1, 1), Point(1), b"x"])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json([value])


def test_what_only_derives_from_a_json_type_becomes_that_type() -> None:
    """Nothing of an agent's own classes goes on into the environment, where it could be pickled or called."""

    class Colour(str):
        __slots__ = ()

    class Count(int):
        __slots__ = ()

    class Share(float):
        __slots__ = ()

    given = canonical({"colour": Colour("red"), "count": Count(3), "share": Share(0.5)})
    assert given == {"colour": "red", "count": 3, "share": 0.5}
    assert [type(value) for value in given.values()] == [str, int, float]
