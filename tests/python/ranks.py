"""Processes that write disjoint ranges of one file at once, as MPI ranks do, for tests/durability/batch.rs.

create STORE [SHARDS]   creates an array that has values everywhere
write FILE              starts 16 processes, each of which writes its ranges of `data.raw`, and syncs the file
same STORE              compares the whole array, as zarr-python reads it, with what was there and what was written
"""

import multiprocessing
import os
import sys

import numpy as np

SHAPE, CHUNKS, SHARDS = (96, 130, 70), (8, 40, 32), (48, 80, 64)
RANKS = 16
# no chunk, row or page begins where a range does; each seventeenth range is nobody's
RANGE = 1237


def values(seed):
    return np.random.default_rng(seed).integers(0, 1 << 16, SHAPE).astype("<u2")


def ranges(size):
    """Returns rank, start and end of each range that is written."""
    for i, start in enumerate(range(11, size, RANGE)):
        if i % (RANKS + 1) < RANKS:
            yield i % (RANKS + 1), start, min(start + RANGE, size)


def rank(number, path, barrier):
    new = values(2).tobytes()
    file = os.open(path, os.O_WRONLY)
    barrier.wait()
    for of, start, end in ranges(len(new)):
        if of == number and os.pwrite(file, new[start:end], start) != end - start:
            sys.exit("short write")
    os.fsync(file)
    os.close(file)


def create(store, *in_shards):
    import zarr

    shards = SHARDS if in_shards else None
    array = zarr.create_array(store, shape=SHAPE, chunks=CHUNKS, shards=shards, dtype="<u2", fill_value=7)
    array[:] = values(1)


def write(path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(RANKS)
    ranks = [context.Process(target=rank, args=(number, path, barrier)) for number in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if failed := [process.exitcode for process in ranks if process.exitcode]:
        sys.exit(f"{len(failed)} ranks failed")


def same(store):
    import zarr

    expected, new = bytearray(values(1).tobytes()), values(2).tobytes()
    for _, start, end in ranges(len(new)):
        expected[start:end] = new[start:end]
    found = zarr.open_array(store, mode="r")[:]
    if found.astype("<u2").tobytes() != bytes(expected):
        sys.exit("the array differs")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
