"""The agent: a function that is given a task, its tools and a context. A real one asks its model in here."""

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox


def run(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
    """Refund an order. The policy's limit is overlooked: `passhat show` finds the run in which that matters."""
    order = tools.call("find_order", order_id=task.inputs["order_id"])
    if order.error:
        return Final("REFUSED", order["message"])
    if order["status"] != "delivered":
        return Final("REFUSED", "The order has not been delivered.")
    amount = task.inputs.get("amount_cents", order["paid_cents"])
    refund = tools.call("refund", order_id=task.inputs["order_id"], amount_cents=amount)
    if refund.error:
        return Final("REFUSED", refund["message"])
    return Final("COMPLETED", f"Paid back {amount} cents.", payload={"receipt": refund["receipt"]})
