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


def content(seed, nbytes):
    return hashlib.shake_256(str(seed).encode()).digest(nbytes) if nbytes else b""


def digest(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()
