"""The program behind scripts/bench."""
import argparse
import datetime
import json
import os
import pathlib
import sys

import compare
import report
import sharded
import stores
import system
from arrays import ARRAYS, MAPS, Array, check_space, make, make_plain
from growth import GROWTH_ROWS, GrowthBench
from remote import RemoteBench, StoreBench
from series import SeriesBench
from sharded import SHARD_ROWS, ShardBench
from writing import check_disk

ARRAY_ROWS = {"cat": RemoteBench.cat, "dd": RemoteBench.dd, "warm": RemoteBench.warm, "memory": RemoteBench.memory,
              "file": RemoteBench.to_file, "plane": RemoteBench.plane, "sum": RemoteBench.sum,
              "parallel": RemoteBench.parallel, "crowd": RemoteBench.crowd,
              "latency": RemoteBench.latency, "random": RemoteBench.random,
              "random-warm": RemoteBench.random_warm, "peak": RemoteBench.peak}
WRITE_ROWS = {"write": RemoteBench.write, "overwrite": RemoteBench.overwrite, "store": RemoteBench.store_all,
              "journaled": RemoteBench.journaled,
              "write-peak": RemoteBench.write_peak, "update": RemoteBench.update, "random-write": RemoteBench.random_write}
REMOTE_ROWS = {"remote": RemoteBench.remote, "zip": RemoteBench.zip}
# the arrays for the rows of writing and of remote stores, unless --only names others
SOME = ("f4-blosc-lz4", "i2-zlib-1")
STORE_ROWS = {"first-byte": StoreBench.first_byte, "ls": StoreBench.ls, "stat": StoreBench.stat,
              "ls-s3": StoreBench.ls_s3}
SERIES_ROWS = {"series": SeriesBench.series}


def arguments():
    all_rows = {**ARRAY_ROWS, **WRITE_ROWS, **REMOTE_ROWS, **STORE_ROWS, **SHARD_ROWS, **SERIES_ROWS, **GROWTH_ROWS}
    names = ", ".join([*(a.name for a in ARRAYS), *all_rows])
    parser = argparse.ArgumentParser(prog="scripts/bench", epilog=f"names for --only: {names}")
    for hidden in ("--zarr2", "--peers", "--servers", "--programs", "--dir"):
        parser.add_argument(hidden, type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--mib", type=int, default=1024, help="size of an array in MiB; those of bz2 and lzma have an eighth [1024]")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; tables show medians [5]")
    parser.add_argument("--only", default="", metavar="NAME,...", help="measure only these arrays and rows; without "
                        "arrays all arrays, and without rows all rows")
    parser.add_argument("--quick", action="store_true", help="measure one round of a few small arrays")
    parser.add_argument("--ten-million", action="store_true", help="store all chunks of the grid of ten million")
    parser.add_argument("--compare", type=pathlib.Path, metavar="FILE", help="print the changes since this result")
    parser.add_argument("--output", type=pathlib.Path, help="file of the result [target/bench/result.json, or result-quick.json]")
    args = parser.parse_args()
    if args.quick:
        args.mib, args.rounds = 64, 1
    args.output = args.output or args.dir / ("result-quick.json" if args.quick else "result.json")
    only = {name for name in args.only.split(",") if name}
    if unknown := only - {a.name for a in ARRAYS} - {*all_rows}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; names are {names}")
    # the first eight are one array of each codec and order, for --quick
    args.arrays = [a for a in ARRAYS if a.name in only] or (ARRAYS[:8] if args.quick else ARRAYS)
    rows = [r for r in all_rows if r in only]
    # if --only names arrays and no rows, all rows of arrays are measured, and no stores
    args.array_rows = [r for r in ARRAY_ROWS if r in rows or not rows]
    args.write_rows = [r for r in WRITE_ROWS if r in rows or not rows]
    args.remote_rows = [r for r in REMOTE_ROWS if r in rows or not rows]
    some = [a for a in args.arrays if a.name in only or a.name in SOME]
    args.written = some if args.write_rows else []
    args.remote = some if args.remote_rows else []
    args.store_rows = [r for r in STORE_ROWS if r in rows or not only]
    args.shard_rows = [r for r in SHARD_ROWS if r in rows or not only]
    # a quarter of fewer steps is no chunk: neither the cache of zarrfs nor what a library keeps would be exceeded
    maps = [a for a in MAPS if a.shape(args.mib)[0] >= 4]
    args.maps = maps if "series" in rows or not only else []
    args.growth_rows = [r for r in GROWTH_ROWS if r in rows or not only]
    if not args.array_rows:
        args.arrays = some if args.written or args.remote else []
    return args


class Setup:
    """Settings and results that all measurements share."""

    def __init__(self, args):
        self.mib = args.mib
        self.zarr2, self.peers, self.servers = args.zarr2, args.peers, args.servers
        examples = args.programs / "examples"
        self.decode, self.encode, self.update = (examples / name for name in ("decode", "encode", "update"))
        self.remote_server, self.remote_client = examples / "remote_server", examples / "remote_client"
        self.peer_script = pathlib.Path(__file__).with_name("peer.py")
        self.directory = args.dir / f"{args.mib}-mib"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.programs = args.programs
        self.mounts = system.Mounts(args.programs, args.dir)
        self.fio_ms = 200 if args.quick else 1000
        # a thirtieth of the pages, so that hardly any read finds its page in the page cache
        self.cold_reads = args.mib * 8
        self.reads = 4 if args.quick else 8
        self.random_reads = 40 if args.quick else 400
        self.slab_bytes = 64 << 20
        self.listed = 10_000 if args.quick else 100_000
        self.updates = 20 if args.quick else 200
        # the number of concurrent stores of a mount
        self.write_threads = max(4, len(os.sched_getaffinity(0)))

    @staticmethod
    def json(value):
        return json.dumps(value, default=str)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r{text:60}\r", end="", file=sys.stderr, flush=True)


def bench_array(setup, array, args, cores):
    store, plain = make(array, setup.mib, setup.directory)
    bench = RemoteBench(setup, array, store, plain)
    bench.verify()
    rows = {r: ARRAY_ROWS[r] for r in args.array_rows}
    if array in args.written:
        rows |= {r: WRITE_ROWS[r] for r in args.write_rows}
    if array in args.remote:
        rows |= {r: REMOTE_ROWS[r] for r in args.remote_rows}
    for bench.round in range(args.rounds):
        for row, measure in rows.items():
            progress(f"{array.name}: round {bench.round + 1}, {row}")
            measure(bench)
    progress("")
    result = described(setup, array, bench)
    result["bound"] = report.bounds(result, cores)
    return result


def described(setup, array, bench):
    return {"dtype": array.dtype, "shape": array.shape(setup.mib), "chunks": array.chunks, "order": array.order,
            "codec": array.codec, "compressor": array.compressor, "filters": array.filters,
            "chunk_bytes": array.chunk_bytes,
            "whole_rows": len(array.plane) == 2 and array.chunks[2] == array.plane[1] and array.plane[1] == 1024,
            "bytes": bench.size, "stored": sum(f.stat().st_size for f in bench.store.iterdir()),
            "rows": bench.samples.summary()}


def bench_stores(setup, args, counts):
    if not args.store_rows:
        return {}
    made = stores.make_all(args.dir, *counts, 10_000, args.ten_million)
    bench = StoreBench(setup, made)
    for bench.round in range(args.rounds):
        for row in args.store_rows:
            STORE_ROWS[row](bench)
    return bench.samples.summary()


def bench_shards(setup, args):
    """Returns the rows of sharded arrays by codec."""
    if not args.shard_rows:
        return {}
    source = Array("shards", "smooth", "<f4", sharded.PLANE, sharded.CHUNKS)
    plain = setup.directory / source.plain_name(setup.mib)
    if not plain.exists():
        make_plain(source, setup.mib, plain)
    result = {}
    for codec in sharded.CODECS:
        bench = ShardBench(setup, codec, plain)
        for bench.round in range(args.rounds):
            for row in args.shard_rows:
                progress(f"shards, {codec}: round {bench.round + 1}, {row}")
                SHARD_ROWS[row](bench)
        progress("")
        result[codec] = bench.samples.summary()
    return result


def bench_series(setup, array, args):
    bench = SeriesBench(setup, array, *make(array, setup.mib, setup.directory))
    bench.verify()
    # a round takes minutes, and measures several points
    rounds = min(args.rounds, 2)
    for bench.round in range(rounds):
        progress(f"{array.name}: round {bench.round + 1}, series")
        bench.series()
    progress("")
    return {"rounds": rounds, **described(setup, array, bench)}


def bench_growth(setup, args):
    bench = GrowthBench(setup, args.dir, args.quick)
    for bench.round in range(args.rounds):
        for row in args.growth_rows:
            progress(f"round {bench.round + 1}, {row}")
            GROWTH_ROWS[row](bench)
    progress("")
    return bench.samples.summary()


def main():
    args = arguments()
    system.end_with_exception()
    # read now, since this run may write the same file
    before = json.loads(args.compare.read_text()) if args.compare else None
    setup = Setup(args)
    check_space([*args.arrays, *args.maps], args.mib, setup.directory, bool(args.written))
    file_system = system.file_system_of(setup.directory)
    if args.written:
        check_disk(setup.directory, file_system)
    if not setup.mounts.has_direct_io:
        print("this zarrfs has no --direct-io: its columns are left out")
    root = pathlib.Path(__file__).parents[2]
    counts = (1_000, 10_000) if args.quick else (10_000, 100_000)
    result = {
        "date": datetime.date.today().isoformat(), "mib": args.mib, "rounds": args.rounds,
        "machine": {**system.machine(), "file_system": file_system},
        "versions": system.versions(setup.mounts.zarrfs_program, args.zarr2, args.peers, args.servers, root),
        "arrays": {}, "series": {}, "growth": {},
    }
    result["stores"] = {"arrays": counts[0], "chunks": counts[1], "listed": setup.listed,
                        "rows": bench_stores(setup, args, counts)}
    try:
        result["growth"] = {"rows": bench_growth(setup, args)}
        result["shards"] = bench_shards(setup, args)
        for array in args.maps:
            result["series"][array.name] = bench_series(setup, array, args)
        for array in args.arrays:
            result["arrays"][array.name] = bench_array(setup, array, args, result["machine"]["cores"])
    except (KeyboardInterrupt, SystemExit):
        print("interrupted: the tables show the measurements until then")
    result["targets"] = report.targets(result)
    report.print_all(result)
    if before:
        compare.print_compared(before, result)
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{args.output.name} written")


if __name__ == "__main__":
    try:
        main()
    except system.Failed as e:
        sys.exit(f"bench: {e}")
    except (KeyboardInterrupt, SystemExit):
        sys.exit(130)
