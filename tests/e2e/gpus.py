# SPDX-License-Identifier: Apache-2.0
"""GPUs for the tests: of the library in tests/support/cuda, made anew for each cluster, or with
TH_GPU_HARDWARE=1 those of this machine.

TH_E2E_GPU=KIND (gpu_driver.KINDS) gives the workers of any script GPU memory of that kind instead
of the host's; worker number n of a cluster has it on GPU n modulo the number of GPUs. A script that
is the worker itself has that of memory_kinds.wanted.

    gpus.py             says which GPUs and which driver this machine has; exit status 1: none to be
                        used
    gpus.py --slower    prints the factor of the tests' timeouts on hardware
"""

import ctypes as c
import json
import os
import shutil
import subprocess
import sys
import time
import uuid

KIND = os.environ.get("TH_E2E_GPU")
HARDWARE = os.environ.get("TH_GPU_HARDWARE") == "1"
FAKE_GPUS = int(os.environ.get("TH_E2E_GPUS", "2"))
FAKE_BYTES = 3 << 30
# On hardware a test of the suites gpu and gpu_faults may last as many times as long: each process
# has a context there, and takes, fills and compares gigabytes of what is free.
SLOWER = 4
STAGING = "memfd:thagentd-gpu"  # of the agent's own memory, in /proc


class FakeGpus:
    """A machine of GPUs that are files; see tests/support/cuda/machine_program.c."""

    hardware = False

    def __init__(self, count=FAKE_GPUS, nbytes=FAKE_BYTES):
        folder = os.path.join(os.environ["TH_BUILD"], "tests", "support", "cuda")
        self.p = subprocess.Popen(
            [os.path.join(folder, "machine_program"), str(count), str(nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # An interrupt from the keyboard is for the test alone, which ends this by its input.
            start_new_session=True,
        )
        path = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.folder = self.p.stdout.readline().strip()
        self.env = {"TH_FAKE_CUDA": self.folder, "LD_LIBRARY_PATH": ":".join(path)}
        self.count = count

    def ask(self, *words):
        self.p.stdin.write(" ".join(map(str, words)) + "\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline().strip()
        assert answer not in ("", "?"), f"machine_program does not understand {words}"
        return int(answer)

    def used(self, device):
        """Bytes that somebody holds of it."""
        return self.ask("used", device)

    def holds(self, pid, what):
        return self.ask("holds", pid, what)

    def calls(self, pid, name):
        return self.ask("calls", pid, name)

    def plan(self, fault, call, pid=0, after=0, result=999):
        return self.ask("plan", fault, pid, call, after, result)

    def met(self, plan):
        return self.ask("met", plan)

    def lift(self, plan):
        return self.ask("lift", plan)

    def lose(self, device, result=719):
        return self.ask("lose", device, result)

    def set(self, device, what, value):
        return self.ask("set", device, what, value)

    def close(self):
        self.p.stdin.close()
        self.p.wait(20)
        self.p.stdout.close()


class NvmlMemory(c.Structure):
    _fields_ = [("total", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong)]


class HardwareGpus:
    """Those that this process may use. What is in use is NVML's word, which makes no context."""

    hardware = True

    def __init__(self):
        self.env = {}
        found, why = look()
        if not found:
            raise RuntimeError(why)
        self.count = len(found)
        self.nvml = c.CDLL("libnvidia-ml.so.1")
        self.check(self.nvml.nvmlInit_v2())
        self.handles = []
        for gpu in found:
            handle, name = c.c_void_p(), f"GPU-{uuid.UUID(gpu['uuid'])}"
            self.check(self.nvml.nvmlDeviceGetHandleByUUID(name.encode(), c.byref(handle)))
            self.handles.append(handle)

    @staticmethod
    def check(rc):
        if rc:
            raise RuntimeError(f"NVML says {rc}")

    def memory(self, device):
        memory = NvmlMemory()
        self.check(self.nvml.nvmlDeviceGetMemoryInfo(self.handles[device], c.byref(memory)))
        return memory

    def used(self, device):
        return self.memory(device).used

    def free(self, device):
        return self.memory(device).free

    def close(self):
        self.nvml.nvmlShutdown()


def new():
    return HardwareGpus() if HARDWARE else FakeGpus()


own = None


def of_this_process():
    """For a script that has memory on them itself: a driver stays with those it has met first."""
    global own
    if own is None:
        own = new()
        os.environ.update(own.env)
        if not HARDWARE:
            # Who asks for it by its name has this one then.
            c.CDLL(os.path.join(own.env["LD_LIBRARY_PATH"].split(":")[0], "libcuda.so.1"))
    return own


# ---- what is there ---------------------------------------------------------------------------


def ask_driver():
    """In a process of its own: a context or a crash there is none of ours."""
    program = (
        "import gpu_driver, json\n"
        "d = gpu_driver.driver()\n"
        "print(json.dumps([d.number('cuDriverGetVersion'),"
        " [d.describe(i) for i in range(d.count())]]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=os.path.dirname(os.path.abspath(__file__)),
        capture_output=True,
        text=True,
        timeout=120,
    )


looked = None


def look():
    """Once a process: it takes a while on hardware."""
    global looked
    if not HARDWARE:
        return ask()
    if looked is None:
        looked = ask()
    return looked


def ask():
    """What the driver says of each GPU, and a sentence: what was found, or why nothing is."""
    p = ask_driver()
    if p.returncode:
        last = (p.stderr.strip().splitlines() or ["it says nothing"])[-1]
        if "libcuda.so.1" in last:
            return [], f"no GPU can be used: this machine has no CUDA driver ({last})"
        return [], f"no GPU can be used: {last}"
    version, found = json.loads(p.stdout)
    names = ", ".join(
        f"{g['name']} ({g['bytes'] >> 20} MiB, PCI {g['pci']}, UUID {g['uuid']})" for g in found
    )
    if not found:
        return [], "no GPU can be used: the CUDA driver is here and shows none to this process"
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return found, f"{len(found)} GPU: {names}; driver of CUDA {cuda}"


def main():
    if sys.argv[1:] == ["--slower"]:
        print(SLOWER)
        return 0
    found, sentence = look()
    print(sentence)
    smi = shutil.which("nvidia-smi")
    if not smi:
        print("nvidia-smi is not installed here")
    else:
        fields = "index,name,driver_version,memory.used,memory.total,compute_mode"
        p = subprocess.run(
            [smi, f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True
        )
        print("nvidia-smi: " + (p.stdout.strip() or p.stderr.strip() or f"exit {p.returncode}"))
    return 0 if found else 1


def wait_free(gpus, device, baseline, seconds):
    """How long it took until no more than baseline is in use, and how late this machine woke us
    meanwhile; None: it was not within seconds."""
    begin = before = time.monotonic()
    late = 0.0
    while True:
        if gpus.used(device) <= baseline:
            return time.monotonic() - begin, late
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.005)
        before, late = time.monotonic(), max(late, time.monotonic() - before - 0.005)


if __name__ == "__main__":
    sys.exit(main())
