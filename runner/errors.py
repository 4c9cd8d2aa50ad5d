"""What can go wrong where a user can do something about it, each with the exit code it ends the command with.

    PasshatError
    ├── InvalidFile       1    a file does not say what it should, or cannot be read
    ├── UsageError        2    the command was called with something that makes no sense
    ├── NotAcceptable     4    evidence cannot be used: digests differ, records conflict, not comparable
    ├── NothingMatched    5    no task, run or pair is left to work on
    ├── Incomplete        6    a campaign ended before its plan did; it can be resumed
    ├── InternalError    70    a bug in passhat
    └── Interrupted     130    stopped by the user; it can be resumed

Messages are meant to be printed as they are; they never hold the values of a user's variables.
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a command's exit code means; part of the public interface."""

    DONE = 0  # done, or GO
    AGAINST = 1  # a decision against: NO-GO, an alarm, an invalid file, a verification that does not match
    USAGE = 2
    INCONCLUSIVE = 3
    NOT_ACCEPTABLE = 4
    NOTHING_MATCHED = 5
    INCOMPLETE = 6
    INTERNAL = 70  # never 1, which would read as a decision
    INTERRUPTED = 130


class PasshatError(Exception):
    """Base of everything passhat raises on purpose; `str(error)` is the whole message."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


class InvalidFile(PasshatError):
    """A file does not say what it should; the message lists each problem on a line of its own."""

    exit_code = ExitCode.AGAINST


class UsageError(PasshatError):
    """The command was called with something that makes no sense."""

    exit_code = ExitCode.USAGE


class NotAcceptable(PasshatError):
    """Evidence cannot be used: digests differ, records conflict, or releases are not comparable."""

    exit_code = ExitCode.NOT_ACCEPTABLE


class NothingMatched(PasshatError):
    """No task, run or pair is left to work on."""

    exit_code = ExitCode.NOTHING_MATCHED


class Incomplete(PasshatError):
    """A campaign ended before its plan did; it can be resumed."""

    exit_code = ExitCode.INCOMPLETE


class InternalError(PasshatError):
    """A bug in passhat."""

    exit_code = ExitCode.INTERNAL


class Interrupted(PasshatError):
    """Stopped by the user; what has been done is kept and the campaign can be resumed."""

    exit_code = ExitCode.INTERRUPTED
