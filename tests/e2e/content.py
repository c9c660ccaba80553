# SPDX-License-Identifier: Apache-2.0
"""What the tests publish: layouts with small, large, odd and empty tensors, and bytes from a
seed."""

import hashlib

MIB = 1 << 20


def layout(total_bytes):
    """Rows (name, bytes) of about total_bytes: a few small tensors, an empty one, and large
    ones that are no multiple of anything."""
    rows = [("embed.norm", 4096), ("empty", 0), ("scalar", 2), ("layer.0.bias", 100_003)]
    left = total_bytes - sum(n for _, n in rows)
    index = 0
    while left > 0:
        size = min(left, 9 * MIB + 12_345 if left > 9 * MIB + 12_345 else left)
        rows.append((f"layer.{index}.weight", size))
        left -= size
        index += 1
    return rows


BLOCK = 64 << 10


def content(seed, nbytes):
    """Each 64 KiB of it different from all others. Made and hashed by what is quick: it is a good
    part of what the tests do."""
    base = hashlib.shake_256(str(seed).encode()).digest(BLOCK - 8)
    blocks = (n.to_bytes(8, "little") + base for n in range(-(-nbytes // BLOCK)))
    return b"".join(blocks)[:nbytes]


def digest(data):
    return hashlib.sha256(data).hexdigest()
