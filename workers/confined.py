"""The process an environment lives in when it has one of its own: the far end of workers/confine.py.

Sets its limits, builds the environment, and answers calls one by one under the guard of level 1. It talks through the
socket it was given as standard input, which the environment then no longer sees.
"""

import os
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import index
from typing import Any, NoReturn

import msgpack

from passhat.workers.environment import Environment, Principal, ToolResult
from passhat.workers.guard import Guard
from passhat.workers.loading import WorkerError, build_environment
from passhat.workers.session import describe, expect

Standing = tuple[int, int]  # facts and virtual time

_CHUNK_BYTES = 1 << 16
_LIMITS = {
    resource.RLIMIT_AS: 4 << 30,
    resource.RLIMIT_FSIZE: 64 << 20,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_CORE: 0,
}


def main() -> NoReturn:
    """Serve until the other end closes."""
    channel = _take_channel()
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    packer = msgpack.Packer()
    messages = _messages(channel, unpacker)
    target, sys_path, is_confined = next(messages)
    if is_confined:
        for limit, most in _LIMITS.items():
            resource.setrlimit(limit, (most, most))
    sys.path[:0] = [folder for folder in sys_path if folder not in sys.path]
    try:
        served = _Served(target)
    except WorkerError as error:
        channel.sendall(packer.pack(str(error)))
        sys.exit(1)
    channel.sendall(packer.pack(None))
    for message in messages:
        channel.sendall(_packed(packer, served.answer(*message)))
    os._exit(0)


def _take_channel() -> socket.socket:
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _messages(channel: socket.socket, unpacker: Any) -> Any:
    while data := channel.recv(_CHUNK_BYTES):
        unpacker.feed(data)
        yield from unpacker


def _packed(packer: Any, answer: Sequence[Any]) -> bytes:
    try:
        packed: bytes = packer.pack(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        packed = msgpack.packb([False, f"what the environment answered is no data: {error}", answer[2]])
    return packed


class _Served:
    """Instances of one environment, and what each can be asked."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._guard = Guard()
        self._instances = {0: build_environment(target)}

    def answer(self, instance: int, method: str, where: str, arguments: Sequence[Any]) -> list[Any]:
        """Return whether it went well, the value or what went wrong, and what was found."""
        guard = self._guard
        guard.begin()
        is_fine, value = True, None
        try:
            environment = self._instance(instance)
            with guard.armed(where):
                value = _METHODS[method](environment, *arguments)
        except MemoryError:
            guard.note("rlimit", "memory", blocked=True, layer="rlimit")
            is_fine, value = False, "MemoryError"
        except BaseException as error:
            is_fine, value = False, describe(error)
        return [is_fine, value, [_values(found) for found in guard.violations]]

    def _instance(self, instance: int) -> Environment:
        if instance not in self._instances:
            self._instances[instance] = build_environment(self._target)
        return self._instances[instance]


def _reset(environment: Environment, seed: int, options: Mapping[str, Any]) -> Standing:
    environment.reset(seed=seed, options=options)
    return _standing(environment)


def _call(environment: Environment, name: str, arguments: Mapping[str, Any], who: Sequence[str]) -> list[Any]:
    result = environment.call(name, arguments, principal=Principal(*who))
    expect(result, ToolResult, name)
    receipt = None if result.receipt is None else _values(result.receipt)
    return [dict(result.content), result.error, receipt, _standing(environment)]


def _standing(environment: Environment) -> Standing:
    return index(environment.facts()), index(environment.virtual_ms())


def _account(environment: Environment) -> list[Any]:
    effects = [_values(effect) for effect in environment.effects()]
    breaches = [_values(breach) for breach in environment.invariants()]
    return [effects, breaches, environment.state_digest()]


def _spec(environment: Environment) -> list[Any]:
    spec = environment.spec
    return [spec.name, spec.version, [_values(tool) for tool in spec.tools]]


def _values(part: Any) -> list[Any]:
    """Return the fields of a small record as plain values."""
    values = (getattr(part, field.name) for field in fields(part))
    return [dict(value) if isinstance(value, Mapping) else value for value in values]


_METHODS: Mapping[str, Any] = {"spec": _spec, "reset": _reset, "call": _call, "account": _account}

if __name__ == "__main__":
    main()
