# SPDX-License-Identifier: Apache-2.0
"""What is here, and what is missing: ``python -m tensorhub.doctor``.

One line each: the package, its library, memory that agents map, the agent, its server, and the
optional packages. It asks as an observer, so nobody sees it and nothing changes. Ends with 1 when
weights could not move from here.
"""

import importlib
import os
import platform
import sys
from typing import Callable, Iterator, Tuple

import tensorhub as th
from tensorhub import _abi

Line = Tuple[str, str, str]  # "ok", "no" or "--"; what; what is known of it
TIMEOUT_S = 10.0  # an agent takes 3 s to believe that its server is gone
PROBE_BYTES = 64 << 20


def _needed(what: str, look: Callable[[], str]) -> Line:
    try:
        return "ok", what, look()
    except th.Error as failure:
        return "no", what, str(failure)


def _library() -> str:
    named = "THC_LIBRARY" if os.environ.get("THC_LIBRARY") else ""
    path: str = _abi.lib._name
    origin = named or ("the system's" if os.sep not in path else "the package's own")
    return f"libthc {th.__version__}, {path} ({origin})"


def _memory() -> str:
    th.Block(PROBE_BYTES)
    return f"{PROBE_BYTES >> 20} MiB that agents map"


def _agent_and_server() -> Iterator[Line]:
    where = os.environ.get("THC_AGENT")
    origin = f"THC_AGENT is {where}" if where else "found without THC_AGENT"
    try:
        watch = th.watch("tensorhub.doctor", timeout=TIMEOUT_S)
    except th.NoServer as failure:
        yield "ok", "agent", origin
        yield "no", "server", str(failure)
        return
    except th.Error as failure:
        yield "no", "agent", str(failure)
        return
    with watch:
        yield "ok", "agent", origin
        yield _needed("server", lambda: f"answers the agent ({len(watch.list())} versions of it)")


def _optional(name: str, more: Callable[[object], str] = lambda module: "") -> Line:
    try:
        module = importlib.import_module(name)
    except Exception as failure:  # of any kind: it is another project's import that fails
        return "--", name, str(failure).partition("\n")[0]
    return "ok", name, f"{getattr(module, '__version__', '?')}{more(module)}"


def _cuda(torch: object) -> str:
    cuda = torch.cuda  # type: ignore[attr-defined]
    count = cuda.device_count() if cuda.is_available() else 0
    return f", {count} CUDA devices" if count else ", no CUDA device"


def lines() -> Iterator[Line]:
    """Each finding, as it is found."""
    here = os.path.dirname(os.path.abspath(th.__file__))
    yield "ok", "package", f"{here}, Python {platform.python_version()}"
    yield "ok", "library", _library()
    yield _needed("memory", _memory)
    yield from _agent_and_server()
    yield _optional("torch", _cuda)
    yield _optional("numpy")
    yield _optional("tqdm")


def main() -> int:
    """Prints every line; 1 when something that is needed is missing."""
    bad = False
    for mark, what, text in lines():
        bad = bad or mark == "no"
        print(f"{mark}  {what:8} {text}", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
