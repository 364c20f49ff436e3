#!/usr/bin/env python3
"""Writes small arrays of every kind that zarr-python 2.18 and numcodecs can store, and digests of their values.

    matrix.py DIR      (with zarr 2.18)

DIR gets the stores and oracle.json. Its entry for an array has the digests of the flat bytes (C order, the byte order
of the dtype) and of each decoded chunk, as zarr-python reads them. Every run writes equal bytes, except for the time in
gzip headers.
"""
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
import warnings

import numcodecs
import numpy as np
import zarr
from numcodecs import LZ4, LZMA, BZ2, AsType, BitRound, Blosc, Categorize, Delta, FixedScaleOffset, GZip, PackBits
from numcodecs import ZFPY, Quantize, Shuffle, Zlib, Zstd

warnings.simplefilter("ignore")
numcodecs.blosc.use_threads = False  # threads put blocks in the order in which they finish

DTYPES = [
    "|b1", "|i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "|u1", "<u2", ">u2", "<u4", ">u4", "<u8", ">u8",
    "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16", "|S1", "|S7", "<U3", ">U5", "<M8[s]", ">M8[ns]", "<m8[ms]",
    "|V5", [("a", "<i4"), ("b", ">f8"), ("c", "|S3")], [("x", "<u2", (2, 2)), ("y", [("z", "|i1"), ("w", "<f4")])],
]
COMPRESSORS = {
    "raw": None, "blosc-lz4": Blosc("lz4", 5, Blosc.SHUFFLE), "zlib": Zlib(1),
    "blosc-zstd-bit": Blosc("zstd", 3, Blosc.BITSHUFFLE), "gzip": GZip(5), "zstd": Zstd(3), "lz4": LZ4(), "bz2": BZ2(1),
    "blosc-blosclz": Blosc("blosclz", 9, Blosc.NOSHUFFLE), "xz": LZMA(preset=1),
    "blosc-zlib": Blosc("zlib", 1, Blosc.AUTOSHUFFLE),
    "lzma-raw": LZMA(format=3, filters=[{"id": 3, "dist": 4}, {"id": 0x21, "preset": 1}]),
    "blosc-lz4hc-blocks": Blosc("lz4hc", 9, Blosc.SHUFFLE, 256), "lzma-alone": LZMA(format=2, preset=0),
    "zstd-checksum": Zstd(1, checksum=True), "zlib0": Zlib(0), "blosc0": Blosc("lz4", 0, Blosc.SHUFFLE),
}
# name: shape, chunks
GEOMETRIES = {
    "0d": ((), ()), "1d": ((100,), (100,)), "1d-edge": ((101,), (9,)), "1d-short": ((5,), (64,)),
    "2d-edge": ((13, 7), (4, 3)), "3d-edge": ((7, 5, 11), (3, 5, 4)), "2d-rows": ((6, 20), (1, 20)),
    "zero": ((0,), (4,)), "3d-zero": ((3, 0, 2), (2, 1, 2)), "4d": ((3, 2, 4, 5), (2, 1, 3, 2)),
    "2d-one": ((40, 33), (40, 33)),
    "1d-ones": ((6,), (1,)), "2d-exact": ((8, 12), (4, 6)), "5d": ((2, 3, 2, 3, 2), (1, 2, 2, 2, 1)),
}
PRESENCE = ["all", "some", "all", "none", "some"]
FILLS = ["zero", "null", "special", "extreme"]


def values(dtype, shape, rng):
    """Returns rather smooth values, which codecs and filters can compress, with special values such as NaN."""
    n = math.prod(shape)
    if dtype.fields:
        out = np.zeros(shape, dtype)
        for name in dtype.names:
            sub = dtype[name]
            out[name] = values(sub.base, shape + sub.shape, rng)
        return out
    ramp = np.cumsum(rng.integers(-3, 4, n))
    if dtype.kind == "b":
        out = ramp % 3 == 0
    elif dtype.kind in "iu":
        out = (ramp + (0 if dtype.kind == "i" else 2 ** 7)).astype(dtype)
        out[1::17] = np.iinfo(dtype).max
        out[2::17] = np.iinfo(dtype).min
    elif dtype.kind in "fc":
        out = (ramp / 8).astype(dtype)
        out[1::17], out[2::17], out[3::17], out[4::17] = np.nan, np.inf, -np.inf, -0.0
        if dtype.kind == "c":
            out = out + (ramp * 1j).astype(dtype)
    elif dtype.kind in "mM":
        out = (ramp * 1000).astype("i8").astype(dtype)
        out[1::17] = "NaT"
    elif dtype.kind == "S":
        out = np.array([b"%d" % v for v in ramp], dtype)
    elif dtype.kind == "U":
        out = np.array([f"\u00e4{v}\U0001f40a" for v in ramp], dtype)
    else:
        out = rng.integers(0, 256, n * dtype.itemsize, dtype="u1").view(dtype)
    return np.asarray(out, dtype).reshape(shape)


def fill(dtype, how):
    if how == "null":
        return None
    if dtype.fields or dtype.kind == "V":
        return 0 if how == "zero" else np.frombuffer(bytes(range(1, dtype.itemsize + 1)), dtype)[0]
    if how == "zero":
        return {"S": b"", "U": "", "b": False}.get(dtype.kind, 0)
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        return 42 if how == "special" else int(np.iinfo(dtype).max)
    if dtype.kind == "f":
        return math.nan if how == "special" else -math.inf
    if dtype.kind == "c":
        return complex(1.5, -2.5) if how == "special" else complex(math.nan, 1)
    if dtype.kind in "mM":
        return np.array("NaT" if how == "special" else 86400, dtype)[()]
    return {"S": b"\xff~", "U": "\u4e2d"}[dtype.kind] if how == "special" else {"S": b"x" * 9, "U": "y" * 9}[dtype.kind]


def filters(dtype):
    """Returns the filter chains that a dtype can have, by name."""
    if dtype.kind == "b" and not dtype.fields:
        return {"packbits": [PackBits()]}
    if dtype.fields or dtype.kind in "Vc":
        return {"crc32": [numcodecs.CRC32()]}
    out = {"shuffle": [Shuffle(dtype.itemsize)]}
    if dtype.kind in "iu":
        narrow = "|i1" if dtype.itemsize == 1 else "<i2"
        out |= {"delta": [Delta(dtype.str)], "delta-shuffle": [Delta(dtype.str), Shuffle(dtype.itemsize)],
                "scale": [FixedScaleOffset(3, 2, dtype.str, narrow)],
                "checksums": [numcodecs.CRC32(), numcodecs.Adler32()]}
    if dtype.kind == "f":
        out |= {"delta": [Delta(dtype.str)], "quantize": [Quantize(2, dtype.str)], "astype": [AsType("<f8", dtype.str)],
                "scale": [FixedScaleOffset(1.5, 10, dtype.str, "<i4")], "fletcher32": [numcodecs.Fletcher32()]}
        if dtype.byteorder != ">":
            out["bitround"] = [BitRound(5)]
    if dtype.kind == "U":
        out["categorize"] = [Categorize(["\u00e40\U0001f40a", "\u00e4-1\U0001f40a"], dtype.str)]
    if dtype.kind in "mM":
        out = {"crc32c": [numcodecs.CRC32C()]} if hasattr(numcodecs, "CRC32C") else {"adler32": [numcodecs.Adler32()]}
    return out


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def decode(meta, data):
    """Decodes a chunk with all codecs except an object codec."""
    codecs = [numcodecs.get_codec(dict(c)) for c in meta["filters"] or []]
    if meta["dtype"] == "|O":
        codecs = codecs[1:]
    if meta["compressor"]:
        codecs.append(numcodecs.get_codec(dict(meta["compressor"])))
    for codec in reversed(codecs):
        data = codec.decode(data)
    return numcodecs.compat.ensure_bytes(data)


class Matrix:
    def __init__(self, folder):
        self.folder, self.entries, self.stores = folder, [], {}

    def store(self, name):
        if name not in self.stores:
            self.stores[name] = zarr.open_group(os.path.join(self.folder, name), mode="w")
        return self.stores[name]

    def chunk_path(self, store, path, key, separator):
        return os.path.join(self.folder, store, path, key.replace(".", separator))

    def add(self, store, path, data, chunks, presence="all", group=True, **options):
        separator = options.get("dimension_separator", ".")
        options |= {"shape": data.shape, "chunks": chunks or True, "dtype": data.dtype}
        if group:
            z = self.store(store).create_dataset(path, **options)
        else:
            z = zarr.open_array(os.path.join(self.folder, store), mode="w", **options)
        if presence != "none" and (data.ndim == 0 or data.size):
            z[...] = data
        keys = self.keys(z)
        if presence == "some":
            for key in keys[1::2]:
                os.remove(self.chunk_path(store, path, key, separator))
        z.attrs["presence"] = presence
        self.entries.append(self.entry(store, path, z))
        return z

    @staticmethod
    def keys(z):
        grid = itertools.product(*map(range, z.cdata_shape if z.ndim else ()))
        return [".".join(map(str, i)) or "0" for i in grid]

    def entry(self, store, path, z):
        with open(os.path.join(self.folder, store, path, ".zarray")) as f:
            meta = json.load(f)
        separator = meta.get("dimension_separator", ".")
        shown = ("zarr_format", "shape", "chunks", "dtype", "order", "fill_value", "compressor", "filters")
        out = {k: meta[k] for k in shown}
        out |= {"store": store, "array": path, "separator": separator, "reader": f"zarr {zarr.__version__}"}
        keys, stored = self.keys(z), 0
        digests = {}
        whole = None
        if not z.dtype.hasobject:
            # missing chunks stay zero if fill_value is null; z[...] would lose the byte order of a 0-d array
            whole = np.zeros(z.shape, z.dtype)
            if whole.size:
                z.get_basic_selection(..., out=whole)
            out |= {"nbytes": whole.nbytes, "sha256": sha256(whole.tobytes())}
        else:
            out |= {"object": True}
        for key in keys:
            raw = cut = None
            try:
                with open(self.chunk_path(store, path, key, separator), "rb") as f:
                    raw = decode(meta, f.read())
                stored += 1
            except FileNotFoundError:
                pass
            if whole is not None:
                grid = [int(i) for i in key.split(".")] if z.ndim else []
                place = tuple(slice(i * c, (i + 1) * c) for i, c in zip(grid, z.chunks))
                cut = sha256(whole[place].tobytes())
            digests[key] = {"raw": raw if raw is None else sha256(raw), "cut": cut}
            if raw is not None:
                digests[key]["raw_nbytes"] = len(raw)
        if meta["fill_value"] is None and stored < len(keys) and whole is not None:
            out["fill_assumed"] = "zeros"
        return out | {"chunk_sha256": digests, "nchunks": len(keys), "nstored": stored}

    def refuse(self, store, path, why):
        self.entries.append({"store": store, "array": path, "zarr_format": 2, "expect": "refuse", "error": why})


def pairs(matrix):
    """Writes a third of all pairs of dtype and compressor, every dtype with each of its filters, and every compressor
    with every geometry. The other properties cycle with different periods."""
    number = itertools.count()
    geometries = list(GEOMETRIES)

    def one(dtype, compressor, chain_name, chain, geometry):
        n = next(number)
        shape, chunks = GEOMETRIES[geometry]
        presence = PRESENCE[n % len(PRESENCE)]
        how = FILLS[n // 3 % len(FILLS)]
        order = "CF"[n // 2 % 2]
        kind, text = ("struct", "struct") if dtype.fields else (dtype.kind, dtype.str[1:])
        path = f"{kind}/{n:03}-{text}-{compressor}-{chain_name}-{order}-{geometry}-{presence}-{how}"
        path = path.replace("[", "_").replace("]", "")
        rng = np.random.default_rng(n)
        data = values(dtype, shape, rng)
        if chain_name in ("scale", "quantize", "astype") or (chain_name.startswith("delta") and dtype.kind == "f"):
            data = np.nan_to_num(data, nan=1, posinf=2, neginf=3).astype(dtype) if dtype.kind == "f" else data % 50
        matrix.add(("dot.zarr", "slash.zarr")[n % 2], path, data, chunks, presence, order=order,
                   compressor=COMPRESSORS[compressor], filters=chain, fill_value=fill(dtype, how),
                   dimension_separator="./"[n % 2])

    for (d, dtype), (c, compressor) in itertools.product(enumerate(DTYPES), enumerate(COMPRESSORS)):
        if (d + c) % 3 == 0 or d % 5 == 2:
            one(np.dtype(dtype), compressor, "none", None, geometries[(d + 3 * c) % len(geometries)])
    for (c, compressor), (g, geometry) in itertools.product(enumerate(COMPRESSORS), enumerate(geometries)):
        one(np.dtype(DTYPES[(5 * c + 7 * g) % len(DTYPES)]), compressor, "none", None, geometry)
    names = list(COMPRESSORS)
    solid = [g for g in geometries if 0 not in GEOMETRIES[g][0]]  # some filters cannot encode an empty buffer
    for d, dtype in enumerate(map(np.dtype, DTYPES)):
        for f, (name, chain) in enumerate(filters(dtype).items()):
            for k in range(2):
                compressor = names[(d + 5 * f + 7 * k) % len(names)]
                one(dtype, compressor, name, chain, solid[(3 * d + f + 5 * k) % len(solid)])


def zfp(matrix):
    """Writes arrays of numbers that zfpy has compressed in each of its modes. It refuses order F."""
    modes = {"reversible": ZFPY(), "accuracy": ZFPY(4, tolerance=1e-2), "rate": ZFPY(2, rate=12), "precision": ZFPY(3, precision=20)}
    cases = itertools.product(("<i4", "<i8", "<f4", "<f8"), modes, ("1d-edge", "2d-edge", "3d-edge", "4d"))
    for n, (dtype, mode, geometry) in enumerate(cases):
        dtype, (shape, chunks) = np.dtype(dtype), GEOMETRIES[geometry]
        data = values(dtype, shape, np.random.default_rng(n))
        if mode != "reversible":
            data = np.nan_to_num(data, nan=1, posinf=2, neginf=3).astype(dtype) if dtype.kind == "f" else data % 50
        chain = [Quantize(2, dtype.str)] if n % 5 == 2 and dtype.kind == "f" and mode == "reversible" else None
        matrix.add("zfp.zarr", f"{n:02}-{dtype.str[1:]}-{mode}-{geometry}", data, chunks, PRESENCE[n % len(PRESENCE)],
                   compressor=modes[mode], filters=chain, fill_value=0)


def objects(matrix):
    text = np.array(["foo", "", "b\u00e4r", "\U0001f40a" * 3, "qux"] * 3, object).reshape(3, 5)
    raw = np.array([b"", b"\x00\xff", b"abc"] * 4, object)
    ragged = np.empty(5, object)
    ragged[:] = [np.arange(n, dtype="<i4") for n in (1, 3, 0, 2, 9)]
    for name, data, codec, chunks in [
        ("vlen-utf8", text, numcodecs.VLenUTF8(), (2, 3)), ("vlen-bytes", raw, numcodecs.VLenBytes(), (5,)),
        ("vlen-array", ragged, numcodecs.VLenArray("<i4"), (2,)), ("json2", text, numcodecs.JSON(), (2, 5)),
        ("msgpack2", text, numcodecs.MsgPack(), (3, 2)), ("pickle", raw, numcodecs.Pickle(), (12,)),
    ]:
        for compressor in ("raw", "zlib", "blosc-lz4", "zstd"):
            matrix.add("object.zarr", f"{name}/{compressor}", data, chunks, "some" if compressor == "zlib" else "all",
                       object_codec=codec, compressor=COMPRESSORS[compressor],
                       fill_value="" if name == "vlen-utf8" else None)
            if name == "pickle":  # a reader should not unpickle it
                matrix.entries[-1]["expect"] = "either"


def shapes_of_stores(matrix):
    rng = np.random.default_rng(7)
    i4 = values(np.dtype("<i4"), (10, 6), rng)
    matrix.add("root.zarr", "", i4, (4, 4), group=False, compressor=Zlib(1))
    matrix.add("root0d.zarr", "", np.array(2.5, ">f8"), (), group=False, compressor=None)

    # groups without .zgroup, deep groups, current and stale .zmetadata, and files that do not belong to Zarr
    for store in ("consolidated.zarr", "stale.zarr", "tree.zarr"):
        for path in ("a", "group/b", "group/deep/er/c", "unmarked/d", "\u00fcml\u00e4ut/with space/e"):
            matrix.add(store, path, i4, (4, 4), compressor=COMPRESSORS["blosc-lz4"])
        matrix.store(store)["group"].attrs["title"] = "t\u00eftle"
        if store != "tree.zarr":
            zarr.consolidate_metadata(os.path.join(matrix.folder, store))
    matrix.add("stale.zarr", "group/later", i4, (5, 5), compressor=Zlib(1))
    tree = os.path.join(matrix.folder, "tree.zarr")
    os.remove(os.path.join(tree, "unmarked", ".zgroup"))
    os.remove(os.path.join(tree, ".zgroup"))
    for name in ("README", "a/notes.txt", "a/9.9", "a/0.0.tmp", ".DS_Store", "group/.hidden"):
        with open(os.path.join(tree, name), "w") as f:
            f.write("not Zarr\n")

    # chunks under "/" that the metadata does not declare
    matrix.add("undeclared.zarr", "nested", i4, (4, 4), compressor=Zlib(1), dimension_separator="/")
    path = os.path.join(matrix.folder, "undeclared.zarr/nested/.zarray")
    with open(path) as f:
        meta = json.load(f)
    del meta["dimension_separator"]
    with open(path, "w") as f:
        json.dump(meta, f)
    matrix.entries[-1]["separator_undeclared"] = True


def odd(matrix):
    """Writes unusual chunks and metadata of other writers, and damaged ones."""
    rng = np.random.default_rng(8)
    data = values(np.dtype("<i4"), (10, 6), rng)

    def case(name, chunk=None, meta=None, compressor=Zlib(1)):
        matrix.add("odd.zarr", name, data, (4, 4), compressor=compressor)
        where = os.path.join(matrix.folder, "odd.zarr", name)
        if chunk:
            with open(f"{where}/0.0", "rb") as f:
                old = f.read()
            with open(f"{where}/0.0", "wb") as f:
                f.write(chunk(old))
        if meta:
            with open(f"{where}/.zarray") as f:
                new = json.load(f) | meta
            with open(f"{where}/.zarray", "w") as f:
                json.dump({k: v for k, v in new.items() if v != "absent"}, f)
        if name.startswith("bad"):
            matrix.entries.pop()
            try:
                zarr.open_array(where, mode="r")[...]
                why = "zarr-python reads it"
            except Exception as e:
                why = f"{type(e).__name__}: {e}"[:200]
            matrix.refuse("odd.zarr", name, why)

    frame = COMPRESSORS["blosc-lz4"]
    case("ok-filters-empty", meta={"filters": []})
    case("ok-unknown-keys", meta={"zzz": {"a": [1, None]}})
    case("ok-trailing-bytes", chunk=lambda b: b + b"junk")
    case("ok-gzip-members", compressor=GZip(1), chunk=lambda b: b + GZip(1).encode(b""))
    case("ok-blosc-trailing", compressor=frame, chunk=lambda b: b + b"junk")
    case("bad-truncated", chunk=lambda b: b[:-5])
    case("bad-empty", chunk=lambda b: b"")
    case("bad-garbage", chunk=lambda b: b"\xa5" * len(b))
    case("bad-short", compressor=None, chunk=lambda b: b[:-1])
    case("bad-long", compressor=None, chunk=lambda b: b + b"\0")
    case("bad-longer-inside", chunk=lambda b: Zlib(1).encode(b"\0" * 65))
    case("bad-blosc-nbytes", compressor=frame, chunk=lambda b: b[:4] + b"\xff\xff\xff\x7f" + b[8:])
    case("bad-blosc-truncated", compressor=frame, chunk=lambda b: b[:-3])
    case("bad-lz4-size", compressor=LZ4(), chunk=lambda b: b"\xff\xff\xff\xff" + b[4:])
    case("bad-gzip-crc", compressor=GZip(1), chunk=lambda b: b[:-8] + bytes([b[-8] ^ 1]) + b[-7:])
    case("bad-dtype", meta={"dtype": "<z4"})
    case("bad-order", meta={"order": "N"})
    case("bad-codec", meta={"compressor": {"id": "nosuchcodec"}})
    case("bad-filter", meta={"filters": [{"id": "nosuchfilter"}]})
    case("bad-chunk-zero", meta={"chunks": [0, 4]})
    case("bad-rank", meta={"chunks": [4]})
    case("bad-format", meta={"zarr_format": 9})
    case("bad-fill", meta={"fill_value": "x"})
    case("bad-shape", meta={"shape": "absent"})


def v1(matrix):
    """Writes stores of Zarr v1 by hand, since zarr 2 cannot: `meta`, `attrs`, and chunks encoded with numcodecs. With
    order F, zarr 1.x stored the chunks of every compressor except blosc in C order."""
    compressions = [
        ("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1}), ("zlib", 1), ("bz2", 1), ("none", None),
        ("lzma", {"format": 1, "check": -1, "preset": 1, "filters": None}),
        ("blosc", {"cname": "zlib", "clevel": 3, "shuffle": 2}),
    ]
    names = [g for g in GEOMETRIES if g not in ("0d", "zero", "3d-zero", "5d")]
    kinds = [d for d in DTYPES if isinstance(d, str) and np.dtype(d).kind in "biufSU"]
    number = 0
    for (c, (compression, opts)), order, k in itertools.product(enumerate(compressions), "CF", range(5)):
        number += 1
        dtype = np.dtype(kinds[(7 * number + c) % len(kinds)])
        geometry = names[(3 * number + k) % len(names)]
        presence = PRESENCE[number % len(PRESENCE)]
        value = fill(dtype, FILLS[number % 3]) if dtype.kind in "biuf" else None
        shape, chunks = GEOMETRIES[geometry]
        data = values(dtype, shape, np.random.default_rng(1000 + number))
        store = f"v1/{number:02}-{dtype.str[1:]}-{compression}-{order}-{geometry}-{presence}"
        where = os.path.join(matrix.folder, store)
        os.makedirs(where)
        meta = {"zarr_format": 1, "shape": list(shape), "chunks": list(chunks), "dtype": dtype.str,
                "compression": compression, "compression_opts": opts, "fill_value": value, "order": order}
        with open(f"{where}/meta", "w") as f:
            json.dump(meta, f, indent=4, sort_keys=True)  # NaN and Infinity are bare tokens, as in zarr 1.x
        with open(f"{where}/attrs", "w") as f:
            json.dump({"presence": presence}, f)
        codec = None
        if compression != "none":
            codec = numcodecs.get_codec({"id": compression} | (opts if isinstance(opts, dict) else {"level": opts}))
        blank = np.zeros((), dtype) if value is None else np.array(value, dtype)
        whole = np.full(shape, blank, dtype)
        digests, stored = {}, 0
        for n, grid in enumerate(itertools.product(*(range(-(-s // c)) for s, c in zip(shape, chunks)))):
            key = ".".join(map(str, grid))
            place = tuple(slice(i * c, (i + 1) * c) for i, c in zip(grid, chunks))
            raw = None
            if presence == "all" or presence == "some" and n % 2 == 0:
                whole[place] = data[place]
                chunk = np.full(chunks, blank, dtype)
                part = data[place]
                chunk[tuple(map(slice, part.shape))] = part
                raw = chunk.tobytes("F" if order == "F" and compression == "blosc" else "C")
                # blosc shuffles by the item size
                packed = codec.encode(np.frombuffer(raw, dtype)) if codec else raw
                with open(f"{where}/{key}", "wb") as f:
                    f.write(packed)
                stored += 1
            digests[key] = {"raw": raw and sha256(raw), "cut": sha256(whole[place].tobytes())}
            if raw:
                digests[key]["raw_nbytes"] = len(raw)
        entry = meta | {"store": store, "array": "", "separator": ".", "nbytes": whole.nbytes,
                        "sha256": sha256(whole.tobytes()), "chunk_sha256": digests, "nchunks": len(digests),
                        "nstored": stored, "reader": "the writer"}
        if isinstance(value, float) and not math.isfinite(value):
            entry["fill_value"] = str(value).replace("nan", "NaN").replace("inf", "Infinity")
        if value is None and stored < len(digests):
            entry["fill_assumed"] = "zeros"
        matrix.entries.append(entry)


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    matrix = Matrix(folder)
    for part in (pairs, zfp, objects, shapes_of_stores, odd, v1):
        part(matrix)
    oracle = {"arrays": matrix.entries, "readers": [{"zarr": zarr.__version__, "numcodecs": numcodecs.__version__}]}
    with open(os.path.join(folder, "oracle.json"), "w") as f:
        json.dump(oracle, f, indent=1, sort_keys=True)
    print(f"{folder}: {len(matrix.entries)} arrays")


if __name__ == "__main__":
    main()
