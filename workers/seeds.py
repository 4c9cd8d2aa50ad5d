"""Seeds as pure functions of what is run: never of where, when, in what order or how often.

Every random number of a run comes from one of the two seeds below, so the same run gives the same record for any
number of workers, and a retry after a fault repeats the run instead of drawing a luckier one.
"""

import hashlib
import random

_PERSON = b"passhat-seed-1"


def derive(purpose: str, *parts: str | int | bytes) -> int:
    """Return 64 bits drawn from the parts by blake2b; equal parts give equal bits on every machine.

    Parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ.
    """
    content = bytearray()
    for part in (purpose, *parts):
        data = part if isinstance(part, bytes) else str(part).encode()
        content += len(data).to_bytes(4, "big")
        content += data
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=_PERSON).digest(), "big")


def env_seed(seed: int, task_digest: bytes, run: int) -> int:
    """Seed of the environment's run-time noise: shared by every release of a cell."""
    return derive("env", seed, task_digest, run)


def agent_seed(seed: int, task_digest: bytes, run: int, stream: str) -> int:
    """Seed of the agent's own noise; `stream` is the release's name, or "common" for common random numbers."""
    return derive("agent", seed, task_digest, run, stream)


def stream(seed: int, purpose: str) -> random.Random:
    """A named stream of its own: a draw added to one does not shift another."""
    return random.Random(derive(purpose, seed))
