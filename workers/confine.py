"""Hermetic level 2: an environment in a process of its own under bubblewrap, and our end of the channel to it.

The process sees no network, no processes of others, no files but Python, this package and the folders of the user's
modules, read-only, and an empty /tmp. What comes back from it is data (msgpack), never code, and is checked here like
the answers of any environment. The same without bubblewrap is the second process that replays are made in.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from passhat.workers.environment import Breach, Effect, EnvSpec, Principal, Receipt, ToolResult, ToolSpec
from passhat.workers.guard import VARIABLES, Ledger, Violation
from passhat.workers.records import Reason
from passhat.workers.session import EnvironmentFault

# Everything that must not show in results, otherwise than in the first process. (A zone like this needs no files.)
OTHER_VARIABLES = VARIABLES | {"PYTHONHASHSEED": "1", "TZ": "XXX-13:45", "LANG": "C", "LC_ALL": "C"}

_MOST_BYTES = 1 << 28  # of one message
_CHUNK_BYTES = 1 << 16
_STDERR = 2
_SETUP_S = 120.0
_PARTING_S = 1.0  # between closing the channel and the end of the process
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_FOLDER = "/tmp"
_BROKEN = (OSError, ValueError, TypeError, msgpack.UnpackException)  # nothing came, or what came is no answer
_UNSHARED = (
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--hostname",
    "passhat",
    "--cap-drop",
    "ALL",
)


class CannotStart(Exception):
    """The process could not be started, or the environment in it not be set up; the message says why."""


def obstacle() -> str | None:
    """Return what keeps this machine from confining, in bubblewrap's own words where it has any."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap exists on Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed here; it comes with the package bubblewrap"
    tried = subprocess.run([*_bubblewrap((), {}), "true"], capture_output=True, text=True, errors="replace")
    return None if tried.returncode == 0 else tried.stderr.strip() or f"bwrap exited with code {tried.returncode}"


def _bubblewrap(folders: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the start of a command line that confines the rest of it to these folders and variables."""
    command = ["bwrap", *_UNSHARED, "--dev", "/dev", "--tmpfs", _FOLDER, "--chdir", _FOLDER]
    for folder in (*_SYSTEM, *folders):
        command += ["--ro-bind-try", folder, folder]
    for name, value in {**variables, "HOME": _FOLDER, "PATH": "/usr/bin:/bin"}.items():
        command += ["--setenv", name, value]
    return command


def _module_folders() -> list[str]:
    return [entry for entry in sys.path if Path(entry).is_absolute()]


def _folders(sys_path: Sequence[str]) -> list[str]:
    """Folders that Python, what is installed for it, this package, and the user's modules are in."""
    ours = str(Path(__file__).resolve().parent)
    python = [sys.base_prefix, sys.prefix, str(Path(sys.executable).resolve().parent.parent)]
    found = dict.fromkeys([*python, *_module_folders(), ours, *sys_path])
    return [folder for folder in found if folder != "/"]


class Remote:
    """A process in which environments live, by number; started again by the next `reset` after it has died."""

    def __init__(
        self,
        target: str,
        sys_path: Sequence[str],
        *,
        confined: bool,
        variables: Mapping[str, str] = VARIABLES,
        limit_s: float,
    ) -> None:
        self._target = target
        self._sys_path = list(sys_path)
        self._confined = confined
        self._variables = dict(variables)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def ask(self, instance: int, method: str, arguments: Sequence[Any], ledger: Ledger) -> Any:
        """Call a method of an environment there; what it did beyond its world goes into the ledger.

        Raise CannotStart when the environment cannot be set up, EnvironmentFault for everything later.
        """
        if self._process is None:
            self._start_again(method)
        elif not self._is_ready:
            self._await_ready()
        try:
            self._send([instance, method, ledger.where, arguments])
            is_fine, value, violations = self._receive(self._limit_s)
            for fields in violations:
                ledger.add(Violation(*fields))
        except TimeoutError:
            self.close()
            text = f"the environment did not answer {method} within {self._limit_s:g} s"
            raise EnvironmentFault(Reason.ENVIRONMENT_TIMEOUT, text) from None
        except _BROKEN as error:
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, self._obituary(error)) from None
        if not is_fine:
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, str(value))
        return value

    def close(self) -> None:
        if self._process is not None:
            self._channel.close()
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "passhat.workers.confined"]
        if self._confined:
            variables = {**self._variables, "PYTHONPATH": os.pathsep.join(_module_folders())}
            command = [*_bubblewrap(_folders(self._sys_path), variables), *command]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=_STDERR,
                cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", **self._variables},
            )
        self._unpacker = msgpack.Unpacker(max_buffer_size=_MOST_BYTES)
        self._is_ready = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it says of itself is awaited
            self._send([self._target, self._sys_path, self._confined])

    def _await_ready(self) -> None:
        try:
            problem = self._receive(_SETUP_S)
        except _BROKEN as error:
            raise CannotStart(self._obituary(error)) from None
        if problem is not None:
            self.close()
            raise CannotStart(str(problem))
        self._is_ready = True

    def _start_again(self, method: str) -> None:
        if method != "reset":
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, "the process of the environment has ended")
        try:
            self._start()
            self._await_ready()
        except CannotStart as error:
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, str(error)) from None

    def _send(self, message: Any) -> None:
        self._channel.settimeout(self._limit_s)
        self._channel.sendall(msgpack.packb(message))

    def _receive(self, limit_s: float) -> Any:
        self._channel.settimeout(limit_s)
        while data := self._channel.recv(_CHUNK_BYTES):
            self._unpacker.feed(data)
            for message in self._unpacker:
                return message
        raise ConnectionResetError("it closed the channel")

    def _obituary(self, error: Exception) -> str:
        """End the process, if it has not ended; say what became of it."""
        code = None
        if isinstance(error, OSError) and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_PARTING_S)
        self.close()
        return f"the process of the environment ended: {error if code is None else f'exit code {code}'}"


class RemoteEnvironment:
    """An environment that lives in a `Remote`; an `Environment` itself.

    A message costs more than most answers: facts and time come with every answer, the account of a run in one piece.
    """

    def __init__(self, remote: Remote, instance: int, ledger: Ledger) -> None:
        self._remote = remote
        self._instance = instance
        self._ledger = ledger
        self._standing: tuple[int, int] = (0, 0)  # facts and virtual time after the latest answer
        self._account: Sequence[Any] | None = None  # effects, invariants and digest, until the next call
        self.spec = _spec(*self._ask("spec"))

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        self._account = None
        self._standing = self._ask("reset", seed, dict(options))

    def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> ToolResult:
        self._account = None
        who = [principal.user, principal.tenant, principal.role]
        content, error, receipt, self._standing = self._ask("call", name, dict(arguments), who)
        return ToolResult(content, error, None if receipt is None else Receipt(*receipt))

    def effects(self) -> list[Effect]:
        return [Effect(*fields) for fields in self._accounted()[0]]

    def invariants(self) -> list[Breach]:
        return [Breach(*fields) for fields in self._accounted()[1]]

    def state_digest(self) -> bytes:
        digest: bytes = self._accounted()[2]
        return digest

    def facts(self) -> int:
        return self._standing[0]

    def virtual_ms(self) -> int:
        return self._standing[1]

    def close(self) -> None:
        self._remote.close()

    def _accounted(self) -> Sequence[Any]:
        if self._account is None:
            self._account = self._ask("account")
        return self._account

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._remote.ask(self._instance, method, arguments, self._ledger)


def _spec(name: str, version: str, tools: Sequence[Sequence[Any]]) -> EnvSpec:
    return EnvSpec(name, version, tuple(ToolSpec(*fields) for fields in tools))
