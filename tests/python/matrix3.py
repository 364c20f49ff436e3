#!/usr/bin/env python3
"""Writes small Zarr v3 arrays of every kind, and digests of their values.

    matrix3.py DIR      (with the packages of scripts/requirements/zarr3.txt)

DIR gets the stores and oracle.json in the form of `matrix.py`. Digests are those of the written NumPy arrays, never
those of values that a library reads. `chains.py` alone encodes the stores `hand.zarr` and `deep.zarr`; in the others a
library stores the chunks. Every run writes equal bytes, except for the time in gzip headers and the order of chunks in
the shards of zarrs.
"""
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
import warnings

import ml_dtypes
import numcodecs
import numpy as np
from chains import (Bytes, Chain, PackBits, Pcodec, Shard, VariableLength, Zfp, all_types, cast_float_to_int,
                    cast_int_wrapping, compressors, crc32c, filtering, named, ordered, reshape, scale_offset,
                    transpose)

warnings.simplefilter("ignore")
np.seterr(all="ignore")
numcodecs.blosc.use_threads = False  # threads put blocks in the order in which they finish

# shape, innermost chunk, chunks in a shard
GEOMETRIES = [
    ((), (), ()), ((100,), (100,), (1,)), ((101,), (9,), (4,)), ((5,), (64,), (2,)), ((0,), (4,), (2,)),
    ((13, 7), (4, 3), (2, 2)), ((6, 20), (1, 20), (4, 1)), ((8, 12), (4, 6), (1, 2)), ((20, 3), (3, 1), (2, 3)),
    ((7, 5, 11), (3, 5, 4), (2, 1, 2)), ((3, 0, 2), (2, 1, 2), (1, 1, 1)), ((4, 6, 5), (2, 2, 2), (2, 2, 2)),
    ((3, 2, 4, 5), (2, 1, 3, 2), (1, 2, 1, 2)), ((2, 3, 2, 3, 2), (1, 2, 2, 2, 1), (2, 1, 1, 2, 1)),
]
# the same for arrays of five and six dimensions
DEEP_GEOMETRIES = [
    ((2, 3, 2, 3, 2), (1, 2, 2, 2, 1), (2, 1, 1, 2, 1)), ((3, 2, 2, 3, 4), (2, 1, 2, 2, 2), (1, 2, 1, 2, 1)),
    ((1, 4, 2, 1, 3), (1, 2, 1, 1, 3), (1, 1, 2, 1, 2)), ((5, 1, 2, 2, 2), (2, 1, 1, 2, 1), (2, 1, 2, 1, 1)),
    ((2, 2, 0, 2, 1), (1, 2, 1, 2, 1), (2, 1, 1, 1, 1)), ((2, 1, 2, 1, 2, 3), (1, 1, 2, 1, 1, 2), (2, 1, 1, 1, 2, 1)),
]
KEYS = [
    (named("default", separator="/"), "c", "/"), (named("default"), "c", "/"), ("default", "c", "/"),
    (named("v2", separator="."), "", "."), (named("v2", separator="/"), "", "/"), (named("v2"), "", "."),
    (named("default", separator="."), "c", "."), (named("default", separator="/"), "c", "/"),
]
VARIANTS = ["none", "shard", "none", "start", "no-crc", "none", "big-index", "nested", "transposed", "gzip", "filter",
            "turned-index"]
DEEP_VARIANTS = ["shard", "three-levels", "start", "nested", "transposed", "big-index", "three-levels", "turned-index"]
IRREGULAR_VARIANTS = ["none", "none", "none", "shard", "start", "no-crc", "turned-index", "nested", "transposed",
                      "gzip"]
PRESENCE = ["all", "some", "all", "some", "none", "some", "all"]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def is_shuffle(document):
    return isinstance(document, dict) and document["name"].endswith("shuffle")


class Case:
    """An array that is about to be written."""

    def __init__(self, kind, rng, geometry, variant, library=None):
        self.kind, self.rng, self.variant, self.library = kind, rng, variant, library
        self.shape, leaf, factors = geometry
        self.filter = None
        # TensorStore writes the second fill value, 2.0, as a negative number, which this type lacks
        is_misspelled = library == "tensorstore" and kind.label == "float8_e8m0fnu"
        count = 1 if is_misspelled else 2
        document, value = pick(rng, kind.fills[:count] if library else kind.fills)
        data = kind.values(self.shape, rng)
        endian = "little" if library and kind.storage.fields else pick(rng, ["little", "big"])
        if kind.is_number and (variant == "filter" or rng.random() < 0.35) and not library:
            document, value, data = self.choose_filter(document, value, data)
        self.document_fill, self.data = document, data
        self.fill = np.array(value, kind.storage)
        self.leaf = leaf
        self.outer = leaf if variant == "none" else tuple(c * f for c, f in zip(leaf, factors))
        self.middle = self.large = leaf
        if variant in ("nested", "three-levels"):
            self.middle, self.outer = self.outer, tuple(2 * c for c in self.outer)
        if variant == "three-levels" and leaf:
            self.large, self.outer = self.outer, (2 * self.outer[0], *self.outer[1:])
        self.chain = self.outer_chain(endian)
        self.endian = self.chain.endian

    def choose_filter(self, document, value, data):
        """Chooses a filter, and values that it can represent."""
        d, options = self.kind.storage, {}
        if d.kind == "b":
            options["packbits"] = filtering("numcodecs.packbits", numcodecs.PackBits())
        elif d.kind in "iu":
            narrow = "|i1" if d.itemsize == 1 else "<i2"
            options["delta"] = filtering("numcodecs.delta", numcodecs.Delta(d.str), dtype=d.str)
            options["scale"] = filtering("numcodecs.fixedscaleoffset", numcodecs.FixedScaleOffset(3, 2, d.str, narrow),
                                         offset=3, scale=2, dtype=d.str, astype=narrow)
            options["scale_offset"] = scale_offset(5, 2)
            if d.itemsize > 1:
                options["cast"] = cast_int_wrapping("uint8")
        elif d.kind == "f":
            options["delta"] = filtering("numcodecs.delta", numcodecs.Delta(d.str), dtype=d.str)
            codec = numcodecs.FixedScaleOffset(1.5, 10, d.str, "<i4")
            options["scale"] = filtering("numcodecs.fixedscaleoffset", codec,
                                         offset=1.5, scale=10, dtype=d.str, astype="<i4")
            options["quantize"] = filtering("numcodecs.quantize", numcodecs.Quantize(2, d.str), digits=2, dtype=d.str)
            options["astype"] = filtering("numcodecs.astype", numcodecs.AsType("<f8", d.str), encode_dtype="<f8",
                                          decode_dtype=d.str)
            for name in ("numcodecs.bitround", "bitround"):
                options[name] = filtering(name, numcodecs.BitRound(5), keepbits=5)
            options["scale_offset"] = scale_offset(1.5, 2)
            options["cast"] = cast_float_to_int("int16", 2**15)
        if not options:
            return document, value, data
        if self.variant == "filter":  # outside of a shard, only filters that work on single items
            options = {k: v for k, v in options.items() if k not in ("delta", "packbits")} or {"": None}
        self.filter_name = pick(self.rng, list(options))
        self.filter = options[self.filter_name]
        if self.filter is None or d.kind == "b" or self.filter_name == "cast" and d.kind == "i":
            return document, value, data
        if d.kind in "iu":
            return 42, 42, (data % 20 + 10).astype(d)
        nan = 1 if self.filter_name != "cast" else np.nan
        return 1.5, 1.5, np.nan_to_num(data, nan=nan, posinf=2, neginf=3).astype(d)

    def leaf_chain(self, endian):
        rng, kind, steps, elementwise = self.rng, self.kind, [], self.filter
        rank = len(self.leaf)
        if rng.random() < 0.4:
            steps.append(transpose([int(i) for i in rng.permutation(rank)]))
        if not self.library and not kind.is_object and rng.random() < 0.1 and not steps:
            if rank > 1:
                steps.append(reshape(named("reshape", shape=[[*range(rank - 1)], [rank - 1]]),
                                     lambda s: (math.prod(s[:-1]), s[-1])))
            elif 1 in self.leaf:
                steps.append(reshape(named("zarrs.squeeze"), lambda s: tuple(n for n in s if n != 1)))
        if elementwise and self.variant != "filter":
            steps.append(elementwise)
        packs = kind.bits and kind.bits < 8 or kind.label == "bool"
        if kind.is_object:
            serializer = VariableLength("vlen-utf8" if kind.label == "string" else "vlen-bytes")
        elif packs and not self.filter and not self.library and rng.random() < 0.5:
            serializer = PackBits(kind.bits or 1, pick(rng, [None, "none", "first_byte", "last_byte"]))
        elif (kind.label.startswith("uint") and kind.is_number and self.fill <= 127 and not self.filter
              and not self.library and rng.random() < 0.2):
            self.data = self.data % 128
            serializer = PackBits(8 * kind.storage.itemsize, None, pick(rng, [None, 0]), pick(rng, [6, 7]))
        elif (kind.is_number and kind.storage.kind in "iuf" and kind.storage.itemsize > 1 and not self.filter
              and not self.library and rng.random() < 0.12):
            serializer = Pcodec()
        elif (kind.is_number and kind.storage.kind in "if" and kind.storage.itemsize > 3 and 0 < rank < 5
              and not self.filter and not self.library and rng.random() < 0.5):
            serializer = Zfp(rng.random() < 0.5)
        else:
            document = None
            if endian == "little" and not self.library and rng.random() < 0.2:
                document = pick(rng, [named("bytes"), "bytes"])
            # readers ignore the upper bits of small integers
            small = kind.label.endswith(("int2", "int4")) and not self.library and rng.random() < 0.3
            serializer = Bytes(endian, document, 0xFF << kind.bits & 0xFF if small else 0)
        self.serializer = serializer
        return Chain(steps, serializer, self.compressors(kind.storage.itemsize))

    def compressors(self, itemsize):
        known = compressors(itemsize)
        if self.library == "tensorstore" or self.library == "zarrs":
            known = [c for c in known if isinstance(c[0], dict) and c[0]["name"] in ("gzip", "zstd", "crc32c", "blosc")
                     and c[0].get("configuration", {}).get("level", 0) >= 0]
            known = [c for c in known if c[0]["name"] != "blosc" or "typesize" in c[0]["configuration"]]
        elif self.library:
            known = [c for c in known if isinstance(c[0], dict) and c[0]["name"] not in ("zlib", "lz4", "shuffle")]
        count = pick(self.rng, [0, 1, 1, 1, 1, 2])
        if count != 1 or not isinstance(self.serializer, Bytes) or self.filter:
            known = [c for c in known if not is_shuffle(c[0])]  # shuffles take only whole items
        return [pick(self.rng, known) for _ in range(count)]

    def index_chain(self, rank):
        if self.variant == "no-crc":
            return Chain([], Bytes("little"))
        steps = []
        if self.variant == "turned-index":
            steps = [transpose([int(i) for i in self.rng.permutation(rank + 1)])]
        return Chain(steps, Bytes("big" if self.variant == "big-index" else "little"), [(named("crc32c"), crc32c)])

    def shard(self, chunk, chain):
        at_start = self.variant == "start" or self.rng.random() < 0.15
        gaps = self.rng.random() < 0.3
        return Shard(chunk, chain, self.index_chain(len(chunk)), at_start, self.rng, gaps, self.rng.random() < 0.8)

    def outer_chain(self, endian):
        chain = self.leaf_chain(endian)
        if self.variant == "none":
            return chain
        if self.variant in ("nested", "three-levels"):
            inner = Chain([], self.shard(self.middle, Chain([], self.shard(self.leaf, chain))))
            return inner if self.variant == "nested" else Chain([], self.shard(self.large, inner))
        if self.variant == "transposed":
            order = [int(i) for i in self.rng.permutation(len(self.leaf))]
            # the shapes in the document are those of the transposed array
            steps = [s for s in chain.steps if s.document["name"] not in ("reshape", "zarrs.squeeze")]
            inside = Chain(steps, chain.serializer, chain.compressors)
            return Chain([transpose(order)], self.shard(tuple(self.leaf[i] for i in order), inside))
        outside = [(named("gzip", level=1), numcodecs.GZip(1).encode)] if self.variant == "gzip" else []
        steps = [self.filter] if self.variant == "filter" and self.filter else []
        return Chain(steps, self.shard(self.leaf, chain), outside)


class Matrix:
    def __init__(self, folder):
        self.folder, self.entries, self.skipped = folder, [], {}

    def write_json(self, path, document):
        os.makedirs(os.path.join(self.folder, path), exist_ok=True)
        with open(os.path.join(self.folder, path, "zarr.json"), "w") as f:
            json.dump(document, f, indent=1)

    def group(self, path):
        self.write_json(path, {"zarr_format": 3, "node_type": "group", "attributes": {}})

    def document(self, case, keys, **more):
        document = {
            "zarr_format": 3, "node_type": "array", "shape": list(case.shape), "data_type": case.kind.document,
            "chunk_grid": named("regular", chunk_shape=list(case.outer)), "chunk_key_encoding": keys,
            "fill_value": case.document_fill, "codecs": case.chain.documents, "attributes": {"variant": case.variant},
        }
        return document | more

    def add(self, store, path, case, flat, chunks=None, **more):
        entry = {"store": store, "array": path, "zarr_format": 3, "shape": list(case.shape), "chunks": list(case.leaf),
                 "reader": "the writer", "chunk_sha256": chunks or {}}
        if case.kind.is_object:
            entry["object"] = True
        else:
            entry |= {"nbytes": len(flat), "sha256": sha256(flat)}
        self.entries.append(entry | more)


def grid(shape, chunk):
    return itertools.product(*(range(-(-s // c)) for s, c in zip(shape, chunk)))


def place(at, chunk):
    return tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunk)) + (...,)


def present_chunks(case, presence):
    """Marks the items of the innermost chunks that are stored; some of them may be outside of the array."""
    padded = tuple(-(-s // c) * c for s, c in zip(case.shape, case.outer))
    mask = np.zeros(padded, bool)
    if presence != "none":
        outside = case.rng.random() < 0.3
        for n, at in enumerate(itertools.product(*(range(p // c) for p, c in zip(padded, case.leaf)))):
            is_inside = all(i * c < s for i, c, s in zip(at, case.leaf, case.shape))
            if (is_inside or outside and case.variant != "none") and (presence == "all" or n % 2 == 0):
                mask[place(at, case.leaf)] = True
    return mask


def key_of(at, prefix, separator):
    parts = ([prefix] if prefix else []) + [str(i) for i in at]
    return separator.join(parts) or "0"


def write_values(folder, values):
    for key, value in values.items():
        file = os.path.join(folder, key)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as f:
            f.write(value)


def decoded(case, items):
    """Returns the bytes of a decoded chunk."""
    return case.serializer.encode(items) if case.kind.is_object else ordered(items, case.endian)


def write_by_hand(matrix, store, path, case, presence, keys, prefix, separator, **more):
    mask = present_chunks(case, presence)
    full = np.empty(mask.shape, case.kind.storage)
    full[...] = case.fill
    full[tuple(map(slice, case.shape)) + (...,)] = case.data
    full[~mask] = case.fill
    settled = full.copy()
    folder = os.path.join(matrix.folder, store, path)
    values = {}
    for at in grid(case.shape, case.outer):
        where = place(at, case.outer)
        if mask[where].any():
            value = case.chain.encode(full[where], mask[where])
            settled[where] = case.chain.settle(full[where])
            values[key_of(at, prefix, separator)] = value
    settled[~mask] = case.fill
    chunks = {}
    for at in grid(case.shape, case.leaf):
        where = place(at, case.leaf)
        raw = None
        if mask[where].any():
            raw = sha256(decoded(case, settled[where]))
        chunks[".".join(map(str, at)) or "0"] = {"raw": raw}
    matrix.write_json(os.path.join(store, path), matrix.document(case, keys, **more))
    write_values(folder, values)
    flat = b"" if case.kind.is_object else ordered(settled[tuple(map(slice, case.shape)) + (...,)], case.endian)
    matrix.add(store, path, case, flat, chunks)


def by_hand(matrix, count):
    types = all_types()
    matrix.group("hand.zarr")
    for n in range(count):
        rng = np.random.default_rng([3, n])
        kind = types[n % len(types)]
        variant = VARIANTS[(n + n // len(types)) % len(VARIANTS)]
        case = Case(kind, rng, pick(rng, GEOMETRIES), variant)
        keys, prefix, separator = pick(rng, KEYS)
        more = {}
        if rng.random() < 0.3:
            more["dimension_names"] = [pick(rng, [None, f"axis{i}"]) for i in range(len(case.shape))]
        if rng.random() < 0.1:
            more |= {"storage_transformers": [], "ignorable": {"must_understand": False}}
        path = f"{n % 16:x}/{n:04}-{kind.label}-{variant}"
        write_by_hand(matrix, "hand.zarr", path, case, pick(rng, PRESENCE), keys, prefix, separator, **more)


def rectilinear(case):
    """Returns the regular grid of an array, described as a rectilinear one."""
    axes = []
    for length, chunk in zip(case.shape, case.outer):
        count = -(-length // chunk)
        axes.append(pick(case.rng, [chunk, [[chunk, count]], [chunk] * count]) if count else chunk)
    return named("rectilinear", kind="inline", chunk_shapes=axes)


def in_deep_shards(matrix, count):
    """Writes arrays of all types in five and six dimensions with up to three levels of shards."""
    types = all_types()
    matrix.group("deep.zarr")
    for n in range(count):
        rng = np.random.default_rng([7, n])
        kind = types[n % len(types)]
        variant = DEEP_VARIANTS[(n + n // len(types)) % len(DEEP_VARIANTS)]
        case = Case(kind, rng, pick(rng, DEEP_GEOMETRIES), variant)
        keys, prefix, separator = pick(rng, KEYS)
        more = {"chunk_grid": rectilinear(case)} if rng.random() < 0.3 else {}
        path = f"{n:04}-{kind.label}-{variant}"
        write_by_hand(matrix, "deep.zarr", path, case, pick(rng, PRESENCE), keys, prefix, separator, **more)


def some_lengths(rng, length, unit):
    """Returns chunk lengths, multiples of `unit`, that cover `length` items. The last chunks may be outside of the
    array."""
    lengths = []
    while sum(lengths) < length:
        lengths += [unit * int(rng.integers(1, 5 if unit > 1 else 7))] * int(rng.integers(1, 4))
    lengths += [unit * int(rng.integers(1, 5)) for _ in range(rng.integers(0, 3))]
    return lengths if lengths or unit == 1 else [unit]


def spelled(rng, lengths):
    """Returns lengths as a document spells them: repeated ones as pairs or one by one."""
    runs = [(length, len(list(run))) for length, run in itertools.groupby(lengths)]
    pairs = [[[length, count]] if count > 1 and rng.random() < 0.7 else [length] * count for length, count in runs]
    return list(itertools.chain(*pairs))


def slices_of(lengths):
    """Returns the items of each chunk along a dimension."""
    ends = list(itertools.accumulate(lengths))
    return [slice(end - length, end) for length, end in zip(lengths, ends)]


def within(axes, shape):
    """Yields the indices and place of each chunk with items of an array; `axes` are the slices along each dimension."""
    counts = [sum(items.start < length for items in axis) for axis, length in zip(axes, shape)]
    for at in itertools.product(*map(range, counts)):
        yield at, tuple(axis[i] for axis, i in zip(axes, at)) + (...,)


def irregular(matrix, count):
    """Writes arrays of all types whose chunks or shards differ in length."""
    types = all_types()
    matrix.group("irregular.zarr")
    for n in range(count):
        rng = np.random.default_rng([8, n])
        kind, variant = types[n % len(types)], pick(rng, IRREGULAR_VARIANTS)
        case = Case(kind, rng, pick(rng, [g for g in GEOMETRIES + DEEP_GEOMETRIES if g[0]]), variant)
        if variant == "none":  # the chunks have no common shape
            steps = [s for s in case.chain.steps if s.document["name"] not in ("reshape", "zarrs.squeeze")]
            case.chain = Chain(steps, case.chain.serializer, case.chain.compressors)
        entry = {"none": (1,) * len(case.leaf), "nested": case.middle}.get(variant, case.leaf)
        lengths = [some_lengths(rng, length, unit) for length, unit in zip(case.shape, entry)]
        outer = [slices_of(along) for along in lengths]
        inner = outer
        if variant != "none":
            inner = [slices_of([c] * (sum(along) // c)) for along, c in zip(lengths, case.leaf)]
        full = np.empty([max(sum(along), length) for along, length in zip(lengths, case.shape)], kind.storage)
        full[...] = case.fill
        inside = tuple(map(slice, case.shape)) + (...,)
        full[inside] = case.data
        presence, mask = pick(rng, PRESENCE), np.zeros(full.shape, bool)
        for i, (at, where) in enumerate(within(inner, case.shape)):
            mask[where] = presence == "all" or presence != "none" and i % 2 == 0
        full[~mask] = case.fill
        keys, prefix, separator = pick(rng, KEYS)
        values, chunks = {}, {}
        for at, where in within(outer, case.shape):
            if mask[where].any():
                values[key_of(at, prefix, separator)] = case.chain.encode(full[where], mask[where])
                full[where] = case.chain.settle(full[where])
        full[~mask] = case.fill
        for at, where in within(inner, case.shape):
            raw = sha256(decoded(case, full[where])) if mask[where].any() else None
            chunks[".".join(map(str, at)) or "0"] = {"raw": raw}
        spelling = [int(along[0]) if len(set(along)) == 1 and rng.random() < 0.5 else spelled(rng, along)
                    for along in lengths]
        document = matrix.document(case, keys, chunk_grid=named("rectilinear", kind="inline", chunk_shapes=spelling))
        path = f"{n:04}-{kind.label}-{variant}"
        matrix.write_json(os.path.join("irregular.zarr", path), document)
        write_values(os.path.join(matrix.folder, "irregular.zarr", path), values)
        matrix.add("irregular.zarr", path, case, b"" if kind.is_object else ordered(full[inside], case.endian), chunks)


def refusals(matrix):
    """Writes documents that readers must refuse: each has one unknown or damaged part in an otherwise plain array."""
    little, shard = named("bytes", endian="little"), lambda chunk, codecs, index, **more: named(
        "sharding_indexed", chunk_shape=chunk, codecs=codecs, index_codecs=index, **more)
    index = [little, named("crc32c")]
    deep = [little]
    for _ in range(5):
        deep = [shard([4, 6], deep, index)]
    cases = {
        "codec-unknown": {"codecs": [little, named("nosuchcodec")]},
        "codec-unknown-ignorable": {"codecs": [little, named("nosuchcodec") | {"must_understand": False}]},
        "codec-parameter": {"codecs": [little, named("gzip", level=1, nosuch=2)]},
        "codecs-two-serializers": {"codecs": [little, little]},
        "codecs-bytes-first": {"codecs": [named("gzip", level=1), little]},
        "codecs-array-last": {"codecs": [little, transpose([1, 0]).document]},
        "codec-number": {"codecs": [5]}, "codecs-65": {"codecs": [little] + [named("crc32c")] * 64},
        "transpose-twice": {"codecs": [transpose([0, 0]).document, little]},
        "transpose-short": {"codecs": [transpose([0]).document, little]},
        "transpose-beyond": {"codecs": [transpose([1, 2]).document, little]},
        "endian": {"codecs": [named("bytes", endian="middle")]},
        "blosc-shuffle": {
            "codecs": [little, named("blosc", cname="lz4", clevel=5, shuffle=7, typesize=4, blocksize=0)]},
        "packbits-full-width": {"codecs": [named("packbits", padding_encoding="first_byte")]},
        "type-unknown": {"data_type": "int12"}, "type-r12": {"data_type": "r12"}, "type-r0": {"data_type": "r0"},
        "type-utf32": {"data_type": named("fixed_length_utf32", length_bytes=7), "fill_value": ""},
        "type-struct-empty": {"data_type": named("struct", fields=[]), "fill_value": {}},
        "type-unit": {"data_type": named("numpy.datetime64", unit="fortnight", scale_factor=1)},
        "type-factor": {"data_type": named("numpy.datetime64", unit="s", scale_factor=0)},
        "fill-range": {"fill_value": 2**31}, "fill-text": {"fill_value": "x"}, "fill-absent": {"fill_value": "absent"},
        "fill-hex": {"data_type": "float32", "fill_value": "0x7fc0"},
        "vlen-int": {"codecs": [named("vlen-utf8")]}, "string-bytes": {"data_type": "string", "fill_value": ""},
        "shape-negative": {"shape": [-4, 6]}, "shape-rank": {"shape": [4]}, "chunk-zero": {
            "chunk_grid": named("regular", chunk_shape=[0, 6])},
        "grid-unknown": {"chunk_grid": named("nosuchgrid", chunk_shape=[4, 6])},
        "keys-unknown": {"chunk_key_encoding": named("nosuchkeys")},
        "keys-separator": {"chunk_key_encoding": named("default", separator="-")},
        "shard-remainder": {"codecs": [shard([3, 6], [little], index)]},
        "shard-rank": {"codecs": [shard([4], [little], index)]},
        "shard-zero": {"codecs": [shard([0, 6], [little], index)]},
        "shard-index-gzip": {"codecs": [shard([4, 6], [little], [little, named("gzip", level=1)])]},
        "shard-index-empty": {"codecs": [shard([4, 6], [little], [])]},
        "shard-index-location": {"codecs": [shard([4, 6], [little], index, index_location="middle")]},
        "shards-5": {"codecs": deep}, "shard-delta": {
            "codecs": [named("numcodecs.delta", dtype="<i4"), shard([4, 6], [little], index)]},
        "transformer": {"storage_transformers": [named("nosuchtransformer")]},
        "field-unknown": {"nosuchfield": {"a": 1}}, "names-short": {"dimension_names": ["y"]},
    }
    matrix.group("refused.zarr")
    plain = {"zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "int32", "fill_value": 0,
             "chunk_grid": named("regular", chunk_shape=[4, 6]), "chunk_key_encoding": named("default", separator="/"),
             "codecs": [little], "attributes": {}}
    for name, more in cases.items():
        document = {k: v for k, v in (plain | more).items() if v != "absent"}
        matrix.write_json(f"refused.zarr/{name}", document)
        matrix.entries.append({"store": "refused.zarr", "array": name, "zarr_format": 3, "expect": "refuse"})


def select_some(case):
    """Returns the regions of every other chunk of the array."""
    return [place(at, case.leaf) for n, at in enumerate(grid(case.shape, case.leaf)) if n % 2 == 0]


def native(case, items):
    """Returns items as types of ml_dtypes, for TensorStore."""
    if case.kind.bits and case.kind.label != "bool":
        return items.view(getattr(ml_dtypes, case.kind.label))
    return items


def write_with_zarr(matrix, path, case, regions, document):
    import zarr

    matrix.write_json(path, document)
    where = os.path.join(matrix.folder, path)
    array = zarr.open_array(where, mode="r+")
    with zarr.config.set({"array.write_empty_chunks": True}):
        for region in regions:
            array[region] = case.data[region]
    array.attrs["writer"] = "zarr-python"  # makes zarr-python write the document in its spelling


def write_with_tensorstore(matrix, path, case, regions, document):
    import tensorstore

    where = os.path.join(matrix.folder, path)
    metadata = {k: v for k, v in document.items() if k not in ("zarr_format", "node_type")}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": where}, "metadata": metadata, "create": True}
    array = tensorstore.open(spec | {"store_data_equal_to_fill_value": True}).result()
    for region in regions:
        array[region].write(native(case, case.data[region])).result()


def by_library(matrix, library, count, seed):
    types = [t for t in all_types() if not t.is_object and t.label not in ("raw_bytes", "structured")]
    store = f"{library}.zarr"
    matrix.group(store)
    write = write_with_tensorstore if library == "tensorstore" else write_with_zarr
    for n in range(count):
        rng = np.random.default_rng([seed, n])
        kind = types[n % len(types)]
        variant = VARIANTS[(n + n // len(types)) % len(VARIANTS)]
        case = Case(kind, rng, pick(rng, GEOMETRIES), "shard" if variant == "filter" else variant, library)
        keys = pick(rng, [k for k, _, _ in KEYS if isinstance(k, dict)])
        presence = pick(rng, PRESENCE)
        path = f"{store}/{n:04}-{kind.label}-{case.variant}"
        regions = {"all": [...], "some": select_some(case), "none": []}[presence] if case.data.size else []
        flat = np.full(case.shape, case.fill, kind.storage)
        for region in regions:
            flat[region] = case.data[region]
        try:
            write(matrix, path, case, regions, matrix.document(case, keys))
        except Exception as e:  # a type, codec or variant that the library lacks
            shutil.rmtree(os.path.join(matrix.folder, path), ignore_errors=True)
            matrix.skipped.setdefault(library, []).append(f"{kind.label} {case.variant}: {type(e).__name__}: {e}"[:150])
            continue
        matrix.add(store, path.split("/", 1)[1], case, ordered(flat, case.endian))


def by_zarrs(matrix, count):
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        by_library(matrix, "zarrs", count, 6)


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    matrix = Matrix(folder)
    by_hand(matrix, 1000)
    in_deep_shards(matrix, 150)
    irregular(matrix, 160)
    refusals(matrix)
    by_library(matrix, "zarr-python", 420, 4)
    by_library(matrix, "tensorstore", 420, 5)
    by_zarrs(matrix, 360)
    with open(os.path.join(folder, "oracle.json"), "w") as f:
        json.dump({"arrays": matrix.entries}, f, indent=1, sort_keys=True)
    print(f"{folder}: {len(matrix.entries)} arrays; left out what a library lacks:",
          {library: len(skipped) for library, skipped in matrix.skipped.items()})
    if os.environ.get("ZARRFS_MATRIX3_SKIPPED"):
        for library, skipped in matrix.skipped.items():
            print(library, *skipped, sep="\n    ")


if __name__ == "__main__":
    main()
