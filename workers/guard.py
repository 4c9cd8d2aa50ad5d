"""Hermetic level 1: notices, and where it can stops, code that reaches beyond its own memory. Knows nothing of runs.

    guard = Guard()                     the hooks are installed with the first one of a process, and stay
    guard.begin()                       a new run: nothing found yet
    with guard.armed("call#1"):         around the code that is judged, in the thread that runs it
        environment.call(...)
    guard.violations                    the first eight things found; guard.count is how many there were
    guard.breach                        the first that makes the run invalid, or None

What leaves the process or changes it (network, files, programs, native libraries, threads, environment variables) is
denied with `Denied`, and is on the list even when the code swallows that. Entropy is let through and is a breach too.
The wall clock stands still at `FROZEN_AT`: reading it is noted once a run and is no breach, for it says the same in
every run. Monotonic clocks go on, or whatever waits would wait for ever; the replay check finds what they change.
Files may be read, modules imported. Environment variables are those of `VARIABLES`, whatever the process has.

All of this is a switch of the process, thrown only while the code runs. Other threads that were alive by then are
bystanders: nothing changes for them. It guards against accidents, not against malice: native code, connections opened
earlier, and whatever undoes the hooks on purpose pass by. Hermetic level 2 (workers/confine.py) is a boundary.
"""

import _thread
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import get_ident
from types import FrameType
from typing import Any, Literal
from urllib.parse import urlsplit

FROZEN_AT = 1767225600  # 2026-01-01T00:00:00Z
VARIABLES = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PATH": os.defpath}

Plane = Literal["environment", "agent"]  # whose code it is

_KEPT = 8
_TARGET_CHARACTERS = 120
_FROZEN_NS = FROZEN_AT * 1_000_000_000
_NOBODY: frozenset[int] = frozenset()
_OURS = os.path.dirname(__file__) + os.sep

# What CPython says of itself (audit events), by what it means here. `open`, `socket.__new__` and `sqlite3.connect`
# mean it only with some arguments, see _EXCUSED.
_EVENTS = {
    "net": """socket.__new__ socket.connect socket.bind socket.sendto socket.sendmsg socket.getaddrinfo
        socket.gethostbyname socket.gethostbyaddr socket.getnameinfo urllib.Request http.client.connect
        ftplib.connect imaplib.open poplib.connect smtplib.connect webbrowser.open""",
    "fs_write": """open sqlite3.connect os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.truncate os.chmod
        os.chown os.chflags os.utime os.setxattr os.removexattr""",
    "exec": """subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty os.kill os.killpg
        pty.spawn signal.pthread_kill""",
    "ffi": "ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle ctypes.call_function ctypes.cdata ctypes.string_at",
    "env_mutation": "os.putenv os.unsetenv os.chdir os.fchdir resource.setrlimit resource.prlimit",
    "thread": "_thread.start_new_thread _thread.start_joinable_thread",
    "fs_read": "os.listdir os.scandir",
}
_KIND = {event: kind for kind, events in _EVENTS.items() for event in events.split()}
_THREAD_STARTS = frozenset(_EVENTS["thread"].split())
_AT_IMPORT = frozenset({"ffi", "env_mutation", "entropy"})  # what importing a module may do to its own process
_NOTES = frozenset({"clock", "fs_read"})  # harmless in themselves
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _load_time_machine() -> Any:
    """Import time-machine without pytest, which it would import for a plugin of its own: four fifths of the time."""
    spared = {"pytest": None} if "pytest" not in sys.modules else {}
    sys.modules.update(spared)  # type: ignore[arg-type]
    try:
        return import_module("time_machine")
    finally:
        for name in spared:
            del sys.modules[name]


time_machine = _load_time_machine()


class Denied(PermissionError):
    """Raised in guarded code in place of what it tried to do."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that guarded code did, or tried to do, beyond its own memory."""

    plane: Plane
    kind: str  # net fs_write fs_read exec thread ffi entropy clock env_mutation rlimit nondeterminism
    event: str
    target: str  # path, address or name; never a value
    where: str  # reset, call#3, limits, score, agent, replay
    blocked: bool
    layer: str  # audit, wrapper, probe, rlimit, replay

    @property
    def is_breach(self) -> bool:
        """Whether it makes the run invalid (or, of an agent, fail)."""
        return self.kind not in _NOTES

    def __str__(self) -> str:
        target = f" {self.target}" if self.target else ""
        return f"{self.where}: {self.kind} ({self.event}{target}){', denied' if self.blocked else ''}"


class Ledger:
    """What was found in a run. On its own it guards nothing: level 0, or another process that does."""

    def __init__(self, plane: Plane = "environment") -> None:
        self.plane = plane
        self._outer: Guard | None = None
        self.begin()

    def begin(self) -> None:
        """Start the account of a new run."""
        self.violations: list[Violation] = []
        self.count = 0
        self.breach: Violation | None = None
        self.where = ""
        self._noted: set[str] = set()

    def note(self, kind: str, event: str, target: str = "", *, blocked: bool, layer: str) -> Violation:
        """Add what has been found just now; a harmless kind is counted once a run."""
        found = Violation(self.plane, kind, event, target[:_TARGET_CHARACTERS], self.where, blocked, layer)
        self.add(found)
        return found

    def add(self, found: Violation) -> None:
        if found.is_breach:
            self.breach = self.breach or found
        elif found.kind in self._noted:
            return
        self._noted.add(found.kind)
        self.count += 1
        if len(self.violations) < _KEPT:
            self.violations.append(found)

    def arm(self, where: str) -> None:
        """Enter code of this plane: a guard of the other one does not judge it."""
        global _armed
        self._outer, _armed = _armed, None
        self.where = where

    def disarm(self) -> None:
        """Leave what `arm` entered."""
        global _armed
        _armed, self._outer = self._outer, None

    @contextmanager
    def armed(self, where: str) -> Iterator[None]:
        self.arm(where)
        try:
            yield
        finally:
            self.disarm()


class Guard(Ledger):
    """Level 1. Of an agent it judges deeds alone: clock, entropy and variables are its own affair.

    With `reads` files that are read, other than modules, are noted too.
    """

    def __init__(self, plane: Plane = "environment", *, reads: bool = False) -> None:
        _install()
        super().__init__(plane)
        self.is_world = plane == "environment"
        self._reads = reads
        self._travel = time_machine.travel(FROZEN_AT, tick=False)
        self._thread = 0
        self._collects = True
        self._threads = 0  # that Python has started and that have not ended
        self._bystanders: frozenset[int] | None = _NOBODY  # None: one of them has started more
        self._draws: tuple[int, ...] = ()

    def arm(self, where: str) -> None:
        global _armed
        self._outer, _armed = _armed, None
        self.where = where
        self._collects = gc.isenabled()
        gc.disable()  # or what others left behind would be finalised in here, and their deeds be taken for ours
        self._thread = get_ident()
        self._threads = _thread._count()
        self._bystanders = frozenset(sys._current_frames()) if self._threads else _NOBODY
        if self.is_world:
            self._travel.start().time_ns = self._time_ns
            self._draws = _draws()
        _armed = self

    def disarm(self) -> None:
        global _armed
        _armed = None
        if self._collects:
            gc.enable()
        if self.is_world:
            self._travel.stop()
            if not self._threads and _was_drawn_from(self._draws):
                self.note("entropy", "random", "the global generator", blocked=False, layer="probe")
                _renew_generators()
        if _thread._count() > self._threads and self._bystanders is not None:
            self.note("thread", "thread", blocked=False, layer="probe")
        _armed, self._outer = self._outer, None

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Judge an audit event; raise Denied for what is not allowed."""
        kind = _KIND.get(event)
        if kind is None or self._is_bystander(event):
            return
        if not self.is_here:
            kind = "thread"  # one that guarded code has started past us
        elif event in _EXCUSED and _EXCUSED[event](*args):
            if event != "open":
                return
            kind = "fs_read"
        if kind == "fs_read":
            if self._reads and not _is_importing():
                self.note(kind, event, _target(event, args), blocked=False, layer="audit")
        elif not (kind in _AT_IMPORT and _is_importing()):
            raise Denied(f"not hermetic: {self.note(kind, event, _target(event, args), blocked=True, layer='audit')}")

    def uses_entropy(self, event: str) -> None:
        if self.is_world and not _is_importing():
            self.note("entropy", event, blocked=False, layer="wrapper")

    @property
    def is_here(self) -> bool:
        """Whether the code that asks is the guarded code."""
        return get_ident() == self._thread

    def _is_bystander(self, event: str) -> bool:
        if self.is_here or not (self._bystanders is None or get_ident() in self._bystanders):
            return False
        if event in _THREAD_STARTS:
            self._bystanders = None
        return True

    def _time_ns(self) -> int:
        if not self.is_here:
            return int(time_machine.escape_hatch.time.time_ns())
        self.note("clock", "time", blocked=True, layer="wrapper")
        return _FROZEN_NS


_armed: Guard | None = None  # the switch


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _armed is not None:
        _armed.hear(event, args)


# What of an event is allowed


def _is_importing() -> bool:
    """Whether a module is being imported, as far up as to the code of ours that called the guarded code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _only_reads(path: Any, mode: str | None, flags: int) -> bool:
    """Whether an `open` writes nothing: an open descriptor (a number) was judged when it was opened."""
    return not flags & _WRITING or isinstance(path, int) or str(path) == os.devnull


def _is_local(_self: Any, family: int, *_: Any) -> bool:
    """Whether a new socket reaches nobody until it is connected, as the pair an event loop wakes itself with."""
    return family == getattr(_socket(), "AF_UNIX", None)


def _is_in_memory(database: Any) -> bool:
    name = os.fsdecode(database)
    return name == "" or ":memory:" in name or "mode=ro" in name


_EXCUSED: Mapping[str, Callable[..., bool]] = {
    "open": _only_reads,
    "socket.__new__": _is_local,
    "sqlite3.connect": _is_in_memory,
}


def _socket() -> Any:
    return sys.modules["socket"]  # it has just been used


def _target(event: str, args: tuple[Any, ...]) -> str:
    """Name what an event is about, without what might be a secret: path, address, program, name of a variable."""
    if event in ("socket.connect", "socket.bind") or event.startswith("socket.send"):
        return _address(args[-1])
    if event == "socket.getaddrinfo":
        return _address(args[:2])
    if event == "urllib.Request":
        return urlsplit(args[0]).hostname or ""
    name = next((os.fsdecode(part) for part in args if isinstance(part, str | bytes | os.PathLike)), "")
    return name.partition(" ")[0] if event == "os.system" else name.partition("?")[0]


def _address(address: Any) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)


# What has no event: entropy, global generators, threads before Python 3.12, environment variables


def _install() -> None:
    """Put the hooks into this process, once. Nothing happens through them while no guard is armed."""
    if isinstance(os.environ._data, _Variables):  # type: ignore[attr-defined]
        return
    sys.dont_write_bytecode = True  # else a first import would be a write
    sys.addaudithook(_hook)
    variables: Any
    for variables in (os.environ, os.environb):
        variables._data = _Variables(variables._data)
    random.Random.seed = _seeding(random.Random.seed)  # type: ignore[method-assign]
    for module, name in ((os, "urandom"), (os, "getrandom"), (random, "_urandom")):
        if hasattr(module, name):
            setattr(module, name, _drawing(getattr(module, name), f"os.{name.lstrip('_')}"))
    if sys.version_info < (3, 12):
        starting = _starting(_thread.start_new_thread)
        for module, name in ((_thread, "start_new_thread"), (_thread, "start_new"), (threading, "_start_new_thread")):
            setattr(module, name, starting)


def _guard_here() -> Guard | None:
    guard = _armed
    return guard if guard is not None and guard.is_here else None


def _drawing(draw: Callable[..., bytes], event: str) -> Callable[..., bytes]:
    def wrapper(*args: Any, **options: Any) -> bytes:
        if (guard := _guard_here()) is not None:
            guard.uses_entropy(event)
        return draw(*args, **options)

    return wrapper


def _seeding(seed: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and (guard := _guard_here()) is not None:
            guard.uses_entropy("random.Random()")
        seed(self, a, version)

    return wrapper


def _starting(start: Callable[..., int]) -> Callable[..., int]:
    def wrapper(function: Any, args: Any, kwargs: Any = {}, /) -> int:  # noqa: B006 - the original's signature
        sys.audit("_thread.start_new_thread", function, args, kwargs)  # as Python does it from 3.12 on
        return start(function, args, kwargs)

    return wrapper


class _Variables(MutableMapping[bytes, bytes]):
    """Environment variables: to guarded code of an environment the fixed ones, to everybody else the real ones."""

    def __init__(self, real: MutableMapping[bytes, bytes]) -> None:
        self._real = real
        self._fixed = {key.encode(): value.encode() for key, value in VARIABLES.items()}

    @property
    def _seen(self) -> MutableMapping[bytes, bytes]:
        guard = _guard_here()
        return self._real if guard is None or not guard.is_world else self._fixed

    def __getitem__(self, key: bytes) -> bytes:
        return self._seen[key]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._seen[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._seen[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)


def _first_words(generator: random.Random) -> Callable[[], int] | None:
    """Return what reads position and first word of a generator's state from its memory, where that is laid out so.

    Any draw changes them, and reading all of the state takes three hundred times as long.
    """
    if sys.implementation.name != "cpython":
        return None
    start = id(generator) + object.__basicsize__
    *words, position = generator.getstate()[1]
    if list((ctypes.c_uint32 * 625).from_address(start)) != [position, *words]:
        return None
    view = ctypes.c_uint64.from_address(start)
    return lambda: view.value


_global_random: random.Random = random._inst
_random_words = _first_words(_global_random) or (lambda: hash(_global_random.getstate()))


def _draws() -> tuple[int, ...]:
    """Return something that changes when a global generator is used or seeded."""
    numpy_random = sys.modules.get("numpy.random.mtrand")
    if numpy_random is None:
        return (_random_words(),)
    return _random_words(), *_numpy_words(numpy_random)


def _was_drawn_from(before: tuple[int, ...]) -> bool:
    """Whether a global generator has been used since; one that came in meanwhile is compared to a fresh one."""
    now = _draws()
    if len(now) > len(before):
        fresh = sys.modules["numpy.random.mtrand"].RandomState()._bit_generator
        before = (*before, now[1], fresh.state["state"]["pos"])
    return now != before


def _numpy_words(numpy_random: Any) -> tuple[int, ...]:
    try:
        first_word, position = _numpy_views(numpy_random._rand._bit_generator.ctypes.state_address)
    except AttributeError:  # still being imported, or another generator was set
        return ()
    return first_word.value, position.value


@cache
def _numpy_views(start: int) -> tuple[ctypes.c_uint32, ctypes.c_uint32]:
    return ctypes.c_uint32.from_address(start), ctypes.c_uint32.from_address(start + 4 * 624)


def _renew_generators() -> None:
    """Give global generators a state that no seed gives, so that the next one who seeds and draws is found as well."""
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random.mtrand")) is not None:
        numpy_random.seed()


@contextmanager
def fixed_zone() -> Iterator[None]:
    """Let local time be UTC in this process: where it was not so from the start."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TZ", None)  # zones need not end in the order they began
        else:
            os.environ["TZ"] = before
        time.tzset()
