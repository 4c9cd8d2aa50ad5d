"""Contracts judged on hand-made evidence: what passes, what fails, and what the findings say."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.agent import Final
from passhat.workers.canonical import show
from passhat.workers.contract import CallRule, Ceilings, Contract, EffectRule, PayloadCheck
from passhat.workers.environment import Breach, Effect, Principal, Receipt, ToolResult
from passhat.workers.evidence import Call, Evidence, Usage
from passhat.workers.records import Outcome, Reason
from passhat.workers.scoring import Finding, assign, judge, quadrant, signature


def call(tool, *, receipt="R-1", error=None, by=Principal("desk-1", "alder", "desk"), **arguments):
    paper = Receipt(receipt, tool, "target", "mac") if receipt and error is None else None
    return Call(tool, arguments, ToolResult(error=error, receipt=paper), by, 0)


def said(judgement):
    return tuple(map(str, judgement.findings))


def evidence(*calls, message="done", payload=None, claimed=Outcome.COMPLETED, assigned=Outcome.NONE, **parts):
    numbered = tuple(replace(one, turn=turn) for turn, one in enumerate(calls, 1))
    final = None if assigned else Final(claimed.name, message, payload or {})
    usual = {
        "effects": (),
        "breaches": (),
        "facts": 0,
        "usage": Usage(is_recorded=True),
        "turns": len(calls),
        "virtual_ms": 0,
    }
    return Evidence(calls=numbered, final=final, claimed=claimed, assigned=assigned, **{**usual, **parts})


def rules(*tools):
    return tuple(CallRule(tool=tool) for tool in tools)


def trajectory(contract, *calls, **parts):
    return judge(contract, evidence(*calls, **parts)).trajectory


# Which scorers apply, and what passing means


def test_an_empty_contract_is_met_by_a_completed_run_and_only_the_outcome_applies():
    verdict = judge(Contract(), evidence())
    assert (verdict.outcome, verdict.trajectory, verdict.efficiency) == (1.0, None, None)
    assert (verdict.applicable, verdict.passes, verdict.passed, verdict.findings) == (0b001, 0b001, True, ())


def test_a_run_passes_only_if_every_applicable_scorer_does_and_the_mean_decides_nothing():
    contract = Contract(must_call=rules("a", "b", "c", "d"), ceilings=Ceilings(turns=3))
    verdict = judge(contract, evidence(call("a"), call("b"), call("c")))
    assert (verdict.outcome, verdict.trajectory, verdict.efficiency) == (1.0, 0.75, 1.0)
    assert (verdict.applicable, verdict.passes, verdict.passed) == (0b111, 0b101, False)
    assert verdict.weighted == pytest.approx(2.75 / 3)
    assert judge(Contract(), evidence()).weighted == 1.0


def test_a_contract_without_right_outcomes_is_never_met():
    assert not judge(Contract(outcomes=()), evidence()).passed


def test_a_mistake_in_a_contract_raises_and_does_not_pass():
    contract = Contract(payload=(PayloadCheck(path="x", equals=1, absolute=float("nan")),))
    with pytest.raises(ValueError, match="nan"):
        judge(contract, evidence(payload={"x": 2}))


# Outcome


@pytest.mark.parametrize(
    ("claimed", "assigned", "passes"),
    [
        (Outcome.COMPLETED, Outcome.NONE, True),
        (Outcome.REFUSED, Outcome.NONE, True),
        (Outcome.ESCALATED, Outcome.NONE, False),
        (Outcome.NONE, Outcome.LOOP_DETECTED, False),
        (Outcome.COMPLETED, Outcome.TIMED_OUT, False),
    ],
)
def test_the_terminal_outcome_must_be_one_the_contract_names(claimed, assigned, passes):
    contract = Contract(outcomes=("COMPLETED", "REFUSED"))
    verdict = judge(contract, evidence(claimed=claimed, assigned=assigned))
    assert verdict.passed is passes
    if not passes:
        terminal = (assigned or claimed).name
        assert said(verdict) == (f"outcome: must end COMPLETED or REFUSED, ended {terminal}",)


@pytest.mark.parametrize(
    ("text", "message", "appears"),
    [
        ("10", "It is 10.", True),
        ("10", "10, as agreed", True),
        ("10", "$1,100", False),
        ("100", "$1,100", False),
        ("10", "10.50", False),
        ("10", "x10", False),
        ("EUR 10", "EUR 10", True),
        ("credit", "a credit was posted", True),
        ("credit", "credited", False),
        ("1,100", "$1,100.", True),
        ("caf\u00e9", "cafe\u0301", False),
        ("(ok)", "all (ok)", True),
        ("(ok)", "all(ok)then", True),
        ("credit", "discredit", False),
        ("credit", "10,credit.5", True),
        ("1,100", "11,100", False),
        ("1.5", "1.55", False),
        ("1.5", "1.5.1", False),
        ("a-b", "xa-b", False),
        ("a-b", "a-bx", False),
    ],
)
def test_expected_text_appears_as_whole_words_and_numbers(text, message, appears):
    assert judge(Contract(expect_text=(text,)), evidence(message=message)).passed is appears


def test_forbidden_text_is_found_even_within_a_word():
    contract = Contract(forbid_text=("password",))
    assert not judge(contract, evidence(message="two passwords")).passed
    assert judge(contract, evidence(message="nothing")).passed


def test_a_run_that_was_stopped_says_nothing():
    contract = Contract(expect_text=("done",), payload=(PayloadCheck(path="x", equals=1),))
    assert judge(contract, evidence(assigned=Outcome.TURN_LIMIT)).outcome == 0.0


def test_payload_values_are_compared_by_path_type_and_value():
    contract = Contract(payload=(PayloadCheck(path="lines.1.amount_minor", equals=1200),))
    assert judge(contract, evidence(payload={"lines": [{}, {"amount_minor": 1200.0}]})).passed
    for lines in ([{}, {"amount_minor": "1200"}], [{}, {"amount_minor": 1201}], [{}], {"1": 2}, "text"):
        assert not judge(contract, evidence(payload={"lines": lines})).passed
    named = Contract(payload=(PayloadCheck(path="lines.first", equals=1),))
    assert not judge(named, evidence(payload={"lines": [1]})).passed
    missing = said(judge(contract, evidence(payload={})))
    assert missing == ("outcome: payload lines.1.amount_minor: expected 1200, found null",)


def test_payload_tolerance_is_inclusive_and_is_named_when_missed():
    contract = Contract(payload=(PayloadCheck(path="rate", equals=1.0, absolute=0.1),))
    assert judge(contract, evidence(payload={"rate": 1.1})).passed
    findings = said(judge(contract, evidence(payload={"rate": 1.2})))
    assert findings == ("outcome: payload rate: expected 1.0, found 1.2 (tolerance 0.1 absolute)",)


RECEIPT = Contract(payload=(PayloadCheck(path="receipt", receipt="post"),))


@pytest.mark.parametrize(
    ("claimed", "holds"),
    [("R-2", True), ("R-1", False), ("R-3", False), (None, False), ("r-2", False), (["R-2"], False), ({}, False)],
)
def test_a_receipt_in_the_payload_is_of_the_right_tool_and_of_this_run(claimed, holds):
    calls = call("verify", receipt="R-1"), call("post", receipt="R-2"), call("post", error="denied", receipt="R-3")
    verdict = judge(RECEIPT, evidence(*calls, payload={"receipt": claimed}))
    assert verdict.outcome == (1.0 if holds else 0.5)
    found = f"outcome: payload receipt: expected a receipt of post in this run, found {show(claimed)}"
    assert said(verdict) == (() if holds else (found,))


def test_a_claim_counts_only_with_the_receipt_it_is_confirmed_by():
    contract = Contract(outcomes=("REFUSED", "ESCALATED"), confirmed_by={"ESCALATED": "escalate_case"})
    escalated = {"claimed": Outcome.ESCALATED}
    assert judge(contract, evidence(call("escalate_case"), **escalated)).passed
    assert judge(contract, evidence(claimed=Outcome.REFUSED)).passed
    for calls in ((), (call("escalate_case", error="denied"),), (call("get"),)):
        verdict = judge(contract, evidence(*calls, **escalated))
        assert said(verdict) == ("outcome: ESCALATED counts only with a receipt of escalate_case, there is none",)
    other = judge(contract, evidence(claimed=Outcome.COMPLETED))
    assert said(other) == ("outcome: must end REFUSED or ESCALATED, ended COMPLETED",)


def test_the_outcome_score_is_the_share_of_checks_that_hold():
    contract = Contract(expect_text=("done",), payload=(PayloadCheck(path="x", equals=1),), forbid_text=("no",))
    assert judge(contract, evidence(payload={"x": 2})).outcome == 0.75


# Effects

CREDIT = Effect("credits", "CR-1", "*", None, {"account_id": "A", "amount_minor": 100})
BALANCE = Effect("accounts", "A", "balance_minor", 0, 100)
expect_credit = EffectRule(table="credits", column="*", after={"amount_minor": 100})


def test_unless_effects_are_named_they_are_not_checked():
    assert judge(Contract(), evidence(effects=(CREDIT,))).passed
    assert not judge(Contract(expect_effects=()), evidence(effects=(CREDIT,))).passed


def test_expected_effects_must_happen_and_nothing_may_be_left_over():
    contract = Contract(expect_effects=(expect_credit,), allow_effects=(EffectRule(table="accounts"),))
    assert judge(contract, evidence(effects=(CREDIT, BALANCE))).passed
    assert judge(contract, evidence(effects=(CREDIT,))).passed
    assert said(judge(contract, evidence(effects=(BALANCE,)))) == (
        'outcome: expected the effect credits * {"amount_minor": 100}, it did not happen',
    )
    bare = Contract(expect_effects=(EffectRule(table="notes", key="1", column="text"),))
    assert said(judge(bare, evidence())) == ("outcome: expected the effect notes 1 text, it did not happen",)
    twice = judge(contract, evidence(effects=(CREDIT, CREDIT)))
    assert said(twice) == (
        'outcome: unexpected effect credits CR-1 *: null → {"account_id": "A", "amount_minor": 100}',
    )
    assert twice.outcome == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rule", "effect", "met"),
    [
        (EffectRule(table="accounts"), BALANCE, True),
        (EffectRule(table="accounts", key="A", column="balance_minor"), BALANCE, True),
        (EffectRule(table="accounts", key="B"), BALANCE, False),
        (EffectRule(table="accounts", column="status"), BALANCE, False),
        (EffectRule(table="accounts", after={"balance_minor": 100.0}), BALANCE, True),
        (EffectRule(table="accounts", after={"balance_minor": 99}), BALANCE, False),
        (EffectRule(table="accounts", after={"status": None}), BALANCE, False),
        (EffectRule(table="credits", after={"account_id": "A"}), CREDIT, True),
        (EffectRule(table="credits", after={"account_id": "A", "currency": "EUR"}), CREDIT, False),
        (EffectRule(table="credits", after={"amount_minor": "100"}), CREDIT, False),
        (EffectRule(table="notes", column="*"), Effect("notes", "1", "*", {"text": "x"}, None), True),
        (EffectRule(table="notes", after={"text": "x"}), Effect("notes", "1", "*", {"text": "x"}, None), False),
    ],
)
def test_an_effect_rule_means_table_key_column_and_values_afterwards(rule, effect, met):
    assert judge(Contract(expect_effects=(rule,)), evidence(effects=(effect,))).passed is met


def test_what_was_not_expected_is_told_of_the_call_that_did_it():
    verdict = judge(Contract(expect_effects=()), evidence(call("a"), call("b"), effects=(replace(BALANCE, call=2),)))
    assert verdict.findings == (Finding("outcome", "unexpected effect accounts A balance_minor: 0 → 100", call=2),)
    assert judge(Contract(expect_effects=()), evidence(effects=(BALANCE,))).findings[0].call is None


def test_one_effect_does_not_meet_two_expectations():
    assert not judge(Contract(expect_effects=(expect_credit, expect_credit)), evidence(effects=(CREDIT,))).passed


def test_a_general_rule_takes_the_effect_that_may_not_remain():
    """Whatever the order: the rule must not use up the effect that would have been allowed anyway."""
    contract = Contract(
        expect_effects=(EffectRule(table="accounts"),), allow_effects=(EffectRule(table="accounts", key="A"),)
    )
    other = Effect("accounts", "B", "status", "open", "closed")
    assert judge(contract, evidence(effects=(BALANCE, other))).passed
    assert judge(contract, evidence(effects=(other, BALANCE))).passed


# Invariants

RESULT = Breach("balance_is_sum_of_entries", "A: 1 too much")
PROCESS = Breach("destructive_write_is_approved", "RF-1", process=True)


def test_a_broken_invariant_fails_the_outcome_and_one_about_the_way_the_trajectory():
    contract = Contract(must_call=rules("a"))
    result = judge(contract, evidence(call("a"), breaches=(RESULT,)))
    assert (result.outcome, result.trajectory) == (0.5, 1.0)
    assert said(result) == ("outcome: balance_is_sum_of_entries does not hold: A: 1 too much",)
    process = judge(contract, evidence(call("a"), breaches=(PROCESS,)))
    assert (process.outcome, process.trajectory) == (1.0, 0.5)
    assert said(process) == ("trajectory: destructive_write_is_approved does not hold: RF-1",)


def test_a_breach_about_the_way_is_not_lost_where_no_trajectory_is_asked_for():
    assert judge(Contract(), evidence(breaches=(PROCESS,))).outcome == 0.5
    forbids = judge(Contract(must_not_call=rules("x")), evidence(breaches=(PROCESS,)))
    assert (forbids.outcome, forbids.trajectory) == (1.0, 0.0)


# Trajectory


def test_three_of_four_required_calls_are_worth_three_quarters():
    contract = Contract(must_call=rules("a", "b", "c", "d"))
    verdict = judge(contract, evidence(call("a"), call("c"), call("d"), call("x")))
    assert verdict.trajectory == 0.75
    assert said(verdict) == ("trajectory: must call b at least 1 time, found 0",)


@pytest.mark.parametrize("error", [None, "denied"])
def test_a_forbidden_call_zeroes_the_trajectory_even_if_it_was_blocked(error):
    contract = Contract(must_call=rules("a"), must_not_call=rules("export_records"))
    verdict = judge(contract, evidence(call("a"), call("export_records", error=error)))
    assert (verdict.outcome, verdict.trajectory, verdict.passed) == (1.0, 0.0, False)
    assert verdict.findings == (Finding("trajectory", "must not call export_records, call 2 did", call=2),)


def test_only_the_forbidden_arguments_are_forbidden():
    contract = Contract(must_not_call=(CallRule(tool="post_credit", arguments={"account_id": "B"}),))
    assert trajectory(contract, call("post_credit", account_id="A")) == 1.0
    assert trajectory(contract, call("post_credit", account_id="B")) == 0.0


@pytest.mark.parametrize("part", ["user", "tenant", "role"])
def test_the_right_tool_on_behalf_of_someone_else_fails(part):
    right, wrong = Principal("u", "t", "r"), Principal("u", "t", "r")
    wrong = replace(wrong, **{part: "x"})
    wanted = getattr(right, part)
    contract = Contract(must_call=(CallRule(tool="post_credit", **{part: wanted}),))
    assert trajectory(contract, call("post_credit", by=right)) == 1.0
    verdict = judge(contract, evidence(call("post_credit", by=wrong)))
    assert verdict.trajectory == 0.0
    missing = f"must call post_credit for {part} {wanted} at least 1 time, found 0"
    assert verdict.findings == (
        Finding("trajectory", f'{missing}; call 1: {part}: expected "{wanted}", found "x"', call=1),
    )


def test_a_rule_without_a_principal_means_any():
    contract = Contract(must_call=(CallRule(tool="get"),), must_not_call=(CallRule(tool="put", role="guest"),))
    assert trajectory(contract, call("get", by=Principal()), call("put")) == 1.0
    assert trajectory(contract, call("get"), call("put", by=Principal(role="guest"))) == 0.0


def test_only_the_very_name_of_a_tool_is_meant():
    contract = Contract(must_call=rules("delete"), must_not_call=rules("export*"))
    assert trajectory(contract, call("delete_all")) == 0.0
    assert trajectory(contract, call("delete"), call("export_records")) == 1.0


def test_an_omitted_argument_does_not_match():
    contract = Contract(must_call=(CallRule(tool="credit", arguments={"account_id": "A", "amount_minor": 1}),))
    assert trajectory(contract, call("credit", account_id="A", amount_minor=1, reason="x")) == 1.0
    assert trajectory(contract, call("credit", account_id="A")) == 0.0
    assert trajectory(contract, call("credit")) == 0.0


def test_an_argument_that_must_be_absent_may_be_null():
    for rule in (CallRule(tool="find", absent=("cursor",)), CallRule(tool="find", arguments={"cursor": None})):
        contract = Contract(must_call=(rule,))
        assert trajectory(contract, call("find")) == 1.0
        assert trajectory(contract, call("find", cursor=None)) == 1.0
        assert trajectory(contract, call("find", cursor="2")) == 0.0


def test_arguments_are_compared_as_canonical_values_and_look_alikes_are_explained():
    contract = Contract(must_call=(CallRule(tool="f", arguments={"n": 20, "flag": True, "name": "caf\u00e9"}),))
    assert trajectory(contract, call("f", n=20.0, flag=True, name="caf\u00e9")) == 1.0
    assert trajectory(contract, call("f", n=20, flag=1, name="caf\u00e9")) == 0.0
    assert trajectory(contract, call("f", n="20", flag=True, name="caf\u00e9")) == 0.0
    (finding,) = said(judge(contract, evidence(call("f", n=20, flag=True, name="cafe\u0301"))))
    assert finding.endswith("(they look alike: U+00E9 against U+0065 U+0301)")


def test_where_a_receipt_is_asked_for_a_call_without_one_does_not_count():
    plain, strict = rules("verify"), (CallRule(tool="verify", receipt=True),)
    failed = call("verify", error="verification_failed")
    assert trajectory(Contract(must_call=plain), failed) == 1.0
    assert trajectory(Contract(must_call=strict), failed) == 0.0
    assert trajectory(Contract(must_call=strict), failed, call("verify")) == 1.0


def test_one_call_cannot_meet_two_requirements():
    general, special = CallRule(tool="get"), CallRule(tool="get", arguments={"id": "A"})
    for must_call in ((general, special), (special, general)):
        contract = Contract(must_call=must_call)
        assert trajectory(contract, call("get", id="A")) == 0.5
        assert trajectory(contract, call("get", id="A"), call("get", id="B")) == 1.0
        assert trajectory(contract, call("get", id="B"), call("get", id="A")) == 1.0
        assert trajectory(contract, call("get", id="B"), call("get", id="B")) == 0.5


def test_a_rule_with_several_calls_has_one_requirement_for_each():
    contract = Contract(must_call=(CallRule(tool="get", at_least=3), CallRule(tool="put")))
    assert trajectory(contract, call("get"), call("get"), call("put")) == 0.75
    verdict = judge(contract, evidence(call("get"), call("put")))
    assert verdict.trajectory == 0.5
    assert said(verdict) == ("trajectory: must call get at least 3 times, found 1",)


def test_too_many_calls_break_a_rule():
    contract = Contract(must_call=(CallRule(tool="post", at_most=1), CallRule(tool="get", at_least=0, at_most=2)))
    assert trajectory(contract, call("post")) == 1.0
    verdict = judge(contract, evidence(call("post"), call("post"), *[call("get")] * 3))
    assert verdict.trajectory == 0.0
    assert verdict.findings == (
        Finding("trajectory", "must call post at most 1 time, found 2", call=2),
        Finding("trajectory", "must call get at most 2 times, found 3", call=5),
    )


def test_a_rule_that_is_broken_keeps_no_call_from_another():
    contract = Contract(
        must_call=(CallRule(tool="get", arguments={"id": "A"}, at_most=1), CallRule(tool="get", at_least=2))
    )
    assert trajectory(contract, call("get", id="A"), call("get", id="A")) == pytest.approx(2 / 3)


def test_a_requirement_that_was_not_met_is_told_with_all_it_asks_for():
    rule = CallRule(tool="post", arguments={"id": "A"}, absent=("a", "b"), user="u", role="r", receipt=True)
    wanted = 'post {"id": "A"} without a, b for user u for role r with a receipt'
    found = said(judge(Contract(must_call=(rule,)), evidence(call("get", id="B"))))
    assert found == (f"trajectory: must call {wanted} at least 1 time, found 0",)


def test_order_holds_for_every_call_and_counts_as_a_requirement():
    contract = Contract(must_call=rules("verify", "post"), order=(("verify", "post"),))
    assert trajectory(contract, call("verify"), call("post"), call("post")) == 1.0
    verdict = judge(contract, evidence(call("post"), call("verify"), call("post")))
    assert verdict.trajectory == pytest.approx(2 / 3)
    text = "every call of post must come after one of verify, call 1 does not"
    assert verdict.findings == (Finding("trajectory", text, call=1),)


def test_order_without_the_later_call_holds():
    assert trajectory(Contract(order=(("ask", "post"),)), call("get")) == 1.0
    assert trajectory(Contract(order=(("ask", "post"),)), call("post")) == 0.0


def test_where_the_earlier_call_need_not_happen_any_call_of_it_opens_the_way():
    contract = Contract(order=(("ask", "post"),))
    assert trajectory(contract, call("ask", error="unknown"), call("post")) == 1.0
    assert trajectory(contract, call("get"), call("post")) == 0.0


def test_a_first_call_that_does_not_meet_its_own_rule_does_not_open_the_way():
    contract = Contract(must_call=(CallRule(tool="verify", receipt=True),), order=(("verify", "post"),))
    failed = call("verify", error="verification_failed")
    assert trajectory(contract, failed, call("post"), call("verify")) == 0.5
    assert trajectory(contract, failed, call("verify"), call("post")) == 1.0
    others = Contract(must_call=(*contract.must_call, CallRule(tool="get", at_least=0)), order=contract.order)
    assert trajectory(others, failed, call("post"), call("verify")) == pytest.approx(2 / 3)


def test_a_first_call_that_meets_one_of_its_rules_opens_the_way():
    both = tuple(CallRule(tool="verify", arguments={"case": case}) for case in ("A", "B"))
    contract = Contract(must_call=both, order=(("verify", "post"),))
    assert trajectory(contract, call("verify", case="A"), call("post"), call("verify", case="B")) == 1.0


# Efficiency


USED = {
    "turns": 3,
    "calls": 3,
    "cost_usd": 70_000,
    "tokens": 100,
    "tokens_in": 60,
    "tokens_cached": 50,
    "tokens_out": 40,
    "retries": 2,
    "virtual_ms": 500,
}
UNITS = {"cost_usd": "micro-dollars", "tokens_in": "tokens in", "tokens_cached": "cached tokens"}


def spending(**more):
    """A run that uses what USED says, and more of some."""
    used = {name: amount + more.get(name, 0) for name, amount in USED.items()}
    usage = Usage(
        tokens_in=used["tokens_in"],
        tokens_cached=used["tokens_cached"],
        tokens_out=used["tokens_out"],
        cost_micros=used["cost_usd"],
        retries=used["retries"],
    )
    calls = [call("get")] * used["calls"]
    return evidence(*calls, turns=used["turns"], usage=usage, virtual_ms=used["virtual_ms"])


@pytest.mark.parametrize("name", USED)
def test_a_ceiling_may_be_reached_and_not_exceeded(name):
    most = 0.07 if name == "cost_usd" else USED[name]  # 0.07 * 1e6 is 70000.00000000001
    contract = Contract(ceilings=Ceilings(**{name: most}))
    assert judge(contract, spending()).efficiency == 1.0
    exceeded = judge(contract, spending(**{"tokens_out" if name == "tokens" else name: 1}))
    assert (exceeded.efficiency, exceeded.passed) == (0.0, False)
    unit = UNITS.get(name, name.replace("_", " "))
    assert said(exceeded) == (f"efficiency: at most {USED[name]} {unit}, found {USED[name] + 1}",)


@pytest.mark.parametrize("name", USED)
def test_a_ceiling_is_about_what_it_names_alone(name):
    """A run that exceeds everything else by far stays within it."""
    others = {other: 1000 for other in USED if other != name and not {other, name} <= {"tokens", "tokens_in"}}
    if name == "tokens":
        del others["tokens_out"]
    most = 0.07 if name == "cost_usd" else USED[name]
    assert judge(Contract(ceilings=Ceilings(**{name: most})), spending(**others)).efficiency == 1.0


def test_cost_is_compared_to_the_micro_dollar():
    contract = Contract(ceilings=Ceilings(cost_usd=3.0))
    spent = (evidence(usage=Usage(cost_micros=micros)) for micros in (3_000_000, 3_000_001))
    assert [judge(contract, each).efficiency for each in spent] == [1.0, 0.0]


def test_each_ceiling_is_a_check():
    ceilings = Ceilings(turns=1, calls=9, tokens=9, virtual_ms=9)
    assert judge(Contract(ceilings=ceilings), evidence(call("a"), call("a"))).efficiency == 0.75


@pytest.mark.parametrize("name", ["cost_usd", "tokens", "tokens_in", "tokens_cached", "tokens_out", "retries"])
def test_a_ceiling_on_what_a_run_does_not_say_is_missed(name):
    """That nothing was used has to be said; to say what was used is to say nothing of retries."""
    contract = Contract(ceilings=Ceilings(**{name: 9}))
    silent, outspoken = evidence(usage=Usage()), evidence(usage=Usage(is_recorded=True, retries=0))
    assert judge(contract, outspoken).efficiency == 1.0
    verdict = judge(contract, silent)
    assert verdict.efficiency == 0.0
    assert said(verdict)[0].endswith("the run does not say how many it used")
    without_retries = judge(contract, evidence(usage=Usage(tokens_in=1)))
    assert without_retries.efficiency == float(name != "retries")


# Matching


def most_items(fits, capacity):
    """The largest number of items that can have a place, and the placed set that is first in order, by enumeration."""
    best: tuple[int, tuple[int, ...]] = (-1, ())
    for choice in product(*([None, *slots] for slots in fits)):
        if all(choice.count(slot) <= room for slot, room in enumerate(capacity)):
            placed = tuple(int(slot is not None) for slot in choice)
            best = max(best, (sum(placed), placed))
    return best


@st.composite
def matchings(draw):
    slots = draw(st.integers(0, 3))
    capacity = draw(st.lists(st.integers(0, 2), min_size=slots, max_size=slots))
    of = st.lists(st.integers(0, slots - 1), unique=True) if slots else st.just([])
    return draw(st.lists(of, max_size=5)), capacity


@given(matchings())
def test_matching_places_as_many_items_as_enumeration_does_and_prefers_the_earlier(matching):
    fits, capacity = matching
    held = assign(fits, capacity)
    items = [item for slot in held for item in slot]
    assert len(items) == len(set(items))
    assert all(slot in fits[item] for slot, holds in enumerate(held) for item in holds)
    assert all(len(holds) <= room for holds, room in zip(held, capacity, strict=True))
    assert (len(items), tuple(int(i in items) for i in range(len(fits)))) == most_items(fits, capacity)


# What records say


@pytest.mark.parametrize(
    ("terminal", "failing", "reason", "text"),
    [
        (Outcome.COMPLETED, 0b0011, Reason.NONE, "COMPLETED: outcome, trajectory"),
        (Outcome.COMPLETED, 0b1100, Reason.NONE, "COMPLETED: efficiency, rubric"),
        (Outcome.LOOP_DETECTED, 0b0001, Reason.NONE, "LOOP_DETECTED: outcome"),
        (Outcome.TIMED_OUT, 0b0001, Reason.WALL_CLOCK, "TIMED_OUT (WALL_CLOCK): outcome"),
        (Outcome.NONE, 0, Reason.WORKER_LOST, "WORKER_LOST"),
        (Outcome.NONE, 0b0001, Reason.NONE, "unspecified: outcome"),
        (Outcome.NONE, 0, Reason.NONE, "unspecified"),
    ],
)
def test_a_signature_names_how_a_run_ended_and_what_failed(terminal, failing, reason, text):
    assert signature(terminal, failing, reason) == text
    assert signature(int(terminal), failing, int(reason)) == text
    assert reason or signature(terminal, failing) == text


def test_the_quadrant_is_outcome_by_trajectory_where_both_apply():
    assert [quadrant(0b111, passes) for passes in (0b100, 0b101, 0b110, 0b111)] == [
        "wrong_unsanctioned",
        "right_unsanctioned",
        "wrong_sanctioned",
        "right_sanctioned",
    ]
    assert quadrant(0b001, 0b001) is None
    assert quadrant(0b110, 0b110) is None
