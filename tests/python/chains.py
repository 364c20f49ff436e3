"""Data types and codec chains of Zarr v3 in plain NumPy, with which `matrix3.py` writes arrays and the expected values.

A chain encodes a chunk to bytes, and `settle` returns the values that these bytes decode to. They differ from the
written ones only if a codec is lossy. The rules are those of the core specification and of the registered extensions;
numcodecs supplies compressors and filters, not the order in which they are applied.
"""
import base64
import itertools
import math
import struct

import google_crc32c
import ml_dtypes
import numcodecs
import numpy as np
import zfpy

EMPTY = 2**64 - 1


class Type:
    """A data type: its name in the document, how NumPy stores an item, and fill values as (document, stored)."""

    def __init__(self, document, storage, fills, bits=None, label=None, signed=False):
        self.document, self.storage, self.bits, self.signed = document, np.dtype(storage), bits, signed
        self.label = label or (document if isinstance(document, str) else document["name"])
        self.fills = fills
        self.is_object = self.storage.hasobject
        self.is_number = isinstance(document, str) and document in NUMBERS

    def values(self, shape, rng):
        n, kind = math.prod(shape), self.storage.kind
        if self.label == "string":
            words = ["foo", "", "b\u00e4r", "\U0001f40a" * 3]
            return np.array([words[i] for i in rng.integers(0, 4, n)], object).reshape(shape)
        if self.is_object:
            return np.array([rng.bytes(i) for i in rng.integers(0, 6, n)], object).reshape(shape)
        if self.storage.fields or kind == "V":
            out = rng.integers(0, 256, n * self.storage.itemsize, "u1").view(self.storage)
        elif self.bits and self.bits < 8:
            out = rng.integers(0, 1 << self.bits, n).astype("u1")
            if self.signed:
                out = sign_extended(out, self.bits)
        elif self.label in NUMBERS:
            out = numbers(self.storage, n, rng)
        elif kind == "S":
            out = np.array([b"%d" % v for v in rng.integers(-99, 999, n)], self.storage)
        elif kind == "U":
            out = np.array([f"\u00e4{v}\U0001f40a" for v in rng.integers(0, 99, n)], self.storage)
        elif kind in "mM":
            out = rng.integers(-(10**6), 10**6, n).view(self.storage)
        else:
            out = rng.integers(0, 256, n * self.storage.itemsize, "u1").view(self.storage)
        return np.asarray(out, self.storage).reshape(shape)


def sign_extended(items, bits):
    low = items & ((1 << bits) - 1)
    return np.where(low >> (bits - 1), low | (0xFF << bits & 0xFF), low).astype("u1")


def numbers(dtype, n, rng):
    """Returns rather smooth numbers with special values such as NaN."""
    ramp = np.cumsum(rng.integers(-3, 4, n))
    if dtype.kind == "b":
        return ramp % 3 == 0
    if dtype.kind in "iu":
        out = (ramp + 100).astype(dtype)
        out[1::17], out[2::17] = np.iinfo(dtype).max, np.iinfo(dtype).min
        return out
    out = (ramp / 8).astype(dtype)
    out[1::17], out[2::17], out[3::17], out[4::17] = np.nan, np.inf, -np.inf, -0.0
    return out + (ramp * 1j).astype(dtype) if dtype.kind == "c" else out


NUMBERS = {"bool": "b1"} | {f"{k}int{n}".replace("iint", "int"): f"{k}{n // 8}" for k in "iu" for n in (8, 16, 32, 64)}
NUMBERS |= {"float16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8", "complex128": "c16"}
HEX = {"float16": "0x7e01", "float32": "0xffc00123", "float64": "0x7ff4000000000001"}


def b64(data):
    return base64.b64encode(data).decode()


def simple_types():
    for name, code in NUMBERS.items():
        d = np.dtype(code)
        if d.kind == "b":
            fills = [(False, False), (True, True), (1, True), (0, False)]
        elif d.kind in "iu":
            fills = [(v, v) for v in (0, 42, int(np.iinfo(d).max), int(np.iinfo(d).min))] + [(1.0, 1), (None, 0)]
        elif d.kind == "f":
            fills = [(0, 0.0), (1.5, 1.5), ("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf), (None, 0.0)]
            fills.append((HEX[name], np.frombuffer(bytes.fromhex(HEX[name][2:]), d.newbyteorder(">"))[0]))
        else:
            fills = [([0, 0], 0), ([1.5, -2.5], complex(1.5, -2.5)), (["NaN", "-Infinity"], complex(np.nan, -np.inf))]
        yield Type(name, d, fills)
    yield Type("complex_float32", "c8", [([1.5, 2], complex(1.5, 2))])
    yield Type("complex_float64", "c16", [([0, "Infinity"], complex(0, np.inf))])


def small_types():
    """Yields types that NumPy lacks, with items of one or two bytes, of which the lowest `bits` bits are
    significant."""
    for name, bits in [("int2", 2), ("int4", 4), ("uint2", 2), ("uint4", 4)]:
        signed = name[0] == "i"
        fills = [(0, 0), (1, 1)] + ([(-2, 0xFE)] if signed else [(3, 3)])
        yield Type(name, "u1", fills, bits, signed=signed)
    for name in ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
                 "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]:
        one = int(np.array([1.0], getattr(ml_dtypes, name)).view("u1")[0])
        yield Type(name, "u1", [(1.0, one), (f"0x{one + 1:02x}", one + 1)], int(name[5]))
    yield Type("bfloat16", "u2", [(0, 0), (1.5, 0x3FC0), ("NaN", 0x7FC0), ("0x7fc1", 0x7FC1)], 16)
    pair = [("re", "u2"), ("im", "u2")]
    yield Type("complex_bfloat16", pair, [([1.5, "NaN"], (0x3FC0, 0x7FC0))])
    yield Type("complex_float16", pair, [([1.5, 0], (0x3E00, 0))])


def composed_types():
    yield Type("r8", "V1", [([7], b"\x07")])
    yield Type("r40", "V5", [([1, 2, 3, 4, 255], b"\1\2\3\4\xff")])
    yield Type({"name": "raw_bytes", "configuration": {"length_bytes": 3}}, "V3", [(b64(b"abc"), b"abc")])
    yield Type({"name": "null_terminated_bytes", "configuration": {"length_bytes": 5}}, "S5",
               [(b64(b"xy"), b"xy"), (b64(b""), b"")])
    yield Type({"name": "fixed_length_utf32", "configuration": {"length_bytes": 16}}, "U4",
               [("", ""), ("\u4e2d\U0001f40a", "\u4e2d\U0001f40a")])
    for kind, code in (("datetime", "M8"), ("timedelta", "m8")):
        for unit, factor in (("s", 1), ("us", 10)):
            d = np.dtype(f"{code}[{factor if factor > 1 else ''}{unit}]")
            yield Type({"name": f"numpy.{kind}64", "configuration": {"unit": unit, "scale_factor": factor}}, d,
                       [("NaT", np.array("NaT", d)), (86400, np.array(86400, "i8").view(d))],
                       label=f"{kind}-{factor}{unit}")
    fields = np.dtype([("a", "i4"), ("b", "f8"), ("c", "u1")])
    item = np.array((-5, 1.5, 9), fields)
    pairs = [["a", "int32"], ["b", "float64"], ["c", "uint8"]]
    listed = [{"name": name, "data_type": data_type} for name, data_type in pairs]
    yield Type({"name": "struct", "configuration": {"fields": listed}}, fields, [({"a": -5, "b": 1.5, "c": 9}, item)])
    yield Type({"name": "structured", "configuration": {"fields": pairs}}, fields,
               [(b64(bytes(13)), np.zeros((), fields))])
    yield Type("string", object, [("", ""), ("f\u00fcll", "f\u00fcll")])
    yield Type("bytes", object, [(b64(b"\0x"), b"\0x"), ([], b"")])
    yield Type("variable_length_bytes", object, [(b64(b""), b"")])


def all_types():
    return [*simple_types(), *small_types(), *composed_types()]


def ordered(items, endian):
    """Returns the bytes of items in C order and in a byte order."""
    return np.ascontiguousarray(items).astype(items.dtype.newbyteorder("<" if endian == "little" else ">")).tobytes()


class Step:
    """An array-to-array codec: `encode(x)`, and `decode(y, x)` with x for its shape and type."""

    def __init__(self, document, encode, decode):
        self.document, self.encode, self.decode = document, encode, decode


def transpose(order):
    back = np.argsort(order) if order else []
    return Step(named("transpose", order=list(order)), lambda x: np.transpose(x, order),
                lambda y, x: np.transpose(y, back))


def reshape(document, shape_of):
    return Step(document, lambda x: x.reshape(shape_of(x.shape)), lambda y, x: y.reshape(x.shape))


def filtering(name, codec, **configuration):
    """A filter of numcodecs, which works on the values in C order."""

    def encode(x):
        y = np.asarray(codec.encode(np.ascontiguousarray(x).ravel()))
        return y.reshape(x.shape) if y.size == x.size else y

    def decode(y, x):
        got = np.asarray(codec.decode(np.ascontiguousarray(y).ravel()))
        return got.view(x.dtype)[: x.size].reshape(x.shape)

    return Step(named(name, **configuration), encode, decode)


def scale_offset(offset, scale):
    def decode(y, x):
        return (y // x.dtype.type(scale) if x.dtype.kind in "iu" else y / x.dtype.type(scale)) + x.dtype.type(offset)

    return Step(named("scale_offset", offset=offset, scale=scale),
                lambda x: (x - x.dtype.type(offset)) * x.dtype.type(scale), decode)


def cast_float_to_int(name, bound):
    """Returns a cast that stores NaN as the least value, and rounds and clamps other values."""
    least, most = int(np.iinfo(name).min), int(np.iinfo(name).max)

    def encode(x):
        near = np.clip(np.rint(np.where(np.isnan(x), 0, x).astype("f8")), least, most).astype(name)
        return np.where(np.isnan(x), np.array(least, name), near)

    def decode(y, x):
        return np.where(y == least, x.dtype.type(np.nan), y.astype(x.dtype))

    return Step(named("cast_value", data_type=name, rounding="nearest-even", out_of_range="clamp",
                      scalar_map={"encode": [["NaN", least]], "decode": [[least, "NaN"]]}), encode, decode)


def cast_int_wrapping(name):
    return Step(named("cast_value", data_type=name, out_of_range="wrap"), lambda x: x.astype(name),
                lambda y, x: y.astype(x.dtype))


def named(name, **configuration):
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


class Bytes:
    """The codec `bytes`. Readers ignore the upper bits of small integers, so they may have any value."""

    def __init__(self, endian, document=None, junk=0):
        self.endian, self.junk = endian, junk
        self.document = document or named("bytes", endian=endian)

    def encode(self, x, mask=None):
        return ordered(x | np.uint8(self.junk) if self.junk else x, self.endian)


class PackBits:
    endian = "little"

    def __init__(self, bits, padding=None, first=None, last=None):
        options = {"padding_encoding": padding, "first_bit": first, "last_bit": last}
        self.document = named("packbits", **{k: v for k, v in options.items() if v is not None})
        self.padding, self.first, self.last = padding, first or 0, bits - 1 if last is None else last

    def encode(self, x, mask=None):
        raw = np.frombuffer(ordered(x, "little"), "u1").reshape(x.size, x.dtype.itemsize)
        bits = np.unpackbits(raw, axis=1, bitorder="little")[:, self.first : self.last + 1].ravel()
        packed, padding = np.packbits(bits, bitorder="little").tobytes(), bytes([-len(bits) % 8])
        return {"first_byte": padding + packed, "last_byte": packed + padding}.get(self.padding, packed)


class VariableLength:
    endian = "little"

    def __init__(self, name):
        self.document = named(name)

    def encode(self, x, mask=None):
        items = [i.encode() if isinstance(i, str) else i for i in x.ravel()]
        return struct.pack("<I", len(items)) + b"".join(struct.pack("<I", len(i)) + i for i in items)


class Pcodec:
    endian, document = "little", named("numcodecs.pcodec", level=4)

    def encode(self, x, mask=None):
        return bytes(numcodecs.get_codec({"id": "pcodec", "level": 4}).encode(np.ascontiguousarray(x).ravel()))


class Zfp:
    """The codec `numcodecs.zfpy`, or `zfp`, which has no header."""
    endian = "little"

    def __init__(self, has_header):
        self.has_header = has_header
        self.document = named("numcodecs.zfpy", mode=4) if has_header else named("zfp", mode="reversible")

    def encode(self, x, mask=None):
        return zfpy.compress_numpy(np.ascontiguousarray(x), write_header=self.has_header)


class Shard:
    """The codec `sharding_indexed`. It stores chunks in random order, and with `gaps` bytes between them."""

    def __init__(self, chunk, chain, index, at_start, rng, gaps=False, names_location=True):
        self.chunk, self.chain, self.index, self.at_start = chunk, chain, index, at_start
        self.rng, self.gaps = rng, gaps
        self.endian = chain.endian
        location = {"index_location": "start" if at_start else "end"} if names_location or at_start else {}
        self.document = named("sharding_indexed", chunk_shape=list(chunk), codecs=chain.documents,
                              index_codecs=index.documents, **location)

    def places(self, shape):
        for at in itertools.product(*(range(s // c) for s, c in zip(shape, self.chunk))):
            yield at, tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, self.chunk)) + (...,)

    def encode(self, x, mask):
        entries = np.full(tuple(s // c for s, c in zip(x.shape, self.chunk)) + (2,), EMPTY, "u8")
        places, body = list(self.places(x.shape)), b""
        start = len(self.index.encode(entries)) if self.at_start else 0
        for i in self.rng.permutation(len(places)):
            at, place = places[i]
            value = self.chain.encode(x[place], mask[place]) if mask[place].any() else None
            if value is not None:
                body += self.rng.bytes(5) if self.gaps else b""
                entries[at] = start + len(body), len(value)
                body += value
        if (entries == EMPTY).all():
            return None
        index = self.index.encode(entries)
        return index + body if self.at_start else body + index

    def settle(self, x):
        out = x.copy()
        for _, place in self.places(x.shape):
            out[place] = self.chain.settle(x[place])
        return out


class Chain:
    """A codec chain: array-to-array steps, the array-to-bytes codec, and (document, function) of each bytes-to-bytes
    codec."""

    def __init__(self, steps, serializer, compressors=()):
        self.steps, self.serializer, self.compressors = steps, serializer, compressors
        self.endian = serializer.endian
        self.documents = [s.document for s in steps] + [serializer.document] + [c[0] for c in compressors]

    def encode(self, x, mask=None):
        for step in self.steps:
            if mask is not None and step.document["name"] == "transpose":
                mask = step.encode(mask)
            x = step.encode(x)
        value = self.serializer.encode(x, mask)
        for _, compress in self.compressors:
            value = None if value is None else bytes(compress(value))
        return value

    def settle(self, x):
        passed = [x]
        for step in self.steps:
            passed.append(step.encode(passed[-1]))
        y = self.serializer.settle(passed[-1]) if isinstance(self.serializer, Shard) else passed[-1]
        for step, before in zip(reversed(self.steps), reversed(passed[:-1])):
            y = step.decode(y, before)
        return y


def crc32c(value):
    return value + struct.pack("<I", google_crc32c.value(value))


def compressors(itemsize):
    """Returns all bytes-to-bytes codecs as (document, function)."""

    def of(name, codec_id=None, also=None, **configuration):
        codec = numcodecs.get_codec({"id": codec_id or name.removeprefix("numcodecs.")} | configuration)
        return named(name, **(configuration | (also or {}))), codec.encode

    out = [of("gzip", level=5), of("gzip", level=0), (named("crc32c"), crc32c), ("crc32c", crc32c)]
    for level, checksum in ((0, False), (3, True), (-5, False)):
        out.append(of("zstd", level=level, checksum=checksum))
    out.append((named("zstd", level=1), numcodecs.get_codec({"id": "zstd", "level": 1}).encode))
    shuffles = ["noshuffle", "shuffle", "bitshuffle"]
    for i, (cname, shuffle) in enumerate(itertools.product(["lz4", "lz4hc", "blosclz", "zlib", "zstd"], shuffles)):
        size, block = [itemsize, 1, 4][i % 3], [0, 256][i % 2]
        codec = numcodecs.Blosc(cname, i % 10, shuffles.index(shuffle), block, size)
        options = {} if shuffle == "noshuffle" and i % 2 else {"typesize": size}
        document = named("blosc", cname=cname, clevel=i % 10, shuffle=shuffle, blocksize=block, **options)
        out.append((document, codec.encode))
    for name, configuration in [("zlib", {"level": 1}), ("bz2", {"level": 1}), ("lz4", {"acceleration": 1}),
                                ("lzma", {"preset": 1}), ("gzip", {"level": 1}), ("zstd", {"level": 2}),
                                ("crc32", {}), ("adler32", {}), ("fletcher32", {}),
                                ("jenkins_lookup3", {}), ("crc32c", {}),
                                ("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0})]:
        out.append(of(f"numcodecs.{name}", **configuration))
    out += [of("zlib", level=1), of("lz4", acceleration=1)]
    if itemsize > 1:
        out += [of("numcodecs.shuffle", elementsize=itemsize), of("shuffle", elementsize=itemsize)]
    return out
