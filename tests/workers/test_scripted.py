"""The scripted agent plays the oracle call by call, resolves references, and repeats exactly for a seed."""

import pytest

from passhat.workers.agent import Final, TaskView
from passhat.workers.contract import Contract, Step, Task
from passhat.workers.environment import Receipt, ToolResult
from passhat.workers.scripted import ScriptError, play, scripted_agent

VIEW = TaskView("t", "please", {}, "", None)


class Tools:
    """Answers from a table, and notes what it was asked."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.asked = []

    def list(self):
        return ()

    def call(self, name, /, **arguments):
        self.asked.append((name, arguments))
        return self.answers.get(name, ToolResult())


class Context:
    """Notes usage and log lines."""

    def __init__(self, seed=0):
        self.seed = seed
        self.usage = []
        self.lines = []

    def record_usage(self, **usage):
        self.usage.append(usage)

    def log(self, text):
        self.lines.append(text)


def submit(payload, message="done"):
    return Step(tool="submit_result", arguments={"status": "COMPLETED", "message": message, "payload": payload})


def test_a_script_is_played_in_order_and_its_terminal_step_is_called_and_said():
    tools = Tools()
    final = play((Step(tool="get", arguments={"id": "A", "cursor": None}), submit({"x": 1})), tools)
    assert final == Final("COMPLETED", "done", {"x": 1})
    assert tools.asked == [
        ("get", {"id": "A", "cursor": None}),
        ("submit_result", {"status": "COMPLETED", "message": "done", "payload": {"x": 1}}),
    ]


def test_nothing_is_called_after_the_terminal_step():
    tools = Tools()
    play((submit({}), Step(tool="get")), tools)
    assert [name for name, _ in tools.asked] == ["submit_result"]


def test_an_escalation_says_where_the_case_went():
    hand_over = {"case_id": "C", "queue": "supervisor", "reason_code": "unclear_request"}
    step = Step(tool="escalate_case", arguments={**hand_over, "message": None})
    assert play((step,), Tools()) == Final("ESCALATED", "", hand_over)


def test_references_become_values_of_earlier_results_at_any_depth():
    tools = Tools(
        {
            "get": ToolResult({"lines": [{"amount": 7}]}),
            "post": ToolResult(receipt=Receipt("CR-1", "post", "A", "mac")),
        }
    )
    reference = {"$result": [0, "lines", 0, "amount"]}
    script = (
        Step(tool="get"),
        Step(tool="post", arguments={"amount": reference}),
        submit({"parts": [reference, {"receipt": {"$receipt": 1}}]}),
    )
    assert play(script, tools).payload == {"parts": [7, {"receipt": "CR-1"}]}
    assert tools.asked[1] == ("post", {"amount": 7})


def test_a_reference_to_something_that_did_not_come_is_null():
    script = (
        Step(tool="post"),
        submit({"receipt": {"$receipt": 0}, "value": {"$result": [0, "a", 3]}, "later": {"$result": [9, "a"]}}),
    )
    assert play(script, Tools()).payload == {"receipt": None, "value": None, "later": None}


def test_a_mapping_that_merely_mentions_a_reference_is_left_alone():
    value = {"$result": [0, "a"], "other": 1}
    assert play((Step(tool="get"), submit(value)), Tools({"get": ToolResult({"a": 5})})).payload == value


def test_a_script_without_an_ending_is_an_error():
    with pytest.raises(ScriptError, match="submit_result or escalate_case"):
        play((Step(tool="get"),), Tools())


TASK = Task(
    id="t",
    cohort="routine",
    request="please",
    oracle=(Step(tool="get_account", arguments={"account_id": "A"}), submit({"x": 1})),
    contract=Contract(),
)


def test_without_flaws_the_agent_plays_the_oracle():
    tools, ctx = Tools(), Context()
    final = scripted_agent(TASK, {}, b"digest", 7)(VIEW, tools, ctx)
    plain = Tools()
    assert final == play(TASK.oracle, plain)
    assert (tools.asked, ctx.lines) == (plain.asked, [])


def test_usage_is_reported_before_each_call_and_depends_on_the_seed_alone():
    def usage(seed):
        ctx = Context()
        scripted_agent(TASK, {}, b"digest", seed)(VIEW, Tools(), ctx)
        return ctx.usage

    assert usage(7) == usage(7)
    assert usage(7) != usage(8)
    for turn, used in enumerate(usage(7)):
        noise = used["tokens_in"] - 600 - 150 * turn
        assert 0 <= noise < 256
        assert used["tokens_out"] == 40 + noise % 16
        assert round(used["cost_usd"] * 1_000_000) == 3 * used["tokens_in"] + 15 * used["tokens_out"]
    assert len(usage(7)) == 2


def test_the_flaws_of_a_run_are_logged_and_shape_its_calls():
    tools, ctx = Tools(), Context()
    with pytest.raises(ScriptError):  # this toolbox never stops a loop
        scripted_agent(TASK, {"loop": (1.0, 0.0)}, b"digest", 7)(VIEW, tools, ctx)
    assert ctx.lines == ["flaws of this run: loop"]
    assert tools.asked == [("get_account", {"account_id": "A"})] * 101
