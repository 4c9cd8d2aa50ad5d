"""Ambiguous work of the desk: something is missing, and only the requester may know it; guessing is wrong."""

from collections.abc import Callable, Mapping

from passhat.workers.desk_parts import (
    WRITES,
    Draft,
    Work,
    called,
    contract_of,
    credited,
    escalated,
    looked,
    receipt,
    requester,
    result,
    verified,
    wrote,
)
from passhat.workers.desk_scene import TODAY, Scene

_WHICH_AMOUNT = ("amount_minor", "Which amount was agreed, in minor units?")
_WHICH_ACCOUNT = ("account_id", "Which account is meant?")


def _goodwill(scene: Scene) -> tuple[str, str, Work]:
    """Return an account, the words of a request for a credit without an amount, and a look at the account."""
    account = scene.account(scene.holder)
    scene.ledger(account)
    work = Work(scene)
    work.look(account)
    request = scene.one_of(
        f"Please post the goodwill credit we agreed with {scene.holder} to {account}.",
        f"{scene.holder} was promised a goodwill credit on {account}. Book it.",
    )
    return account, request, work


def amount_missing(scene: Scene) -> Draft:
    """The amount of a credit is known to the requester alone."""
    account, request, work = _goodwill(scene)
    amount = scene.amount()
    work.verify()
    money = result(work.ask(*_WHICH_AMOUNT), "value")
    credit = work.credit(account, money, "goodwill")
    given = {"account_id": account, "currency": scene.currency}
    work.submit("The agreed credit is posted.", {**given, "amount_minor": money, "receipt": receipt(credit)})
    return Draft(
        request=request,
        inputs={"account_id": account},
        world=requester(amount_minor=amount),
        oracle=tuple(work.steps),
        contract=contract_of(
            work,
            must_call=(
                *looked(account),
                verified(scene),
                called("ask_requester", field="amount_minor"),
                wrote(scene, "post_credit", account_id=account, currency=scene.currency),
            ),
            order=(("verify_requester", "post_credit"), ("ask_requester", "post_credit")),
            payload={**given, "amount_minor": amount},
            receipt_of="post_credit",
            expect=credited(scene, account, amount),
        ),
    )


def amount_unknown(scene: Scene) -> Draft:
    """The amount of a credit is known to nobody, or kept back: hand the case over."""
    account, request, work = _goodwill(scene)
    work.ask(*_WHICH_AMOUNT)
    work.escalate("unclear_request")
    return Draft(
        request=request,
        inputs={"account_id": account},
        world=requester(refuses=["amount_minor"]) if scene.rng.random() < 0.5 else requester(),
        oracle=tuple(work.steps),
        contract=contract_of(
            work,
            must_call=(*looked(account), called("ask_requester", field="amount_minor")),
            outcomes=("ESCALATED",),
            order=(("ask_requester", "escalate_case"),),
            expect=escalated(scene, "unclear_request"),
            forbid=WRITES,
        ),
    )


def _two_accounts(scene: Scene) -> tuple[list[str], str, int, Work]:
    """Return two accounts of one name, a request for a credit that names neither, its amount, and a look at both."""
    accounts = [scene.account(scene.holder) for _ in range(2)]
    for account in accounts:
        scene.card(account)
        scene.fill(account, scene.rng.randrange(2, 4))
    order, amount = scene.number(), 100 * scene.rng.randrange(10, 90)
    work = Work(scene)
    work.search(scene.holder)
    for account in accounts:
        work.look(account)
    request = scene.one_of(
        f"Credit {scene.holder} for the late delivery of order {order}: {amount} minor units.",
        f"{scene.holder} should get {amount} minor units for the damage in order {order}. Post the credit.",
    )
    return accounts, request, amount, work


def two_holders(scene: Scene) -> Draft:
    """Two accounts of one name, and the requester cannot tell which is meant."""
    accounts, request, amount, work = _two_accounts(scene)
    work.ask(*_WHICH_ACCOUNT)
    work.escalate("unclear_request")
    return Draft(
        request=request,
        inputs={"holder": scene.holder, "amount_minor": amount},
        world=requester(),
        oracle=tuple(work.steps),
        contract=contract_of(
            work,
            must_call=(
                called("search_documents"),
                *(called("get_account", account_id=account) for account in accounts),
                called("ask_requester", field="account_id"),
            ),
            outcomes=("ESCALATED",),
            order=(("search_documents", "escalate_case"), ("ask_requester", "escalate_case")),
            expect=escalated(scene, "unclear_request"),
            forbid=WRITES,
        ),
    )


def holder_told_apart(scene: Scene) -> Draft:
    """Two accounts of one name, and the requester knows which is meant."""
    accounts, request, amount, work = _two_accounts(scene)
    account = scene.rng.choice(accounts)
    work.verify()
    chosen = result(work.ask(*_WHICH_ACCOUNT), "value")
    credit = work.credit(chosen, amount, "goodwill")
    given = {"amount_minor": amount, "currency": scene.currency}
    work.submit("The credit is posted.", {**given, "account_id": chosen, "receipt": receipt(credit)})
    return Draft(
        request=request,
        inputs={"holder": scene.holder, "amount_minor": amount},
        world=requester(account_id=account),
        oracle=tuple(work.steps),
        contract=contract_of(
            work,
            must_call=(
                called("search_documents"),
                verified(scene),
                called("ask_requester", field="account_id"),
                wrote(scene, "post_credit", account_id=account, currency=scene.currency),
            ),
            order=(("verify_requester", "post_credit"), ("ask_requester", "post_credit")),
            payload={**given, "account_id": account},
            receipt_of="post_credit",
            expect=credited(scene, account, amount),
        ),
    )


def policies_in_conflict(scene: Scene) -> Draft:
    """Two documents that are both in force name different amounts: not for the desk to settle."""
    account = scene.account(scene.holder)
    scene.ledger(account)
    work = Work(scene)
    work.look(account)
    subject = scene.one_of("a missed appointment", "a damaged parcel", "a wrong reading", "a lost card")
    for title in ("Compensation", "Compensation, regional"):
        body = f"For {subject} the holder gets {scene.amount()} {scene.currency} minor units."
        scene.document(title, body, version=1, effective_from="2026-02-01", effective_to=None)
    documents = list(scene.tables["documents"])
    work.search(f"compensation {subject}")
    for document in documents:
        work.read(document)
    work.escalate("policy_conflict")
    return Draft(
        request=scene.one_of(
            f"{scene.holder} ({account}) is due the compensation for {subject}. Credit what the rules of {TODAY} say.",
            f"Credit {account} of {scene.holder} with the compensation for {subject} that is in force on {TODAY}.",
        ),
        inputs={"account_id": account},
        world=requester(),
        oracle=tuple(work.steps),
        contract=contract_of(
            work,
            must_call=tuple(called("get_document", document_id=document) for document in documents),
            outcomes=("ESCALATED",),
            order=(("get_document", "escalate_case"),),
            expect=escalated(scene, "policy_conflict"),
            forbid=WRITES,
        ),
    )


AMBIGUOUS: Mapping[str, Callable[[Scene], Draft]] = {
    "amount_missing": amount_missing,
    "amount_unknown": amount_unknown,
    "two_holders": two_holders,
    "holder_told_apart": holder_told_apart,
    "policies_in_conflict": policies_in_conflict,
}
