"""The process in which environments and agents run, and the zygote it is forked from.

A worker starts one zygote: a small process that has imported what every child needs and has no threads, so that a
child can be forked from it in a millisecond, again and again. A hang or a crash then costs one run and one fork. The
child sends each record as soon as the run is over: the first run without a record is the one that was running.
It leads a process group of its own, which ends with it: nothing that an agent starts outlives the campaign.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

from passhat.workers.host import Host, preload
from passhat.workers.loading import WorkerError
from passhat.workers.order import Shard, WorkOrder
from passhat.workers.session import AGENT, NOBODY, describe

ITEM = struct.Struct("<cI")  # tag and length of what a child sends
READY, ALIVE, RECORD, DONE, ERROR = b"H", b"A", b"R", b"D", b"E"

SHARD = struct.Struct("<QQQIdd")
LENGTH = struct.Struct("<Q")
EXIT = struct.Struct("<i")  # what the zygote says of a child that ended: its wait status
FORK, KILL = b"F", b"K"
BELL = b"!"  # a shard has ended: worth looking at once

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 20


def main() -> None:
    """Zygote: read the work order from the socket given by number, then fork a child whenever asked."""
    control = socket.socket(fileno=int(sys.argv[1]))
    plane_fd = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order: WorkOrder = pickle.loads(read_exactly(control, LENGTH.unpack(read_exactly(control, LENGTH.size))[0]))
    preload(order)
    gc.freeze()  # what children share with this process is left alone, and so stays shared
    wake_fd, woken_fd = os.pipe()  # readable when a child has ended
    os.set_blocking(woken_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken_fd)
    child = 0
    while True:
        ready = select.select([control.fileno(), wake_fd], [], [])[0]
        if wake_fd in ready:
            os.read(wake_fd, 1)
            child = _reap(child, control)
            continue
        message, fds = _receive(control)
        if child and message in (KILL, b""):
            _end_group(child)
        if not message:  # the supervisor is gone
            return
        if message == FORK:
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _serve(order, fds[0], fds[1], plane_fd)
            with contextlib.suppress(OSError):
                os.setpgid(child, child)  # as the child does: whoever comes first
            for fd in fds:
                os.close(fd)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message and what came with it; nothing once the supervisor is gone."""
    try:
        message, fds, _, _ = socket.recv_fds(control, 1, 2)
    except ConnectionResetError:
        return b"", []
    return message, fds


def _reap(child: int, control: socket.socket) -> int:
    """Report the child's end, if it has ended; return the child that still runs, or 0."""
    if not child or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return child
    _end_group(child)  # while its number is still taken
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next look finds out that nobody listens
        control.sendall(EXIT.pack(os.waitpid(child, 0)[1]))
    return 0


def _end_group(child: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)


def _serve(order: WorkOrder, shards_fd: int, records_fd: int, plane_fd: int) -> NoReturn:
    """Child: serve shards until the other end closes; never return into the zygote's loop."""
    os.setpgid(0, 0)
    die_with_parent()
    shards = socket.socket(fileno=shards_fd)
    code = 0
    try:
        plane = mmap.mmap(plane_fd, mmap.PAGESIZE)
        host = Host(order, plane, is_child=True, alive=lambda: _send(records_fd, ALIVE))
        _send(records_fd, READY, bytes([host.level]))
        while data := read_exactly(shards, SHARD.size):
            plane[0] = AGENT
            for finished in host.run(Shard(*SHARD.unpack(data))):
                _send(records_fd, RECORD, finished.packed)
            plane[0] = NOBODY
            shards.sendall(BELL)  # before DONE: whoever has read DONE finds the bell without waiting
            _send(records_fd, DONE)
        host.close()
    except BaseException as error:
        code = 1
        text = str(error) if isinstance(error, WorkerError) else describe(error)
        _send(records_fd, ERROR, text.encode(errors="replace"))
    finally:
        os._exit(code)


def _send(fd: int, tag: bytes, data: bytes = b"") -> None:
    view = memoryview(ITEM.pack(tag, len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def read_exactly(stream: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or nothing when the other end closed before the first."""
    data = bytearray()
    while len(data) < size:
        chunk = stream.recv(min(size - len(data), _CHUNK_BYTES))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)


def die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent; elsewhere than on Linux a closed pipe ends it."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
