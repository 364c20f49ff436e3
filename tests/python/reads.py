#!/usr/bin/env python3
"""Reads an array's data.raw in many ways and compares with the flat bytes that zarr-python reads from the store.

    reads.py MOUNT STORE ARRAY      (with zarr 2.18; ARRAY is its path in the store, "" for the root)

It calls pread(2) at odd offsets and sizes in 8 processes and in 8 threads concurrently. Then it makes one pass of
read(2), and reads through mmap(2). Prints the number of bytes and reads; exit code 1 after a difference.
"""
import concurrent.futures
import mmap
import multiprocessing
import os
import random
import sys

import numpy as np
import zarr

SEED = 1
READERS = 8
READS = 200


def flat(store, path):
    """Returns the bytes in C order and the dtype's byte order. Missing chunks without a fill value are zeros."""
    array = zarr.open_array(zarr.DirectoryStore(store), path=path, mode="r")
    out = np.zeros(array.shape, array.dtype)
    if out.size:
        array.get_basic_selection(..., out=out)
    return out.tobytes()


def check(what, offset, got, want):
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        sys.exit(f"{what} at {offset}: {len(got)} bytes for {len(want)}, the first difference is byte {offset + at}")


def places(size, seed):
    """Yields offsets and lengths: at the ends, at block edges, and random ones."""
    rng = random.Random(seed)
    for block in (1, 2, 7, 512, 4096, 65536, 1 << 20):
        for offset in (0, 1, block - 1, block, size - block, size - block - 1, size - 1, size, size + block):
            if offset >= 0:
                yield offset, block
    for _ in range(READS):
        yield rng.randrange(size + 1), rng.choice((1, 3, 13, 511, 4095, 4097, 131071, 262147))
    yield 0, size
    yield 0, size + 1


def preads(path, data, seed):
    count = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset, length in places(len(data), seed):
            got = os.pread(fd, length, offset)
            # the kernel may return less than a very large read requests
            while more := os.pread(fd, length - len(got), offset + len(got)):
                got += more
            check("pread", offset, got, data[offset:offset + length])
            count += 1
    finally:
        os.close(fd)
    return count


def main():
    mount, store, array = sys.argv[1:]
    data = flat(store, array)
    path = os.path.join(mount, array, "data.raw")
    if os.stat(path).st_size != len(data):
        sys.exit(f"{path}: {os.stat(path).st_size} bytes, zarr-python has {len(data)}")

    # concurrent readers come first, with cold caches
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(READERS, fork) as pool:
        count = sum(pool.map(preads, [path] * READERS, [data] * READERS, range(SEED, SEED + READERS)))
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        count += sum(pool.map(preads, [path] * READERS, [data] * READERS, range(SEED, SEED + READERS)))

    with open(path, "rb", buffering=0) as f:
        offset = 0
        while block := f.read(65537):
            check("read", offset, block, data[offset:offset + len(block)])
            offset += len(block)
            count += 1
        if offset != len(data):
            sys.exit(f"read ends at {offset} of {len(data)}")
        if data:
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as view:
                for offset, length in places(len(data), SEED):
                    check("mmap", offset, view[offset:offset + length], data[offset:offset + length])
                    count += 1
    print(f"{array or '/'}: {len(data)} bytes, {count} reads, all equal")


if __name__ == "__main__":
    main()
