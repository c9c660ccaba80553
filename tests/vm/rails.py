# SPDX-License-Identifier: Apache-2.0
"""Rails between hosts within one guest: soft-RoCE devices whose packets really travel.

Host h has on rail r the device and interface h<h>r<r> with address 10.79.<r>.<h+1>; the hosts of
a rail are on a switch of its own. All of it is in the guest's first network namespace, because
the kernel's soft-RoCE knows no other; a rule by source address takes packets out to the switch
that would else stay in the host. A process in another namespace (cluster.Hosts) can use the
devices too, so that TCP and RDMA of a host are cut one by one.
"""

import contextlib
import os
import socket
import struct
import subprocess

from cluster import Skip, wait_for


def command(*argv, text=None):
    p = subprocess.run(argv, input=text, capture_output=True, text=True)
    if p.returncode:
        raise AssertionError(f"{' '.join(argv)}: {p.stderr}{text or ''}")
    return p.stdout


def batch(program, lines):
    """All of them by one process: in an emulated machine its start is what takes time."""
    command(program, "-b", "-", text="\n".join(lines) + "\n")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def setting(name, value):
    with open(f"/proc/sys/net/ipv4/{name}", "w", encoding="utf-8") as f:
        f.write(str(value))


class Rails:
    """They last as long as the guest."""

    def __init__(self, hosts=2, rails=2):
        if os.environ.get("TH_VM") != "1":
            raise Skip("not in a virtual machine: tests/vm/run-in-vm")
        self.hosts, self.rails = hosts, rails
        self.undo = {}  # what mends what is broken now: program, argument -> its line
        for name in ("all", "default"):
            setting(f"conf/{name}/rp_filter", 0)
            setting(f"conf/{name}/accept_local", 1)
            # Only the interface whose address it is answers for it.
            setting(f"conf/{name}/arp_ignore", 1)
        lines = []
        if not command("ip", "rule", "list", "pref", "1"):
            lines += ["rule add pref 1 lookup local", "rule del pref 0 lookup local"]
        for r in range(rails):
            lines.append(f"link add sw{r} mtu 9000 up type bridge")
            for h in range(hosts):
                name, table = self.device(h, r), self.table(h, r)
                lines += [
                    f"link add {name} mtu 9000 type veth peer name p{name} mtu 9000",
                    f"link set p{name} master sw{r} up",
                    f"addr add {self.address(h, r)}/32 dev {name}",
                    f"link set {name} up",
                    f"route add local {self.address(h, r)} dev {name} table {table}",
                    f"route add 10.79.{r}.0/24 dev {name} src {self.address(h, r)} table {table}",
                    f"rule add pref 0 iif lo from {self.address(h, r)} to 10.79.{r}.0/24 "
                    f"lookup {table}",
                ]
        batch("ip", lines)
        names = [self.device(h, r) for h, r in self.all()]
        batch("rdma", [f"link add {name} type rxe netdev {name}" for name in names])
        self.settle()

    def settle(self):
        """Every rail is up, and everybody knows his neighbours. A wire of no length answers before
        the kernel's RDMA has begun to wait for it, so that waits a second at each first contact.
        """
        wait_for(self.ready, 30, "every rail is up")
        for h, r in self.all():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.bind((self.address(h, r), 0))
                for other in range(self.hosts):
                    s.sendto(b"", (self.address(other, r), 9))

    def ready(self):
        return all(self.up(h, r) and self.has_gid(h, r) for h, r in self.all())

    def all(self):
        return [(h, r) for h in range(self.hosts) for r in range(self.rails)]

    @staticmethod
    def device(h, r):
        return f"h{h}r{r}"

    @staticmethod
    def address(h, r):
        return f"10.79.{r}.{h + 1}"

    @staticmethod
    def table(h, r):
        return 100 + 10 * h + r

    def devices(self, h):
        return [self.device(h, r) for r in range(self.rails)]

    def port(self, h, r, name):
        return read(f"/sys/class/infiniband/{self.device(h, r)}/ports/1/{name}").strip()

    def up(self, h, r):
        return self.port(h, r, "state").endswith("ACTIVE")

    def has_gid(self, h, r):
        return any(":ffff:" in self.port(h, r, f"gids/{i}") for i in range(4))

    def change(self, program, change, mend):
        """Lines of the program; those of `mend` undo them, and are not done twice."""
        batch(program, change)
        for line in mend:
            self.undo[program, line] = None
        for line in change:
            self.undo.pop((program, line), None)

    def heal(self):
        """All rails are as they were in the beginning."""
        for program in ("ip", "tc"):
            lines = [line for which, line in self.undo if which == program]
            if lines:
                batch(program, lines)
        self.undo = {}
        self.settle()

    def cut(self, h, *rails, heal=False):
        """The switch's end goes down: the host sees that its link is down."""
        ends = [f"link set p{self.device(h, r)}" for r in rails]
        down, up = ([f"{end} {how}" for end in ends] for how in ("down", "up"))
        self.change("ip", *((up, []) if heal else (down, up)))

    def lose(self, h, r, heal=False):
        """What the host sends and gets on this rail is lost; nobody is told."""
        end = f"link set p{self.device(h, r)}"
        out, back = [f"{end} nomaster"], [f"{end} master sw{r}"]
        self.change("ip", *((back, []) if heal else (out, back)))

    def limit(self, h, rate):
        """Of what the host gets on each rail, e.g. `64mbit`; None: no limit. Nothing is dropped."""
        ends = [f"qdisc replace dev p{self.device(h, r)} root" for r in range(self.rails)]
        none = [f"{end} noqueue" for end in ends]
        shaped = [f"{end} tbf rate {rate} burst 64k limit 64m" for end in ends]
        self.change("tc", *((shaped, none) if rate else (none, [])))

    def remove_device(self, h, r):
        command("rdma", "link", "delete", self.device(h, r))

    def sent(self, h, r, way="tx"):
        """Bytes that the host sent on this rail."""
        return int(read(f"/sys/class/net/{self.device(h, r)}/statistics/{way}_bytes"))

    def received(self, h, r):
        return self.sent(h, r, "rx")


# Attributes of RDMA_NLDEV_CMD_RES_GET, rdma/rdma_netlink.h.
DEVICE, SUMMARY, NAME, COUNT = 2, 15, 17, 18


def attributes(data):
    """Of a message of netlink: type -> bytes, and what lies in nested ones likewise, in order."""
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


def resources():
    """Of each device: what the kernel holds for it, e.g. {"h0r0": {"qp": 1, "mr": 0, ...}}. One
    queue pair, completion queue and protection domain are the kernel's own. As `rdma resource show`
    tells it, without a process: this is asked again and again."""
    ask_all = struct.pack("=IHHII", 16, 5 << 10 | 9, 0x301, 0, 0)  # NLDEV, RES_GET; all of them
    found, text = {}, lambda data: data.rstrip(b"\0").decode()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20) as s:
        s.settimeout(30)
        s.send(ask_all)
        while True:
            data = s.recv(1 << 20)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind == 3:  # done
                    return found
                assert kind != 2, "the kernel refuses"
                device = dict(attributes(data[16:size]))
                entries = [dict(attributes(entry)) for _, entry in attributes(device[SUMMARY])]
                found[text(device[DEVICE])] = {
                    text(entry[NAME]): struct.unpack("=Q", entry[COUNT])[0]
                    for entry in entries
                }
                data = data[(size + 3) & ~3 :]


def is_listening(port=18515):
    """That port of all these tools, by a socket in the state LISTEN."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(path).splitlines()[1:]:
            words = line.split()
            if words[1].endswith(f":{port:04X}") and words[3] == "0A":
                return True
    return False


@contextlib.contextmanager
def listening(*argv):
    """A server of the tools' own: they listen on a port of TCP first."""
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(is_listening, 30, f"{argv[0]} listens")
        yield p
    finally:
        p.kill()
        p.communicate()
