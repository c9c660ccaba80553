# SPDX-License-Identifier: Apache-2.0
"""What calls answer: Result, Listing, Manifest. Plain values, with nothing of libthc behind."""

import ctypes as c
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from . import _abi, dtypes


@dataclass(frozen=True)
class Result:
    """How a replicate or an update went. Times are in seconds.

    ``bool(result)`` is true when these bytes are new: of an update that found nothing newer it is
    false, of a replicate always true.
    """

    version: Optional[int]  #: that is held now; None: none
    lineage: int  #: the run of the training that it is of
    updated: bool  #: these bytes are new
    bytes_moved: int  #: over the network or between processes
    bytes_reused: int  #: were here already, with the same content
    wait: float  #: for the version and the other members
    transfer: float  #: moving
    verify: float  #: checking that was not done while moving
    source: str  #: replica that the last byte came from; "" when nothing moved
    transport: str  #: "rdma", "rdma-copy", "tcp", "local" or "cuda-ipc"; "" likewise
    bytes_prefetched: int  #: of bytes_moved: out of this host's memory, where they were before
    num_sources: int  #: shards that this one has read from; 0: they are not counted
    reason: str  #: why by no better way, as with no room to prefetch; "": there is none
    _true: bool = field(default=False, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.updated or self._true


def result_of(raw: _abi.Result, always: bool) -> Result:
    held = raw.version != _abi.NO_VERSION
    return Result(
        version=raw.version if held else None,
        lineage=raw.lineage,
        updated=bool(raw.updated),
        bytes_moved=raw.bytes_moved,
        bytes_reused=raw.bytes_reused,
        wait=raw.wait_ns / 1e9,
        transfer=raw.transfer_ns / 1e9,
        verify=raw.verify_ns / 1e9,
        source=raw.source.decode(errors="replace"),
        transport=raw.transport.decode(errors="replace"),
        bytes_prefetched=raw.bytes_prefetched,
        num_sources=raw.num_sources,
        reason=raw.reason.decode(errors="replace"),
        _true=always,
    )


@dataclass(frozen=True)
class Replica:
    """A copy of one version, whole or being filled."""

    name: str
    datacenter: str
    num_shards: int
    progress: float  #: 0 to 1
    ready: bool
    offload: bool  #: kept by agents in their own memory
    spot: bool
    draining: bool


@dataclass(frozen=True)
class Version:
    """A version and who has it."""

    lineage: int
    version: int
    retained: bool
    replicas: Tuple[Replica, ...]


class Listing(Mapping[int, FrozenSet[str]]):
    """Versions of the highest lineage, ascending, each with the names of its replicas.

    ``listing.latest`` is the highest that somebody has whole. ``listing.all`` has every lineage, by
    (lineage, version); ``listing.details`` the same with all that is known of each replica.
    ``listing.generation`` grows with every change.
    """

    def __init__(self, generation: int, details: Dict[Tuple[int, int], Version]) -> None:
        self.generation = generation
        self.details = details
        newest = max((lineage for lineage, _ in details), default=0)
        self._names = {
            key[1]: frozenset(replica.name for replica in one.replicas)
            for key, one in details.items()
            if key[0] == newest
        }

    @property
    def all(self) -> Dict[Tuple[int, int], FrozenSet[str]]:
        """The names of the replicas of each (lineage, version), of every lineage."""
        return {
            key: frozenset(replica.name for replica in one.replicas)
            for key, one in self.details.items()
        }

    @property
    def latest(self) -> Optional[int]:
        """The highest version, of the highest lineage, that somebody has whole; None: none."""
        whole = [
            key for key, one in self.details.items() if any(copy.ready for copy in one.replicas)
        ]
        return max(whole)[1] if whole else None

    def __getitem__(self, version: int) -> FrozenSet[str]:
        return self._names[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Listing({self._names})"


def _rows(first: Optional[int], count: int, step: int, kind: type) -> Iterator[c.Structure]:
    """Elements of an array whose elements lie step bytes apart: a newer libthc's are longer."""
    for i in range(count):
        yield kind.from_address((first or 0) + i * step)  # type: ignore[attr-defined]


def listing_of(raw: _abi.Listing) -> Listing:
    details = {}
    for one in _rows(raw.versions, raw.num_versions, raw.version_bytes, _abi.VersionInfo):
        replicas = tuple(
            Replica(
                name=r.name.decode(),
                datacenter=r.datacenter.decode(),
                num_shards=r.num_shards,
                progress=r.progress,
                ready=bool(r.flags & 1),
                offload=bool(r.flags & 2),
                spot=bool(r.flags & 4),
                draining=bool(r.flags & 8),
            )
            for r in _rows(one.replicas, one.num_replicas, raw.replica_bytes, _abi.ReplicaInfo)
        )
        details[one.lineage, one.version] = Version(
            one.lineage, one.version, bool(one.retained), replicas
        )
    return Listing(raw.generation, details)


@dataclass(frozen=True)
class Row:
    """One tensor of a version as its publisher registered it."""

    name: str
    dtype: str  #: as safetensors writes it, "BF16"
    shape: Tuple[int, ...]  #: of the piece that this shard has
    global_shape: Tuple[int, ...]  #: of the whole tensor
    offset: Tuple[int, ...]  #: where the piece lies in it
    nbytes: int
    tied: int = 0  #: rows with the same number, not 0, are the same bytes


@dataclass(frozen=True)
class Manifest:
    """What one shard of a version consists of: to allocate before a replicate."""

    version: int
    lineage: int
    shard: int
    num_shards: int
    tensors: Mapping[str, Row]
    attributes: Mapping[str, bytes]


def manifest_of(raw: _abi.Manifest) -> Manifest:
    rows: Dict[str, Row] = {}
    for one in _rows(raw.tensors, raw.count, raw.tensor_bytes, _abi.Tensor):
        shape = tuple(one.local_shape[: one.ndim])
        whole = tuple(one.global_shape[: one.ndim])
        name = one.name.decode()
        rows[name] = Row(
            name=name,
            dtype=dtypes.BY_CODE[one.dtype].name,
            shape=shape,
            global_shape=whole if any(whole) else shape,
            offset=tuple(one.offset[: one.ndim]),
            nbytes=one.bytes,
            tied=one.data or 0,
        )
    attributes: List[Tuple[str, bytes]] = [
        (a.name.decode(), c.string_at(a.value, a.bytes) if a.bytes else b"")
        for a in _rows(raw.attributes, raw.num_attributes, raw.attribute_bytes, _abi.Attribute)
    ]
    return Manifest(
        version=raw.version,
        lineage=raw.lineage,
        shard=raw.shard,
        num_shards=raw.num_shards,
        tensors=rows,
        attributes=dict(attributes),
    )
