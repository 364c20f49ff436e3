"""The measuring part of scripts/bench."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import numpy as np
import zarr
from numcodecs import Blosc, Zlib

parser = argparse.ArgumentParser(prog="bench")
parser.add_argument("--zarrfs", required=True)
parser.add_argument("--dir", type=pathlib.Path, required=True)
parser.add_argument("--mib", type=int, default=512, help="decoded size of each array")
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()


def smooth(z, width):
    """A slab of a slowly changing field, with some noise, between -1 and 1."""
    y, x = np.mgrid[0:width, 0:width].astype("f4") / width
    noise = np.random.default_rng(z[0]).normal(0, 1e-4, (len(z), width, width)).astype("f4")
    return np.sin(7 * x + 3 * y + z[:, None, None] / 90).astype("f4") * 0.9 + noise


ARRAYS = {
    "f4-blosc-lz4": ("<f4", Blosc("lz4", 5, Blosc.SHUFFLE), lambda field: field),
    "i2-zlib-1": ("<i2", Zlib(1), lambda field: (field * 2000).astype("<i2")),
}


def make(name):
    """The array in DIR/NAME.zarr, and the same bytes as the plain file DIR/NAME.raw."""
    dtype, compressor, convert = ARRAYS[name]
    store, plain = args.dir / f"{name}.zarr", args.dir / f"{name}.raw"
    depth = args.mib * (4 // np.dtype(dtype).itemsize)  # planes of 1 MiB of f4
    made = {"shape": [depth, 512, 512]}
    if store.exists() and plain.exists() and json.loads((store / ".zattrs").read_text()) == made:
        return store, plain
    print(f"making {store.name}", flush=True)
    shutil.rmtree(store, ignore_errors=True)
    array = zarr.open_array(str(store), mode="w", shape=made["shape"], chunks=(64, 128, 128), dtype=dtype,
                            compressor=compressor)
    with open(plain, "wb") as f:
        for start in range(0, depth, 64):
            slab = convert(smooth(np.arange(start, min(start + 64, depth)), 512))
            array[start:start + 64] = slab
            f.write(slab.tobytes())
    array.attrs.update(made)
    return store, plain


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cat(path):
    subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)


class Mount:
    def __init__(self, store):
        self.store, self.at = store, args.dir / "mnt"

    def __enter__(self):
        self.at.mkdir(exist_ok=True)
        subprocess.run([args.zarrfs, "mount", self.store, self.at], check=True)
        return self.at / "data.raw"

    def __exit__(self, *_):
        if subprocess.run([args.zarrfs, "umount", self.at]).returncode:
            subprocess.run(["umount", "-l", self.at])


def to_file(store, out):
    zarr.open_array(str(store), mode="r")[...].tofile(out)


def measure(store, plain):
    with Mount(store) as raw:  # the bytes are right, and the store's files are in the page cache
        subprocess.run(["cmp", raw, plain], check=True)
    rows = ("mount, cold", "mount, warm", "zarr-python to memory", "zarr-python to a file", "plain file")
    times = {k: [] for k in rows}
    out = args.dir / "out.raw"
    for _ in range(args.rounds):
        with Mount(store) as raw:
            times["mount, cold"].append(timed(lambda: cat(raw)))
            times["mount, warm"].append(timed(lambda: cat(raw)))
        times["zarr-python to memory"].append(timed(lambda: zarr.open_array(str(store), mode="r")[...]))
        times["zarr-python to a file"].append(timed(lambda: to_file(store, out)))
        out.unlink()
        times["plain file"].append(timed(lambda: cat(plain)))
    return {k: {"median": statistics.median(v), "min": min(v), "max": max(v)} for k, v in times.items()}


def main():
    args.dir.mkdir(parents=True, exist_ok=True)
    result = {"mib": args.mib, "rounds": args.rounds, "cpus": os.cpu_count(), "zarr": zarr.__version__, "arrays": {}}
    for name in ARRAYS:
        store, plain = make(name)
        size = plain.stat().st_size
        stored = sum(f.stat().st_size for f in store.iterdir())
        rows = measure(store, plain)
        result["arrays"][name] = {"bytes": size, "stored": stored, "seconds": rows}
        print(f"\n{name}: {size / 2**20:.0f} MiB, stored {stored / 2**20:.0f} MiB; medians of {args.rounds}")
        print(f"{'':24}{'seconds':>9}{'min':>9}{'max':>9}{'GB/s':>8}{'x zarr to file':>16}{'x plain file':>14}")
        for what, row in rows.items():
            m = row["median"]
            zarr_ratio, plain_ratio = (rows[k]["median"] / m for k in ("zarr-python to a file", "plain file"))
            print(f"{what:24}{m:9.3f}{row['min']:9.3f}{row['max']:9.3f}{size / m / 1e9:8.2f}"
                  f"{zarr_ratio:16.2f}{plain_ratio:14.2f}")
    (args.dir / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{args.dir.name}/result.json written; x: times as fast as")


if __name__ == "__main__":
    main()
