"""Twelve small worlds, each with one leak, and one without: what `check-env` and runs have to find, each by name.

All are a till that takes coins; the leak is in how it does so.
"""

import ctypes
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox
from passhat.workers.tool import World, tool


class Till(World):
    """Takes coins, and leaks nothing."""

    tables = {"coins": {"coins-0001": {"kind": "euro"}}}  # noqa: RUF012 - copied at every reset

    @tool(effect="write")
    def take(self, kind: str) -> dict[str, Any]:
        """Take a coin."""
        key = self.mint("coins")
        self.rows.insert("coins", key, {"kind": kind, "mark": self.leak(kind)})
        return {"id": key, **(self.rows.get("coins", key) or {})}

    @tool(effect="read")
    def count(self) -> dict[str, Any]:
        """Count the coins."""
        return {"coins": sum(1 for _ in self.rows.scan("coins"))}

    def leak(self, kind: str) -> Any:
        return self.rng("mark").randrange(1000)


class OpensSocket(Till):
    def leak(self, kind: str) -> Any:
        socket.create_connection(("127.0.0.1", 9), timeout=1).close()


class ReadsClock(Till):
    def leak(self, kind: str) -> Any:
        return int(time.time())


class WritesFile(Till):
    def leak(self, kind: str) -> Any:
        Path("coins.txt").write_text(kind)


class StartsThread(Till):
    def leak(self, kind: str) -> Any:
        threading.Thread(target=len, args=(kind,)).start()


_ordinals = itertools.count()


class KeepsModuleState(Till):
    def leak(self, kind: str) -> Any:
        return next(_ordinals)


class IgnoresSeed(Till):
    def leak(self, kind: str) -> Any:
        return random.Random(7).randrange(1000)

    def reset(self, *, seed: int, options: Any) -> None:
        super().reset(seed=7, options=options)


class UsesHash(Till):
    def leak(self, kind: str) -> Any:
        return hash(kind)


class UsesGlobalRandom(Till):
    def leak(self, kind: str) -> Any:
        return random.randrange(1000)


class UsesSystemEntropy(Till):
    def leak(self, kind: str) -> Any:
        return uuid.uuid4().hex


class StartsProgram(Till):
    def leak(self, kind: str) -> Any:
        return subprocess.run([sys.executable, "-c", "print(1)"], check=False).returncode


class ChangesVariables(Till):
    def leak(self, kind: str) -> Any:
        os.environ["COIN"] = kind


class LoadsLibrary(Till):
    def leak(self, kind: str) -> Any:
        return ctypes.CDLL(None).abs(-1)


def customer(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
    """Pay with one coin."""
    tools.call("take", kind="euro")
    return Final("COMPLETED")
