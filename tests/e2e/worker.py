# SPDX-License-Identifier: Apache-2.0
"""A worker process of the tests: takes JSON commands on stdin, answers on stdout, one line each.

Every command runs in a thread of its own and is answered by its id when it ends, so a blocking
call does not keep others waiting. The controller is cluster.Worker.
"""

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import content
import gpu_driver
import library  # noqa: F401
import memory_kinds
import raw
import tensorhub as th

shards, memories, layouts, ops, polls, lent = {}, {}, {}, {}, {}, {}
out_lock = threading.Lock()


def answer(message):
    with out_lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def cmd_open(model, name="s", timeout=10, **options):
    """An observer where no replica is named."""
    if "replica" in options:
        shards[name] = th.open(model, timeout=timeout, **options)
    else:
        shards[name] = th.watch(model, timeout=timeout, **options)._handle


def cmd_alloc(total_bytes, name="s", **where):
    rows = content.layout(total_bytes)
    memories[name] = memory_kinds.wanted(sum(n for _, n in rows), **where)
    layouts[name] = rows


def cmd_alloc_even(total_bytes, count, name="s", **where):
    """So many tensors of one size."""
    memories[name] = memory_kinds.wanted(total_bytes, **where)
    layouts[name] = [(f"layer.{i:03}.weight", total_bytes // count) for i in range(count)]


def cmd_layout(rows, memory, name="s"):
    """Tensors (name, bytes) in that memory, one after the other."""
    memories[name], layouts[name] = memories[memory], rows


def cmd_free(name="s"):
    memories[name].free()


def cmd_map_file(path, total_bytes, name="s"):
    """One tensor that is an imported file."""
    memories[name] = memory_kinds.Imported(
        total_bytes, os.open(path, os.O_RDONLY), protection=memory_kinds.READ
    )
    layouts[name] = [("file", total_bytes)]


def cmd_lend(path, name="s"):
    """To the first who asks at this path."""
    data, fd = memories[name].share()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def give():
        asks, _ = listening.accept()
        socket.send_fds(asks, [data or b"-"], [] if fd is None else [fd])
        if fd is not None:
            os.close(fd)
        asks.close()
        listening.close()

    threading.Thread(target=give, daemon=True).start()


def cmd_borrow(path, kind, total_bytes, device, name="s"):
    """What another process lends; what the driver says of it."""
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect(path)
        data, fds, _, _ = socket.recv_fds(asks, 64, 1)
    fd = fds[0] if fds else None
    data = data if len(data) == 64 else None
    memories[name] = gpu_driver.LENT[kind](total_bytes, device, data, fd)
    layouts[name] = content.layout(total_bytes)
    return memories[name].says()


def cmd_borrow_version(version="latest", name="s", key="l", shard=0, flags=0, timeout=30):
    """What the agent lends: which version, and whether each row begins as promised."""
    lent[key] = raw.Lent(shards[name], version, shard, flags, timeout)
    return [lent[key].version, all(address % 64 == 0 for _, address, _ in lent[key].rows)]


def cmd_lent_digest(total_bytes, key="l"):
    """Of all rows, in the order in which alloc places them."""
    rows = {row[0]: row for row in lent[key].rows}
    lent[key].rows = [rows[name] for name, _ in content.layout(total_bytes)]
    return content.digest(lent[key].read())


def cmd_return_version(key="l"):
    lent.pop(key).give_back()


def cmd_lent_scribble(key="l"):
    """Every byte, without asking."""
    for _, address, count in lent[key].rows:
        ctypes.memset(address, 0x5A, count)


def cmd_lent_memory():
    """Bytes that this process maps of an agent's memory, those of them that it alone has, and how
    its descriptors of it may be used."""
    mapped = own = 0
    with open("/proc/self/smaps") as f:
        mine = False
        for line in f:
            word = line.split()
            if "-" in word[0] and ":" not in word[0]:
                mine = "/memfd:tensorhub-offload" in line
            elif mine and word[0] == "Rss:":
                mapped += int(word[1]) << 10
            elif mine and word[0] in ("Private_Clean:", "Private_Dirty:"):
                own += int(word[1]) << 10
    return [mapped, own]


def cmd_lent_write(key="l"):
    """What the system says to each way of writing what is lent, but for a plain store."""
    address = next(address for _, address, count in lent[key].rows if count > 1 << 21)
    libc = ctypes.CDLL(None, use_errno=True)
    said = {}
    page = address & ~4095
    with open("/proc/self/maps") as f:
        (span,) = (
            line.split()[0]
            for line in f
            if "/memfd:tensorhub-offload" in line
            and int(line.split("-")[0], 16) <= page < int(line.split()[0].split("-")[1], 16)
        )
    try:
        fd = os.open(f"/proc/self/map_files/{span}", os.O_RDWR)
    except OSError as e:
        said["open"] = e.strerror
    else:
        for how, call in (
            ("write", lambda: os.pwrite(fd, b"x", 0)),
            ("truncate", lambda: os.ftruncate(fd, 0)),
            ("map", lambda: mmap.mmap(fd, 4096)),
        ):
            try:
                call()
                said[how] = "done"
            except OSError as e:
                said[how] = e.strerror
        os.close(fd)
    if libc.mprotect(ctypes.c_void_p(page), 4096, 3) < 0:
        said["mprotect"] = os.strerror(ctypes.get_errno())
    else:
        said["mprotect"] = "done"
    return said


def cmd_says(name="s"):
    """The driver, of this memory."""
    return memories[name].says()


def in_one_call(call, limit, **_):
    """For in_slices of the package, which calls again and again, so that Ctrl-C is heard."""
    yield from ()
    return call(int(limit * 1000))


def cmd_register(
    name="s", timeout=10, memory=None, device=None, shift=0, dtype="U8", at_once=False
):  # fmt: skip
    """memory: the name of another handle, whose tensors they are too. shift: they begin so many
    bytes later. at_once: a slice of time that ends takes back what its call has begun."""
    memory = memory or name
    rows = memory_kinds.tensors(memories[memory], layouts[memory], shift, dtype, device)
    start = time.monotonic()
    sliced = th.handle.in_slices
    th.handle.in_slices = in_one_call if at_once else sliced
    try:
        shards[name].register(rows, timeout=timeout)
    finally:
        th.handle.in_slices = sliced
    return time.monotonic() - start


def cmd_path(name="s", memory=None):
    """Of the first tensor."""
    return shards[name].memory_path(layouts[memory or name][0][0])


def cmd_gpu_rates(total_bytes, device=0):
    return gpu_driver.rates(total_bytes, device)


def cmd_stall(name="s"):
    """Work on the memory's GPU that never ends."""
    gpu_driver.stall(memories[name])


def cmd_publish_times(first, count, name="s"):
    """Seconds of each call."""
    times = []
    for version in range(first, first + count):
        start = time.monotonic()
        shards[name].publish(version, timeout=20)
        times.append(time.monotonic() - start)
        shards[name].unpublish(timeout=20)
    return times


def cmd_sleep(name="s"):
    """As sleep modes do: the GPU memory goes, its addresses stay."""
    memories[name].sleep()


def cmd_wake(name="s"):
    memories[name].wake()


def cmd_punch(name="s"):
    """Takes the pages out of the first half."""
    memory_kinds.punch(memories[name].fd, 0, memories[name].bytes // 2)


def cmd_fill(seed, name="s"):
    data = content.content(seed, memories[name].bytes)
    memories[name].write(0, data)
    return content.digest(data)


def cmd_scribble(byte, name="s"):
    memories[name].fill(byte)


def cmd_flip(offset, name="s"):
    """One byte of the memory, whatever is published."""
    byte = memories[name].read(offset, 1)[0]
    memories[name].write(offset, bytes([byte ^ 1]))


def cmd_digest(name="s"):
    return content.digest(memories[name].read(0, memories[name].bytes))


def cmd_publish(version, name="s", timeout=20):
    # Memory.write has waited for its GPU; one that is lost, or never ends, is for libthc to find.
    shards[name].publish(version, stream=False, timeout=timeout)


def cmd_unpublish(name="s", timeout=20, scribble=None, force=False):
    """scribble: overwrite every byte the moment unpublish has returned."""
    shards[name].unpublish(force=force, timeout=timeout)
    if scribble is not None:
        memories[name].fill(scribble)


def fields(answer):
    return {name: value for name, value in vars(answer).items() if name[0] != "_"}


def cmd_replicate(version="latest", name="s", timeout=30):
    return fields(shards[name].replicate(version, timeout=timeout))


def cmd_update(version="latest", name="s", timeout=30):
    return fields(shards[name].update(version, timeout=timeout))


def cmd_inside(verb, argument, name="s", timeout=30):
    """The call of libthc that waits in there."""
    raw.inside(shards[name], verb, argument, timeout)


def cmd_submit(version="latest", name="s", timeout=30):
    ops[name] = shards[name].replicate_async(version, timeout=timeout)


def cmd_progress(name="s"):
    return ops[name].progress


def cmd_op_wait(name="s", timeout=30):
    return fields(ops[name].result(timeout))


def cmd_op_waits(name="s"):
    return ops[name]._waits()


def cmd_op_cancel(name="s"):
    ops[name].cancel()


def cmd_held(name="s"):
    return shards[name].held


def cmd_safe(name="s"):
    return shards[name].safe_to_mutate


def cmd_ready(name="s"):
    return shards[name].ready_version


def cmd_wait_ready(version, name="s", seconds=60):
    """Until READY has been told and this version is there; calls nothing meanwhile."""
    handle, told, end = shards[name], False, time.monotonic() + seconds
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while time.monotonic() < end:
        told = told or th.Event.READY in handle.events()
        if told and handle.ready_version == version:
            return version
        poller.poll(100)
    raise TimeoutError(f"ready: {handle.ready_version}, told: {told}")


def cmd_follow_versions(version="latest", name="s", timeout=30):
    """None: no more."""
    raw.follow(shards[name], version, timeout)


def cmd_go(version, name="s", timeout=30):
    raw.go(shards[name], version, timeout)


def cmd_await_held(version, name="s", seconds=60):
    """Until this version is held, or a later one: which, and the bits of all events meanwhile. The
    agent brings it; what is called here changes nothing."""
    handle, seen, end = shards[name], 0, time.monotonic() + seconds
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while time.monotonic() < end:
        held = handle.held
        seen |= int(handle.events())
        if held is not None and held[1] >= version:
            return [held[1], seen]
        poller.poll(100)
    raise TimeoutError(f"holds {handle.held}, events {seen}")


def cmd_events(name="s"):
    return int(shards[name].events())


def cmd_list(name="s", group=False, timeout=10):
    """Its versions: [lineage, version, [what is said of each replica]]."""
    listing = shards[name].list(group=group, timeout=timeout)
    versions = [[*key, [*map(fields, v.replicas)]] for key, v in listing.details.items()]
    return {"generation": listing.generation, "versions": versions}


def cmd_wait_version(version, name="s", timeout=20):
    shards[name].wait(lambda listing: version in listing, timeout=timeout)


def cmd_wait_newer(version, name="s", timeout=20):
    shards[name].wait(lambda listing: any(v > version for v in listing), timeout=timeout)


def cmd_close(name="s", timeout=20, abandon=False):
    try:
        shards[name].close(abandon=abandon, timeout=timeout)
    except th.Error:
        if not abandon:
            raise  # it stays
        del shards[name]
        raise
    del shards[name]


def cmd_update_loop(steps, name="s", seconds=60):
    """update("latest") until `steps` is held; returns [(version, digest)] of each new one."""
    seen, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        result = shards[name].update("latest", timeout=30)
        if result:
            seen.append((result.version, cmd_digest(name)))
            if result.version >= steps:
                return seen
        else:
            held = shards[name].held or (0, -1)
            shards[name].wait(lambda listing: any(k > held for k in listing.all), timeout=30)
    raise TimeoutError(f"only {seen[-1:]} of {steps}")


def cmd_poll(version, name="s", seconds=120):
    """update("latest") again and again until this version is held: the result of the call that
    brought it, and how long the longest call took. `polls` counts the calls before it."""
    longest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        result = shards[name].update("latest", timeout=seconds)
        longest = max(longest, time.monotonic() - start)
        if result and result.version >= version:
            return {**fields(result), "longest": longest}
        polls[name] = polls.get(name, 0) + 1
        time.sleep(0.001)
    raise TimeoutError(f"no version {version} after {polls.get(name, 0)} calls")


def cmd_polled(name="s"):
    return polls.get(name, 0)


def cmd_fork():
    """A child that lives on and answers one question: what do its inherited handles say?"""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        calls = (("publish", {"version": 99}), ("held", {}), ("close", {}))
        codes = {cmd: timed(cmd, args)[0] for cmd, args in calls}
        os.write(write_end, json.dumps(codes).encode())
        os.close(write_end)
        for fd in (0, 1):
            os.close(fd)
        time.sleep(60)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        return {"pid": pid, "codes": json.load(pipe)}


def cmd_resolve(name="s", timeout=30):
    return fields(shards[name].resolve(timeout=timeout))


def cmd_unregister(name="s", timeout=10):
    shards[name].unregister(timeout=timeout)


def cmd_set_attribute(key, value, name="s"):
    shards[name].set_attribute(key, value.encode())


def cmd_attributes(version="latest", name="s", timeout=10):
    found = shards[name].manifest(version, timeout=timeout).attributes
    return {key: value.decode() for key, value in found.items()}


def cmd_manifest(version="latest", name="s", timeout=10):
    return shards[name].manifest(version, timeout=timeout).version


def cmd_wait_never(name="s", timeout=20):
    shards[name].wait(lambda _listing: False, timeout=timeout)


def cmd_fill_words(word, name="s"):
    """Every 8 bytes are this number."""
    memories[name].write(0, word.to_bytes(8, "little") * (memories[name].bytes // 8))


class Truth(threading.Thread):
    """Asks what a handle holds and whether its memory is safe, over and over, and looks at the
    bytes: those of a held version are all there (see cmd_fill_words), safe ones do not change."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.shard, self.memory = shards[name], memories[name]
        self.view = None
        if self.memory.device < 0:  # the host's
            words = self.memory.bytes // 8
            self.view = memoryview((ctypes.c_uint64 * words).from_address(self.memory.address))
            self.view = self.view.cast("B").cast("Q")
        self.polls = self.held = self.safe = 0
        self.enough, self.error = None, None

    def sample(self):
        # Another offset each time: all words are looked at in the end.
        if self.view:
            return set(self.view[self.polls % 4096 :: 4096].tolist())
        part = self.memory.bytes // 512  # more would be slower than what it is to see
        return set(memoryview(self.memory.read(self.polls % 512 * part, part)).cast("Q").tolist())

    def poll(self):
        self.polls += 1
        safe = self.shard.safe_to_mutate
        held = self.shard.held
        words = self.sample()
        again = self.sample()
        if self.shard.held == held and held is not None:
            self.held += 1
            if words != {held[1]} or again != words:
                return f"holds {held}, but its bytes are of {sorted(words | again)}"
            if safe and self.shard.safe_to_mutate:
                return f"holds {held}, which others may read, and says that it is safe"
        elif held is None and safe and self.shard.safe_to_mutate:
            self.safe += 1
            if words != again:
                return "holds nothing and says that it is safe, but its bytes change"

    def run(self):
        while self.error is None and (self.enough is None or self.polls < self.enough):
            try:
                self.error = self.poll()
            except th.Error as e:
                self.error = str(e)


truths = {}


def cmd_truth_start(name="s"):
    truths[name] = Truth(name)
    truths[name].start()


def cmd_truth(name="s"):
    """What it has seen so far: polls, and those with a held version or with safe memory."""
    return {k: getattr(truths[name], k) for k in ("polls", "held", "safe", "error")}


def cmd_truth_end(polls, name="s"):
    """After so many polls at least."""
    truths[name].enough = polls
    truths[name].join()
    return cmd_truth(name)


def cmd_stamp(version, shard, name="s"):
    data = content.content(f"{version}/{shard}", memories[name].bytes)
    memories[name].write(0, data)


def cmd_compare(version, shard, name="s"):
    """None when the memory is this version's; else the first block that is not."""
    have, step = memories[name].read(0, memories[name].bytes), content.BLOCK
    want = content.content(f"{version}/{shard}", len(have))
    if have == want:
        return None
    return next(at for at in range(0, len(have), step) if have[at:][:step] != want[at:][:step])


followed = {}


def cmd_follow(least_bytes, name="s"):
    """Notes from now on when bytes of the submitted operation come; returns with the first few."""
    enough = threading.Event()
    moments = followed[name] = []
    op = ops[name]

    def follow():
        before, end = 0, time.monotonic() + 60
        while time.monotonic() < end:
            done, total = op.progress
            if done != before:
                moments.append(time.monotonic())
                before = done
            if done >= least_bytes:
                enough.set()
            if total and done == total:
                return
            time.sleep(0.0005)

    threading.Thread(target=follow, daemon=True).start()
    if not enough.wait(60):
        raise TimeoutError("no bytes")


def cmd_followed(since, name="s"):
    """When bytes came again after the longest time without any since then; None: there was none."""
    after = [m for m in followed[name] if m > since]
    if not after:
        return None
    gaps = [(b - a, b) for a, b in zip([since, *after], after)]
    return max(gaps)[1]


class Metronome(threading.Thread):
    """How late this machine wakes a thread: what a deadline cannot be kept better than."""

    PERIOD = 0.02

    def __init__(self):
        super().__init__(daemon=True)
        self.late = [(time.monotonic(), 0.0)]

    def run(self):
        before = time.monotonic()
        while True:
            time.sleep(self.PERIOD)
            now = time.monotonic()
            self.late.append((now, now - before - self.PERIOD))
            before = now

    def worst(self, start):
        """Of all that ended since start, and of the one that has not ended yet."""
        late, now = self.late, time.monotonic()
        worst = now - late[-1][0] - self.PERIOD
        for at in range(len(late) - 1, -1, -1):
            if late[at][0] < start:
                break
            worst = max(worst, late[at][1])
        return worst


metronome = None


def cmd_metronome():
    """From now on every answer says how late a thread was woken while it ran."""
    global metronome
    metronome = Metronome()
    metronome.start()


def cmd_signal_storm(period=0.001):
    """From now on this process gets a signal with a handler, over and over, in its main thread
    and in those that wait in a call."""
    signal.setitimer(signal.ITIMER_REAL, period, period)


def timed(cmd, args):
    """[name of the code or "ok", seconds, value or sentence] of one command."""
    start = time.monotonic()
    try:
        value = globals()["cmd_" + cmd](**args)
        return ["ok", time.monotonic() - start, value]
    except th.Error as e:
        return [e.name, time.monotonic() - start, str(e)]
    except Exception:
        return ["PYTHON", time.monotonic() - start, traceback.format_exc()]


def cmd_many(calls):
    """Commands [cmd, args] side by side, each in a thread of its own; what timed says of each."""
    results = [None] * len(calls)

    def one(index):
        results[index] = timed(*calls[index])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def cmd_threads():
    return sorted(os.listdir("/proc/self/task"))


def run(message):
    reply = {"id": message["id"]}
    start = time.monotonic()
    try:
        reply["value"] = globals()["cmd_" + message["cmd"]](**message.get("args", {}))
    except th.Error as e:
        reply.update(error=e.name, text=str(e))
    except Exception:
        reply.update(error="PYTHON", text=traceback.format_exc())
    reply.update(start=start, seconds=time.monotonic() - start)
    if metronome:
        reply["late"] = metronome.worst(start)
    answer(reply)


def main():
    signal.signal(signal.SIGALRM, lambda *_: None)
    for line in sys.stdin:
        message = json.loads(line)
        threading.Thread(target=run, args=(message,), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
