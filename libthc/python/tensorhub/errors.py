# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as classes: one for each code of thc.h, each with the sentence of libthc.

``except tensorhub.Error`` catches all of them. Where Python has a class of its own for the same
thing (TimeoutError, ValueError), the class here is that, too.
"""

import errno
import os
from typing import Dict, Type


class Error(Exception):
    """A call has failed. ``str(error)`` is the sentence: what failed, where, why, what to do next.

    ``code`` is negative: a THC_E_* of thc.h, or -errno. ``name`` is its name without THC_E_
    ("TIMEOUT"), or that of errno ("ENOMEM"). ``call`` is the function of libthc, or "".
    """

    code = 0
    name = ""

    def __init__(self, sentence: str, code: int = 0, call: str = "") -> None:
        super().__init__(sentence)
        self.call = call
        if code:
            self.code = code
            self.name = type(self).name or errno.errorcode.get(-code, str(code))


class Invalid(Error, ValueError):
    """A bad argument; the sentence begins with its name."""

    code, name = -5001, "INVALID"


class State(Error):
    """The call does not fit the handle's state, such as a publish before a register."""

    code, name = -5002, "STATE"


class Timeout(Error, TimeoutError):
    """The deadline has passed, and nothing has changed."""

    code, name = -5003, "TIMEOUT"


class NotAvailable(Error):
    """There is no such version now."""

    code, name = -5004, "NOT_AVAILABLE"


class VersionLost(Error):
    """The version existed, and its last copy is gone."""

    code, name = -5005, "VERSION_LOST"


class VersionConflict(Error):
    """The same version was published before with other bytes or another layout."""

    code, name = -5006, "VERSION_CONFLICT"


class Layout(Error):
    """Source and destination do not map onto each other; the sentence names the tensor."""

    code, name = -5007, "LAYOUT"


class Dirty(Error):
    """The tensors are partly overwritten: only replicate and close are allowed."""

    code, name = -5008, "DIRTY"


class GroupBroken(Error):
    """A member of the group is gone: close, and open again."""

    code, name = -5009, "GROUP_BROKEN"


class GroupMismatch(Error):
    """The members of the group have made different calls."""

    code, name = -5010, "GROUP_MISMATCH"


class NoMemoryToRetain(Error):
    """This is the last copy of a retained version, and no agent has room for it."""

    code, name = -5011, "NOMEM_RETAIN"


class Limit(Error):
    """A configured limit; the sentence names it and its value."""

    code, name = -5012, "LIMIT"


class Checksum(Error):
    """No source had the bytes that were published."""

    code, name = -5013, "CHECKSUM"


class Contract(Error):
    """Published memory was changed before it was unpublished: close the handle."""

    code, name = -5014, "CONTRACT"


class NoAgent(Error, ConnectionError):
    """No agent listens where one was looked for."""

    code, name = -5015, "NO_AGENT"


class AgentLost(Error, ConnectionError):
    """The agent has died, or does not answer: close, and open again."""

    code, name = -5016, "AGENT_LOST"


class NoServer(Error, ConnectionError):
    """The agent reaches no reference server."""

    code, name = -5017, "NO_SERVER"


class Denied(Error, PermissionError):
    """Not allowed: user, model or job."""

    code, name = -5018, "DENIED"


class Protocol(Error):
    """libthc and the agent are of releases that do not understand each other."""

    code, name = -5019, "PROTOCOL"


class Forked(Error):
    """The handle belongs to the parent process: open one of its own after fork()."""

    code, name = -5020, "FORKED"


class Cancelled(Error):
    """Ended by a cancel, a close, an eviction or a drain; nothing has changed."""

    code, name = -5021, "CANCELLED"


class MemoryKind(Error):
    """This memory cannot be shared or copied; the sentence says why."""

    code, name = -5022, "MEMORY_KIND"


class StaleMemory(Error):
    """The pages behind a registered tensor are not those that were registered."""

    code, name = -5023, "STALE_MEMORY"


class NoPath(Error):
    """No transport that is allowed reaches a source."""

    code, name = -5024, "NO_PATH"


class Unknown(Error):
    """It has begun, and its outcome is not known yet: resolve() or close()."""

    code, name = -5025, "UNKNOWN"


class Evicted(Error):
    """Taken out by an operator or a drain: close, and open again."""

    code, name = -5026, "EVICTED"


CLASSES: Dict[int, Type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}


def from_code(code: int, sentence: str, call: str = "") -> Error:
    """The exception of a negative code, not raised."""
    kind = CLASSES.get(code, Error)
    return kind(sentence or os.strerror(-code), code, call)
