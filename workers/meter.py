"""What the calls of the scripted agent use: made-up tokens and prices, in whole numbers, with a known mean.

The prompt grows with every turn, so what a run uses depends on how many calls it makes, and not on which.
"""

from typing import NamedTuple

from passhat.workers.contract import Ceilings

_TOKENS_BASE, _TOKENS_TURN, _TOKENS_REPLY = 600, 150, 40
_NOISE_IN, _NOISE_OUT = 256, 16  # added to a call: even draws below these, from one byte
_MICROS_IN, _MICROS_OUT = 3, 15  # millionths of a US dollar a token


class Use(NamedTuple):
    """What an agent uses."""

    tokens_in: int = 0
    tokens_out: int = 0
    retries: int = 0
    wait_ms: int = 0  # virtual time

    @property
    def micros(self) -> int:
        """Price in micro-dollars."""
        return _MICROS_IN * self.tokens_in + _MICROS_OUT * self.tokens_out

    def plus(self, other: "Use") -> "Use":
        return Use(*(mine + more for mine, more in zip(self, other, strict=True)))


NOTHING = Use()


def use_of(turn: int, noise: int) -> Use:
    """Return what the call of a turn uses, the first being turn 0; of 64 bits of noise it takes one byte in turn."""
    byte = noise >> turn % 8 * 8 & 0xFF
    return Use(_TOKENS_BASE + _TOKENS_TURN * turn + byte, _TOKENS_REPLY + byte % _NOISE_OUT)


def mean_micros(calls: int) -> int:
    """Return the expected price of a run of so many calls; it is a whole number."""
    tokens_in = calls * _TOKENS_BASE + _TOKENS_TURN * calls * (calls - 1) // 2
    noise = calls * (_MICROS_IN * (_NOISE_IN - 1) + _MICROS_OUT * (_NOISE_OUT - 1)) // 2
    return Use(tokens_in, calls * _TOKENS_REPLY).micros + noise


def exceeds(ceilings: Ceilings, calls: int, extra: Use) -> bool:
    """Whether a run of so many calls, at its most, would break a ceiling with something extra."""
    growth = _TOKENS_TURN * calls * (calls - 1) // 2
    most = Use(calls * (_TOKENS_BASE + _NOISE_IN) + growth, calls * (_TOKENS_REPLY + _NOISE_OUT)).plus(extra)
    limits = (
        (ceilings.tokens, most.tokens_in + most.tokens_out),
        (ceilings.tokens_in, most.tokens_in),
        (ceilings.tokens_out, most.tokens_out),
        (None if ceilings.cost_usd is None else round(ceilings.cost_usd * 1_000_000), most.micros),
        (ceilings.retries, most.retries),
        (ceilings.virtual_ms, most.wait_ms),
    )
    return any(limit is not None and used > limit for limit, used in limits)
