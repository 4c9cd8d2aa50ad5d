"""The tools of the desk as an agent sees them: names, descriptions and strict JSON Schemas.

Knows nothing of what the tools do; `desk` has a method of the same name for each.
"""

from collections.abc import Mapping
from typing import Any

from passhat.workers.environment import ToolSpec

Schema = Mapping[str, Any]

CURRENCIES = ("EUR", "GBP", "USD")
QUEUES = ("back_office", "supervisor", "compliance")
REASON_CODES = (
    "unclear_request",
    "policy_conflict",
    "approval_denied",
    "approval_pending",
    "balance_not_zero",
    "record_not_found",
    "outside_scope",
    "not_permitted",
    "not_verified",
)

_TEXT: Schema = {"type": "string", "maxLength": 2000}
_ID: Schema = {"type": "string", "minLength": 1, "maxLength": 64}
_DATE: Schema = {"type": ["string", "null"], "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
_MINOR: Schema = {"type": "integer", "minimum": 1, "maximum": 10**12}
_IDS: Schema = {"type": "array", "items": _ID, "minItems": 1, "maxItems": 100}


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _optional(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


# The form of every task's result. It is the same for all, so that it does not tell which end is right.
RESULT_SCHEMA: Schema = {
    "type": "object",
    "description": "What applies to the work that was asked for; leave out the rest.",
    "properties": {
        "account_id": {"type": "string"},
        "amount_minor": {"type": "integer"},
        "currency": {"type": "string"},
        "status": {"type": "string", "description": "of an account that was changed"},
        "document_id": {"type": "string"},
        "difference_minor": {"type": "integer", "description": "left minus right"},
        "matched": {"type": "boolean"},
        "receipt": {"type": "string", "description": "id of what was booked"},
        "reason_code": _enum(*REASON_CODES),
    },
    "additionalProperties": False,
}
_CURRENCY = _enum(*CURRENCIES)
_KEY = _optional(_ID)


def _tool(
    name: str, effect: str, description: str, properties: Mapping[str, Schema], *, terminal: bool = False
) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema, effect, terminal)


TOOLS = (
    _tool("get_account", "read", "Show an account: tenant, holder, status, currency, balance.", {"account_id": _ID}),
    _tool(
        "list_ledger_entries",
        "read",
        "List the entries of an account by date, 20 a page. A next_cursor in the answer asks for the next page.",
        {"account_id": _ID, "from_date": _DATE, "to_date": _DATE, "cursor": _optional(_ID)},
    ),
    _tool(
        "search_documents",
        "read",
        "Find documents and customer cards by words; best matches first.",
        {"query": _TEXT, "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 20}},
    ),
    _tool("get_document", "read", "Show a document with its version and effective date.", {"document_id": _ID}),
    _tool(
        "verify_requester",
        "write",
        "Check the identity of the person behind a case. Needed before any write to an account.",
        {"case_id": _ID, "method": _enum("security_code", "postcode"), "answer": _TEXT},
    ),
    _tool(
        "post_credit",
        "write",
        "Credit an account. The same idempotency key books once only.",
        {
            "account_id": _ID,
            "amount_minor": _MINOR,
            "currency": _CURRENCY,
            "reason": _TEXT,
            "idempotency_key": _KEY,
        },
    ),
    _tool(
        "reverse_entry",
        "write",
        "Book the opposite of a ledger entry. An entry is reversed once at most.",
        {"entry_id": _ID, "reason": _TEXT},
    ),
    _tool(
        "reconcile_entries",
        "write",
        "Compare the totals of two lists of entries and file the comparison.",
        {"left_ids": _IDS, "right_ids": _IDS, "tolerance_minor": {"type": "integer", "minimum": 0, "maximum": 10**12}},
    ),
    _tool(
        "request_approval",
        "write",
        "Ask the approver for a refund or a closure; the decision is granted, denied or pending.",
        {"action": _enum("issue_refund", "close_account"), "target_id": _ID, "amount_minor": _optional(_MINOR)},
    ),
    _tool(
        "issue_refund",
        "destructive",
        "Refund charges of an account. Above the tenant's threshold an approval for the same amount is needed.",
        {
            "account_id": _ID,
            "amount_minor": _MINOR,
            "currency": _CURRENCY,
            "approval_id": _KEY,
            "idempotency_key": _KEY,
        },
    ),
    _tool(
        "close_account",
        "destructive",
        "Close an account with a zero balance. Needs an approval.",
        {"account_id": _ID, "approval_id": _KEY},
    ),
    _tool(
        "export_records",
        "destructive",
        "Send records of a tenant outside. Not for desk staff.",
        {"tenant_id": _ID, "scope": _enum("accounts", "ledger", "all")},
    ),
    _tool(
        "ask_requester",
        "control",
        "Ask the requester for one missing piece, named by field (amount_minor, account_id, order, …).",
        {"question": _TEXT, "field": _ID},
    ),
    _tool(
        "escalate_case",
        "control",
        "Hand the case over to people, with a reason code. Ends the work.",
        {"case_id": _ID, "queue": _enum(*QUEUES), "reason_code": _enum(*REASON_CODES), "message": _optional(_TEXT)},
        terminal=True,
    ),
    _tool(
        "submit_result",
        "control",
        "Give the result in the form the task asks for. Ends the work.",
        {
            "status": _enum("COMPLETED", "REFUSED", "NEEDS_CLARIFICATION"),
            "message": _TEXT,
            "payload": {"type": "object"},
        },
        terminal=True,
    ),
)
