"""The rows of sharded arrays: shards against the same chunks without shards, and zarrfs against the libraries."""
import contextlib
import functools
import json
import math
import os
import random
import shutil
import time

from arrays import READ
from measure import Samples
from remote import CONNECTIONS, REMOTE_PEERS, remote_server
from system import Failed, json_of, peak_of, timed

LIBRARIES = ["zarr3", "zarr3-fused", "zarrs", "tensorstore"]
PLANE, CHUNKS, ITEMSIZE = (1024, 1024), (4, 64, 256), 4  # 4 KiB of a row are in four chunks of 256 KiB
PLANE_MIB = math.prod(PLANE) * ITEMSIZE >> 20
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4,
                                           "blocksize": 0}}
CODECS = {"zstd": [ZSTD], "blosc": [BLOSC], "none": []}
SHARD_MIB = (None, 16, 256)


def document(mib, codecs, shard_mib):
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs]
    chunks = list(CHUNKS)
    if shard_mib:
        shard = {"chunk_shape": chunks, "codecs": codecs, "index_location": "end",
                 "index_codecs": [codecs[0], {"name": "crc32c"}]}
        chunks, codecs = [shard_mib // PLANE_MIB, *PLANE], [{"name": "sharding_indexed", "configuration": shard}]
    return {"zarr_format": 3, "node_type": "array", "shape": [mib // PLANE_MIB, *PLANE], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs, "attributes": {}}


class ShardBench:
    """Measures arrays of one codec: without shards, and in shards of two sizes."""

    def __init__(self, setup, codec, plain):
        self.setup, self.codec, self.plain, self.mounts, self.samples = setup, codec, plain, setup.mounts, Samples()
        self.size = setup.mib << 20
        self.round = 0
        self.flat = self.mounts.at / "data.raw"
        self.copy = setup.directory / "written.zarr"
        self.stores = {s: self.make(s) for s in SHARD_MIB if not s or s <= setup.mib}

    def name(self, shard_mib):
        return f"{shard_mib} MiB" if shard_mib else "no shards"

    def empty(self, store, shard_mib):
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
        (store / "zarr.json").write_text(json.dumps(document(self.setup.mib, CODECS[self.codec], shard_mib)))

    def make(self, shard_mib):
        """Returns a store that TensorStore has written."""
        store = self.setup.directory / f"f4-{self.codec}-shards-{shard_mib or 0}.zarr"
        done = store.with_suffix(".made")
        if not done.exists():
            print(f"making {store.name}", flush=True)
            self.empty(store, shard_mib)
            self.peer("tensorstore", "store", path=store, plain=self.plain)
            done.touch()
        return store

    def peer(self, library, operation, /, **arguments):
        result = json_of([self.setup.peers, self.setup.peer_script, library, operation, self.setup.json(arguments)])
        if "error" in result:
            raise Failed(result["error"])
        return result

    def each_library(self, row, shard_mib, operation, value, **arguments):
        for library in self.samples.left(row, [f"{library}, {self.name(shard_mib)}" for library in LIBRARIES]):
            with self.samples.noting_failure(row, library):
                result = self.peer(library.split(",")[0], operation, **arguments)
                self.samples.add(row, library, *value(result["seconds"]))

    def cat(self):
        for shard_mib, store in self.stores.items():
            timed(["cat", *(f for f in store.rglob("*") if f.is_file())])
            with self.mounts.zarrfs(store) as pid:
                self.samples.add("cat", f"zarrfs, {self.name(shard_mib)}", timed(["cat", self.flat])[0])
                self.samples.add("peak", f"zarrfs, {self.name(shard_mib)}", peak_of(pid))
            with self.mounts.zarrfs(store, "--direct-io"):
                self.samples.add("cat", f"direct, {self.name(shard_mib)}", timed(["cat", self.flat])[0])
            self.each_library("memory", shard_mib, "memory", lambda s: [s], path=store)

    def random(self):
        """Measures reads of 4 KiB from different chunks. The first one, which opens the array, has its own row."""
        pick, shape = random.Random(self.round), (self.setup.mib // PLANE_MIB, *PLANE)
        bands = [(z, y) for z in range(0, shape[0], CHUNKS[0]) for y in range(0, shape[1], CHUNKS[1])]
        rows = [(z + pick.randrange(CHUNKS[0]), y + pick.randrange(CHUNKS[1]))
                for z, y in pick.sample(bands, min(40, len(bands)))]
        reads = [[[z, z + 1], [y, y + 1], [0, PLANE[1]]] for z, y in rows]
        offsets = [(z * PLANE[0] + y) * READ for z, y in rows]
        for shard_mib, store in self.stores.items():
            with self.mounts.zarrfs(store):
                seconds = self.peer("pread", "pread", path=self.flat, offsets=offsets, size=READ)["seconds"]
            self.samples.add("first 4 KiB", f"zarrfs, {self.name(shard_mib)}", seconds[0])
            self.samples.add("4 KiB", f"zarrfs, {self.name(shard_mib)}", *seconds[1:])
            self.each_library("4 KiB", shard_mib, "latency", lambda s: s[1:], path=store, reads=reads)

    def write(self):
        for shard_mib in self.stores:
            with self.copied(shard_mib), self.mounts.zarrfs(self.copy) as pid:
                command = ["dd", f"if={self.plain}", f"of={self.flat}", "bs=1M", "conv=fsync,notrunc", "status=none"]
                name = f"zarrfs, {self.name(shard_mib)}"
                self.samples.add("dd", name, timed(command)[0])
                self.samples.add("dd-objects", name, self.mounts.counters()["objects_stored"])
                self.samples.add("dd-peak", name, peak_of(pid))
            for library in LIBRARIES:
                with self.copied(shard_mib), self.samples.noting_failure("dd", f"{library}, {self.name(shard_mib)}"):
                    seconds = self.peer(library, "store", path=self.copy, plain=self.plain)["seconds"]
                    self.samples.add("dd", f"{library}, {self.name(shard_mib)}", seconds[1])

    def update(self):
        """Measures writing 4 bytes with fsync, and copying an object durably: the least that a new object costs."""
        for shard_mib, store in self.stores.items():
            with self.copied(shard_mib, full=True):
                with self.mounts.zarrfs(self.copy), open(self.flat, "r+b", buffering=0) as f:
                    for _ in range(5):
                        at = random.randrange(self.size // 4) * 4
                        os.sync()
                        self.samples.add("4 bytes", f"zarrfs, {self.name(shard_mib)}", self.update_once(f, at))
                largest = max((p for p in store.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
                out = self.setup.directory / "copied"
                os.sync()
                for _ in range(5):
                    seconds = timed(["cp", "--reflink=never", largest, out])[0] + timed(["sync", out])[0]
                    out.unlink()
                    self.samples.add("4 bytes", f"cp, sync, {self.name(shard_mib)}", seconds)

    def remote(self):
        """Measures reading the array over a network with latency, and the number of requests for each 8 MiB of it."""
        for shard_mib, store in self.stores.items():
            served = functools.partial(remote_server, self.setup.remote_server, store.parent)
            name = self.name(shard_mib)
            with served() as server, self.mounts.zarrfs(f"{server.url}/{store.name}"):
                self.samples.add("remote", f"zarrfs, {name}", timed(["cat", self.flat])[0])
                self.samples.add("remote-requests", f"zarrfs, {name}", server.requests() / (self.setup.mib / 8))
            for library in REMOTE_PEERS:
                options = {"requests": CONNECTIONS, **({"driver": "zarr3"} if library == "tensorstore" else {})}
                with self.samples.noting_failure("remote", f"{library}, {name}"), served() as server:
                    result = self.peer(library, "memory", path=f"{server.url}/{store.name}", library=options)
                    self.samples.add("remote", f"{library}, {name}", result["seconds"])
                    self.samples.add("remote-requests", f"{library}, {name}", server.requests() / (self.setup.mib / 8))

    @staticmethod
    def update_once(f, at):
        start = time.perf_counter()
        os.pwrite(f.fileno(), os.urandom(4), at)
        os.fsync(f.fileno())
        return time.perf_counter() - start

    @contextlib.contextmanager
    def copied(self, shard_mib, full=False):
        self.empty(self.copy, shard_mib)
        try:
            if full:
                shutil.copytree(self.stores[shard_mib], self.copy, dirs_exist_ok=True)
            os.sync()
            yield
        finally:
            shutil.rmtree(self.copy, ignore_errors=True)


SHARD_ROWS = {"shard-cat": ShardBench.cat, "shard-random": ShardBench.random, "shard-write": ShardBench.write,
              "shard-update": ShardBench.update, "shard-remote": ShardBench.remote}
UNITS = {"peak": ("MiB", 2**-20), "dd-peak": ("MiB", 2**-20), "dd-objects": ("", 1), "remote-requests": ("", 1)}


def print_rows(codec, rows):
    print(f"\nshards, {codec}: medians, and the range")
    for row, columns in rows.items():
        unit, factor = UNITS.get(row, ("ms", 1e3))
        for column, v in columns.items():
            text = v.get("error") or f"{v['median'] * factor:9.2f} {unit} ({v['min'] * factor:.2f} to {v['max'] * factor:.2f})"
            print(f"{row:12} {column:24} {text}")
