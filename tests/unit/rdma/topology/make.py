#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the hosts that the test of transport/rdma/topology reads, in hwloc's own format.

make.py FOLDER

None of them is a copy of a real machine: each has the structure of a kind of machine and nothing
else. hwloc checks what it reads, so a host that it takes has every mask and every bus right.
"""

import os
import sys

GPU, NIC, DISK, CONSOLE = '0302', '0207', '0108', '0300'
VENDORS = {GPU: '10de:2330', NIC: '15b3:1021', DISK: '144d:a824', CONSOLE: '1a03:2000'}


class Host:
    def __init__(self, nodes):
        self.nodes, self.lines, self.id, self.bus = nodes, [], 0, 0

    def open(self, depth, kind, attributes, close=False):
        self.id += 1
        text = ' '.join(f'{k}="{v}"' for k, v in attributes.items())
        end = '/>' if close else '>'
        self.lines.append(f'{"  " * depth}<object type="{kind}" gp_index="{self.id}" {text}{end}')

    def close(self, depth):
        self.lines.append(f'{"  " * depth}</object>')

    def sets(self, nodes, root=False):
        """Two processors and a NUMA node go together."""
        cpus = sum(3 << 2 * node for node in nodes)
        mask = sum(1 << node for node in nodes)
        found = {'cpuset': f'0x{cpus:08x}', 'complete_cpuset': f'0x{cpus:08x}'}
        if root:
            found['allowed_cpuset'] = found['cpuset']
        found |= {'nodeset': f'0x{mask:08x}', 'complete_nodeset': f'0x{mask:08x}'}
        if root:
            found['allowed_nodeset'] = found['nodeset']
        return found

    def memory(self, depth, node):
        self.open(depth, 'NUMANode', {'os_index': node, **self.sets([node]),
                                      'local_memory': 1 << 36}, close=True)
        for pu in (2 * node, 2 * node + 1):
            one = f'0x{1 << pu:08x}'
            self.open(depth, 'PU', {'os_index': pu, 'cpuset': one, 'complete_cpuset': one,
                                    'nodeset': f'0x{1 << node:08x}',
                                    'complete_nodeset': f'0x{1 << node:08x}'}, close=True)

    def device(self, depth, what):
        kind, name = what
        self.open(depth, 'PCIDev', {
            'pci_busid': f'0000:{self.bus:02x}:00.0',
            'pci_type': f'{kind} [{VENDORS[kind]}] [0000:0000] 00', 'pci_link_speed': '63.0'},
            close=name is None)
        if name:
            self.open(depth + 1, 'OSDev', {'name': name, 'osdev_type': 3}, close=True)
            self.close(depth)

    def tree(self, depth, what, below):
        """A device, or a list: a bridge with what is below it."""
        first = self.bus
        self.bus += 1
        if isinstance(what, list):
            at = len(self.lines)
            for one in what:
                self.tree(depth + 1, one, below + 1)
            inner = self.lines[at:]
            del self.lines[at:]
        else:
            at = len(self.lines)
            self.device(depth + 1, what)
            inner = self.lines[at:]
            del self.lines[at:]
        self.open(depth, 'Bridge', {
            'bridge_type': '1-1', 'depth': below,
            'bridge_pci': f'0000:[{first + 1:02x}-{self.bus:02x}]',
            'pci_busid': f'0000:{first:02x}:01.0',
            'pci_type': '0604 [1000:c010] [0000:0000] 00', 'pci_link_speed': '63.0'})
        self.lines += inner
        self.close(depth)

    def host_bridge(self, depth, ports):
        first = self.bus
        at = len(self.lines)
        for one in ports:
            self.tree(depth + 1, one, 1)
        inner = self.lines[at:]
        del self.lines[at:]
        self.open(depth, 'Bridge', {'bridge_type': '0-1', 'depth': 0,
                                    'bridge_pci': f'0000:[{first:02x}-{self.bus:02x}]'})
        self.lines += inner
        self.close(depth)
        self.bus += 1

    def text(self):
        return '\n'.join([
            '<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
            '<topology version="2.0">', *self.lines, '</topology>', ''])


def host(packages, anywhere=(), loose=()):
    """packages: of each, the bridges of each of its nodes and those of the package itself.
    anywhere: bridges that belong to no package. loose: devices on no bus."""
    nodes = sum(len(of_nodes) for of_nodes, _ in packages)
    h = Host(nodes)
    h.open(1, 'Machine', {'os_index': 0, **h.sets(range(nodes), root=True)})
    node = 0
    for number, (of_nodes, of_package) in enumerate(packages):
        h.open(2, 'Package', {'os_index': number,
                              **h.sets(range(node, node + len(of_nodes)))})
        for bridges in of_nodes:
            if len(of_nodes) > 1:
                h.open(3, 'Group', {**h.sets([node]), 'kind': 0, 'subkind': 0})
            h.memory(4 if len(of_nodes) > 1 else 3, node)
            for ports in bridges:
                h.host_bridge(4 if len(of_nodes) > 1 else 3, ports)
            if len(of_nodes) > 1:
                h.close(3)
            node += 1
        for ports in of_package:
            h.host_bridge(3, ports)
        h.close(2)
    for ports in anywhere:
        h.host_bridge(2, ports)
    for name in loose:
        h.open(2, 'OSDev', {'name': name, 'osdev_type': 3}, close=True)
    h.close(1)
    return h.text()


def nic(number):
    return (NIC, f'mlx5_{number}')


GPU1, DISK1, CONSOLE1 = (GPU, None), (DISK, None), (CONSOLE, None)

HOSTS = {
    # Two GPUs and a NIC behind each of four switches.
    'gpus8_nics4': host([
        ([[[[GPU1, GPU1, nic(0)]], [[GPU1, GPU1, nic(1)]]]], []),
        ([[[[GPU1, GPU1, nic(2)]], [[GPU1, GPU1, nic(3)]]]], [])]),
    # A GPU and its NIC behind each of eight switches; a NIC for storage and a console besides.
    'gpus8_nics8': host([
        ([[[[GPU1, nic(0)]], [[GPU1, nic(1)]], [[GPU1, nic(2)]], [[GPU1, nic(3)]],
           [nic(8), DISK1, CONSOLE1]]], []),
        ([[[[GPU1, nic(4)]], [[GPU1, nic(5)]], [[GPU1, nic(6)]], [[GPU1, nic(7)]]]], [])]),
    # Two GPUs and two NICs behind each switch of a cascade.
    'gpus8_shared': host([
        ([[[[GPU1, GPU1, nic(0), nic(1)]], [[GPU1, GPU1, nic(2), nic(3)]]]], []),
        ([[[[[GPU1, nic(4)], [GPU1, nic(5)]]], [[[GPU1, nic(6)], [GPU1, nic(7)]]]]], [])]),
    # Two processors of two nodes; one has a NIC at a node and one for all of it, one has none.
    'sockets2': host([
        ([[[nic(0)]], []], [[nic(1)]]),
        ([[[GPU1]], []], [])]),
    # A virtual machine: nothing says where the bridge is.
    'flat': host([([[]], [])], anywhere=[[nic(0), nic(1), GPU1]]),
    # A NIC that the kernel makes of another device (soft-RoCE) beside a real one.
    'no_bus': host([([[]], []), ([[[nic(0)]]], [])], loose=['rxe0']),
}


def main():
    for name, text in HOSTS.items():
        with open(os.path.join(sys.argv[1], f'{name}.xml'), 'w', encoding='utf-8') as file:
            file.write(text)


if __name__ == '__main__':
    main()
