"""The world of the suite: orders that can be looked up and refunded. Each run has one of its own."""

from typing import Annotated, Any

from passhat.workers.tool import Bounds, Breach, ToolError, World, tool


class Shop(World):
    """A task may bring its own tables; these are the ones it has otherwise."""

    tables = {
        "orders": {
            "O-1": {"customer": "Ann Lee", "status": "delivered", "paid_cents": 1999},
            "O-2": {"customer": "Bo Katz", "status": "delivered", "paid_cents": 4500},
            "O-3": {"customer": "Cem Oral", "status": "shipped", "paid_cents": 800},
            "O-4": {"customer": "Dee Wu", "status": "delivered", "paid_cents": 25000},
        },
    }

    @tool(effect="read")
    def find_order(self, order_id: str) -> dict[str, Any]:
        """Look up an order."""
        order = self.rows.get("orders", order_id)
        if order is None:
            raise ToolError("not_found", f"there is no order {order_id}")
        return dict(order)

    @tool(effect="write")
    def refund(self, order_id: str, amount_cents: Annotated[int, Bounds(ge=1)]) -> dict[str, Any]:
        """Pay back a delivered order, or a part of it."""
        order = self.rows.get("orders", order_id)
        if order is None or order["status"] != "delivered":
            raise ToolError("not_delivered", f"there is no delivered order {order_id}")
        if amount_cents > order["paid_cents"]:
            raise ToolError("too_much", f"{order['paid_cents']} cents were paid")
        refund_id = self.mint("refunds")
        self.rows.insert("refunds", refund_id, {"order_id": order_id, "amount_cents": amount_cents})
        return {"refund_id": refund_id}

    def invariants(self) -> list[Breach]:
        """What holds whatever an agent does."""
        paid_back: dict[str, int] = {}
        for _, refund in self.rows.scan("refunds"):
            paid_back[refund["order_id"]] = paid_back.get(refund["order_id"], 0) + refund["amount_cents"]
        orders = dict(self.rows.scan("orders"))
        return [Breach("refunds", key) for key, cents in paid_back.items() if cents > orders[key]["paid_cents"]]
