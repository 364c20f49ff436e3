"""Takes a chunk's lock as zarr-python does, or writes items of the chunk, by commands on standard input.

    locks.py STORE LOCKS      (with zarr 2.18)

Each command is a line, and so is its answer: `key`, `try` (answers `got` or `busy`), `release`, and `count N`. The
latter writes the numbers 1 to N to the last item of the first chunk. Each write takes the lock of the chunk.
"""
import sys

import zarr


def main():
    store, locks = sys.argv[1:]
    z = zarr.open_array(store, path="group/a", mode="r+", synchronizer=zarr.ProcessSynchronizer(locks))
    key = z._chunk_key((0, 0))
    lock = z.synchronizer[key]
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "key":
            answer = key
        elif command == "try":
            answer = "got" if lock.acquire(blocking=False) else "busy"
        elif command == "release":
            lock.release()
            answer = "released"
        else:
            for i in range(1, int(arguments[0]) + 1):
                z[3, 3] = i
            answer = "counted"
        print(answer, flush=True)


main()
