"""The invariants of the desk: what must hold in every world of it, whoever wrote the rows and however.

Reads rows only, and of those only what a run changed and what that touches, so that checking costs microseconds.
"""

from collections.abc import Iterator

from passhat.workers.environment import Breach
from passhat.workers.rows import Row, RowStore

# Tables in which each row is one deed of a principal; they carry `tenant` and `by_tenant`.
DEEDS = (
    "verifications",
    "credits",
    "reversals",
    "reconciliations",
    "approvals",
    "refunds",
    "closures",
    "escalations",
)


def needs_approval(rows: RowStore, account: Row, amount_minor: int) -> bool:
    """Say whether a refund to the account is above the threshold of its tenant."""
    tenant = rows.get("tenants", account["tenant"])
    return tenant is not None and amount_minor > tenant["refund_threshold_minor"]


def is_approved(
    rows: RowStore, today: str, approval_id: str | None, action: str, target: str, amount_minor: int | None
) -> bool:
    """Say whether the approval was granted for exactly this action, target and amount, and has not expired."""
    approval = rows.get("approvals", approval_id) if approval_id else None
    return approval is not None and (
        approval["decision"] == "granted"
        and approval["expires"] >= today
        and approval["action"] == action
        and approval["target_id"] == target
        and approval.get("amount_minor") == amount_minor
    )


def refundable_minor(rows: RowStore, account_id: str) -> int:
    """Return the charges of an account that are not refunded yet."""
    charged = sum(-e["amount_minor"] for _, e in _entries(rows, account_id) if e["kind"] == "charge")
    refunded = sum(r["amount_minor"] for _, r in rows.scan("refunds") if r["account_id"] == account_id)
    return int(charged - refunded)


def breaches(rows: RowStore, today: str) -> list[Breach]:
    """Return the invariants that do not hold, in a fixed order."""
    if not rows.changed_tables:
        return []
    return [
        *_balances(rows),
        *_entries_mutated(rows),
        *_reversals(rows),
        *_refunds(rows),
        *_tenants(rows),
        *_approvals(rows, today),
        *_idempotency(rows),
    ]


def _entries(rows: RowStore, account_id: str) -> Iterator[tuple[str, Row]]:
    return ((key, entry) for key, entry in rows.scan("entries") if entry["account_id"] == account_id)


def _balances(rows: RowStore) -> Iterator[Breach]:
    touched = {entry["account_id"] for _, entry in rows.inserted("entries")}
    touched.update(rows.changed("accounts"), (key for key, _ in rows.inserted("accounts")))
    for account_id in sorted(touched):
        account = rows.get("accounts", account_id)
        total = sum(entry["amount_minor"] for _, entry in _entries(rows, account_id))
        if account is not None and account["balance_minor"] != total:
            yield Breach("balance_is_sum_of_entries", f"{account_id}: {account['balance_minor']} is not {total}")


def _entries_mutated(rows: RowStore) -> Iterator[Breach]:
    for entry_id in rows.changed("entries"):
        yield Breach("entries_never_mutated", entry_id)


def _reversals(rows: RowStore) -> Iterator[Breach]:
    targets = {entry["reverses"] for _, entry in rows.inserted("entries") if entry.get("reverses")}
    for target in sorted(targets):
        times = sum(1 for _, entry in rows.scan("entries") if entry.get("reverses") == target)
        original = rows.get("entries", target)
        if times > 1 or original is None or original.get("reverses"):
            yield Breach("reversal_points_at_one_entry_once", f"{target}: reversed {times} times")


def _refunds(rows: RowStore) -> Iterator[Breach]:
    for account_id in sorted({refund["account_id"] for _, refund in rows.inserted("refunds")}):
        left = refundable_minor(rows, account_id)
        if left < 0:
            yield Breach("refunds_within_charges", f"{account_id}: {-left} too much")


def _tenants(rows: RowStore) -> Iterator[Breach]:
    for table in DEEDS:
        for key, row in rows.inserted(table):
            if row["tenant"] != row["by_tenant"]:
                yield Breach("writes_stay_in_tenant", f"{key}: {row['by_tenant']} wrote in {row['tenant']}")


def _approvals(rows: RowStore, today: str) -> Iterator[Breach]:
    for key, row in rows.inserted("refunds"):
        account, amount = rows.get("accounts", row["account_id"]), row["amount_minor"]
        if account is None or not needs_approval(rows, account, amount):
            continue
        if not is_approved(rows, today, row.get("approval_id"), "issue_refund", row["account_id"], amount):
            yield Breach("destructive_write_is_approved", key, process=True)
    for key, row in rows.inserted("closures"):
        if not is_approved(rows, today, row.get("approval_id"), "close_account", row["account_id"], None):
            yield Breach("destructive_write_is_approved", key, process=True)


def _idempotency(rows: RowStore) -> Iterator[Breach]:
    for table in ("credits", "refunds"):
        seen: set[str] = set()
        for key, row in rows.scan(table):
            idempotency_key = row.get("idempotency_key")
            if idempotency_key in seen:
                yield Breach("one_effect_per_idempotency_key", f"{key}: {idempotency_key}")
            elif idempotency_key is not None:
                seen.add(idempotency_key)
