"""The row store against a plain dictionary, and the laws its users rely on."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.environment import Effect
from passhat.workers.rows import Base, RowStore

TABLES = {
    "accounts": {"A1": {"balance": 10, "status": "open"}, "A0": {"balance": 0, "status": "open"}},
    "entries": {"E1": {"account": "A1", "amount": 10}},
}

_keys = st.sampled_from(["A0", "A1", "A2", "A3"])
_tables = st.sampled_from(["accounts", "entries"])
_rows = st.fixed_dictionaries({"balance": st.integers(0, 2), "status": st.sampled_from(["open", "closed"])})
_operations = st.lists(st.tuples(_tables, _keys, st.none() | _rows), max_size=12)


def fresh() -> RowStore:
    return RowStore(Base.of(copy.deepcopy(TABLES)))


def put(store: RowStore, table: str, key: str, row: dict[str, Any] | None) -> None:
    """Bring a row to a value (None: gone) by whichever operation leads there."""
    there = store.get(table, key)
    if row is None:
        if there is not None:
            store.delete(table, key)
    elif there is None:
        store.insert(table, key, row)
    else:
        store.update(table, key, **row)


def contents(store: RowStore) -> dict[str, dict[str, Any]]:
    return {table: dict(store.scan(table)) for table in TABLES}


@given(_operations)
def test_rows_read_back_like_a_plain_dictionary(operations: list[Any]) -> None:
    store, model = fresh(), copy.deepcopy(TABLES)
    for table, key, row in operations:
        put(store, table, key, row)
        if row is None:
            model[table].pop(key, None)
        else:
            model[table][key] = {**model[table].get(key, {}), **row}
    assert contents(store) == model


@given(_operations)
def test_state_alone_decides_effects_and_digest(operations: list[Any]) -> None:
    """A detour through other values leaves no trace: going straight to the final rows gives the same."""
    detour, straight = fresh(), fresh()
    for table, key, row in operations:
        put(detour, table, key, row)
    for table in reversed(list(TABLES)):
        final = dict(detour.scan(table))
        for key in ("A3", "A2", "A1", "A0", "E1"):
            if straight.get(table, key) != final.get(key):
                put(straight, table, key, final.get(key))
    assert straight.effects() == detour.effects()
    assert straight.digest() == detour.digest()
    assert [list(straight.scan(t)) for t in TABLES] == [list(detour.scan(t)) for t in TABLES]


@given(_operations)
def test_effects_lead_from_the_base_to_the_final_rows(operations: list[Any]) -> None:
    store, rebuilt = fresh(), copy.deepcopy(TABLES)
    for table, key, row in operations:
        put(store, table, key, row)
    effects = store.effects()
    for effect in effects:
        rows = rebuilt[effect.table]
        if effect.column != "*":
            assert rows[effect.key].get(effect.column) == effect.before
            rows[effect.key][effect.column] = effect.after
        elif effect.after is None:
            assert rows.pop(effect.key) == effect.before
        else:
            assert effect.before is None
            rows[effect.key] = effect.after
    assert rebuilt == contents(store)
    assert effects == sorted(effects, key=lambda e: (e.table, e.key, e.column))


def test_a_row_put_back_leaves_no_difference() -> None:
    store = fresh()
    untouched = store.digest()
    store.update("accounts", "A1", balance=11)
    assert store.digest() != untouched
    store.update("accounts", "A1", balance=10)
    assert (store.effects(), store.digest(), store.changed("accounts")) == ([], untouched, [])
    store.insert("entries", "E2", {"account": "A1", "amount": 1})
    store.delete("entries", "E2")
    assert (store.effects(), store.digest()) == ([], untouched)


def test_effects_name_each_changed_column_and_whole_rows_by_a_star() -> None:
    store = fresh()
    store.update("accounts", "A1", status="closed", balance=0)
    store.delete("accounts", "A0")
    store.insert("entries", "E2", {"account": "A1", "amount": -10})
    assert store.effects() == [
        Effect("accounts", "A0", "*", {"balance": 0, "status": "open"}, None),
        Effect("accounts", "A1", "balance", 10, 0),
        Effect("accounts", "A1", "status", "open", "closed"),
        Effect("entries", "E2", "*", None, {"account": "A1", "amount": -10}),
    ]


def test_changed_columns_come_in_order() -> None:
    store = RowStore(Base.of({"t": {"k": dict.fromkeys("hgfedcba", 0)}}))
    store.update("t", "k", **dict.fromkeys("dhbfacge", 1))
    assert "".join(effect.column for effect in store.effects()) == "abcdefgh"


def test_scan_gives_the_base_in_its_order_then_new_rows_by_key() -> None:
    store = fresh()
    store.insert("accounts", "A9", {"balance": 9})
    store.insert("accounts", "A5", {"balance": 5})
    store.update("accounts", "A1", balance=1)
    assert [key for key, _ in store.scan("accounts")] == ["A1", "A0", "A5", "A9"]
    assert [key for key, _ in store.inserted("accounts")] == ["A5", "A9"]
    assert store.changed("accounts") == ["A1"]
    assert list(store.scan("nothing")) == []


def test_runs_share_a_base_that_none_of_them_changes() -> None:
    base = Base.of(copy.deepcopy(TABLES))
    one, other = RowStore(base), RowStore(base)
    one.update("accounts", "A1", balance=99)
    one.delete("entries", "E1")
    assert contents(other) == TABLES
    assert base.tables == TABLES
    assert Base.of(TABLES).digest == base.digest


def test_different_bases_have_different_digests_for_equal_differences() -> None:
    other = {**TABLES, "entries": {}}
    assert RowStore(Base.of(TABLES)).digest() != RowStore(Base.of(other)).digest()
    assert len(fresh().digest()) == 8


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda store: store.insert("accounts", "A1", {}), "accounts has a row 'A1' already"),
        (lambda store: store.update("accounts", "A7", balance=1), "accounts has no row 'A7'"),
        (lambda store: store.delete("accounts", "A7"), "accounts has no row 'A7'"),
    ],
)
def test_writes_that_do_not_fit_raise(operation: Any, message: str) -> None:
    with pytest.raises(KeyError, match=message):
        operation(fresh())


# Which call did it


def test_an_effect_carries_the_call_that_last_touched_its_row_or_column() -> None:
    store = fresh()
    store.update("accounts", "A0", balance=1)
    store.begin(1)
    store.insert("accounts", "A2", {"balance": 5})
    store.update("accounts", "A1", balance=11)
    store.begin(2)
    store.update("accounts", "A1", status="closed")
    store.update("accounts", "A2", balance=6)
    store.begin(3)
    store.delete("entries", "E1")
    assert {(effect.key, effect.column): effect.call for effect in store.effects()} == {
        ("A0", "balance"): None,  # before the first call
        ("A1", "balance"): 1,
        ("A1", "status"): 2,
        ("A2", "*"): 2,
        ("E1", "*"): 3,
    }


def test_a_row_that_was_deleted_and_put_back_was_touched_by_the_call_that_put_it_back() -> None:
    store = fresh()
    store.begin(1)
    store.update("accounts", "A1", balance=11)
    store.begin(2)
    store.delete("accounts", "A1")
    store.begin(3)
    store.insert("accounts", "A1", {"balance": 12, "status": "open"})
    assert [(effect.column, effect.call) for effect in store.effects()] == [("balance", 3)]


def test_the_digest_of_changes_covers_what_one_call_put_in_order_and_nothing_else() -> None:
    store, other = fresh(), fresh()
    store.begin(1)
    nothing = store.changes_digest()
    store.update("accounts", "A1", balance=11)
    first = store.changes_digest()
    store.begin(2)
    assert store.changes_digest() == nothing
    store.update("accounts", "A0", balance=1)
    other.begin(7)
    other.update("accounts", "A0", balance=1)
    assert (len(first), first != nothing, store.changes_digest()) == (16, True, other.changes_digest())


@given(_operations, st.integers(1, 9))
def test_call_numbers_change_neither_the_digest_nor_which_effects_there_are(operations: list[Any], call: int) -> None:
    plain, numbered = fresh(), fresh()
    for number, (table, key, row) in enumerate(operations):
        numbered.begin(call + number)
        put(plain, table, key, row)
        put(numbered, table, key, row)
    assert plain.digest() == numbered.digest()
    effects = numbered.effects()
    assert [replace(effect, call=None) for effect in effects] == plain.effects()
    assert all(effect.call is not None and call <= effect.call < call + len(operations) for effect in effects)
