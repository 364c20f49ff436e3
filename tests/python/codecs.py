"""Cases for tests/formats/codecs.rs: how numcodecs encodes and decodes arrays, and whether it decodes what zarrfs encodes.

First every case is written to standard output. A field is a 4-byte little-endian length and as many bytes; the length
0xffffffff means that numcodecs raised an error. A case has these fields: the configuration of the codec as JSON, flags
(text), item size (text), the bytes to encode, the bytes that numcodecs encodes, their item size (text), and the bytes
that numcodecs decodes from them. A case without bytes to encode has only a configuration and encoded bytes. A field of
the three bytes "end" ends the list.

Then standard input has triples of fields: configuration, bytes encoded by zarrfs, expected decoded bytes. The answer to
each triple is one field: "ok" or the difference. The only argument is the random seed.
"""

import io
import itertools
import json
import random
import struct
import sys
import warnings

import imagecodecs.numcodecs
import numcodecs
import numpy as np
import soundfile
from numcodecs.checksum32 import Checksum32

warnings.simplefilter("ignore")
NONE = 0xFFFFFFFF
SIZES = (0, 1, 2, 37, 1001)


def crc32c(data, _=0):
    """Returns the CRC-32C, for which numcodecs would need another package."""
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class CRC32C(Checksum32):
    codec_id = "crc32c"
    checksum = staticmethod(crc32c)
    location = "end"


if "crc32c" not in numcodecs.registry.codec_registry:
    numcodecs.register_codec(CRC32C)


class Flac(numcodecs.abc.Codec):
    """The codec of the package flac_numcodecs, whose library pyFLAC would have to be compiled."""
    codec_id = "flac"

    def __init__(self, level=5, blocksize=None, sample_rate=48000, tmpdir=None):
        self.level, self.sample_rate = level, sample_rate

    def encode(self, array):
        columns = array.shape[1] if array.ndim == 2 and array.shape[1] <= 2 else 1
        file = io.BytesIO()
        soundfile.write(file, array.reshape(-1, columns), self.sample_rate, format="FLAC", subtype="PCM_16",
                        compression_level=self.level / 8)
        return file.getvalue()

    def decode(self, data, out=None):
        return soundfile.read(io.BytesIO(data), dtype="int16", always_2d=True)[0]


numcodecs.register_codec(Flac)
imagecodecs.numcodecs.register_codecs(("imagecodecs_zstd", "imagecodecs_deflate"), verbose=False)


def put(data):
    out = sys.stdout.buffer
    if data is None:
        out.write(struct.pack("<I", NONE))
        return
    if isinstance(data, str):
        data = data.encode()
    out.write(struct.pack("<I", len(data)))
    out.write(data)


def get():
    head = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(struct.unpack("<I", head)[0]) if head else None


def raw(result):
    return result if isinstance(result, bytes) else np.asarray(memoryview_of(result)).tobytes(order="A")


def memoryview_of(result):
    return result if isinstance(result, np.ndarray) else memoryview(result)


def codec_of(config):
    """Returns the codec of numcodecs, to which the array tells its type and shape."""
    known = ("dtype", "shape") if config["id"] in ("zfpy", "flac") else ()
    return numcodecs.get_codec({k: v for k, v in config.items() if k not in known})


def attempt(action):
    """Returns the result of `action`, or None if numcodecs raises."""
    try:
        return action()
    except (AttributeError, AssertionError):
        raise
    except Exception:
        return None


def case(config, array, flags="exact"):
    """Prints a case of an array that is encoded and decoded again."""
    encoded = attempt(lambda: codec_of(config).encode(array.copy()))
    data = None if encoded is None else raw(encoded)
    itemsize = None if encoded is None else str(getattr(encoded, "itemsize", 1) if hasattr(encoded, "dtype") else 1)
    decoded = None if data is None else attempt(lambda: raw(codec_of(config).decode(data)))
    if flags != "exact" and data is not None and decoded is None:
        return  # some compressors cannot decode an empty buffer that they encoded
    for field in (json.dumps(config), flags, str(array.itemsize), array.tobytes(), data, itemsize, decoded):
        put(field)


def stored(config, data):
    """Prints a case of encoded bytes that are only decoded."""
    decoded = attempt(lambda: raw(codec_of(config).decode(data)))
    for field in (json.dumps(config), "exact", "1", None, data, "1", decoded):
        put(field)


EDGES = [0.0, -0.0, 1.5, 2.5, -0.5, np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -1.0]
EDGES += [-(2.0**63), 2.0**64, 65504.0, 65519.9, 65520.0, 1e-8, 6e-8, 1e-40, 5e-324, 255.9, 256.0, 3e9, 1e300, 2049.0]
EDGES += [1 + 2**-11 + 2**-40, 1 + 2**-11, 1 + 3 * 2**-11]


def values(rng, dtype, n, tame=False):
    """Returns numbers of every kind. Tame ones grow slowly and fit into every dtype."""
    dtype = np.dtype(dtype)
    if tame:
        return np.cumsum(rng.integers(0, 2, n)).clip(0, 120).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(dtype)
    if dtype.kind in "iumM":
        walk = rng.integers(-3, 4, n).cumsum().astype("i8")
        wild = rng.integers(-(2**63), 2**63 - 1, n)
        whole = np.where(rng.random(n) < (0.5 if n % 2 else 0.0), wild, walk).astype(f"i{dtype.itemsize}")
        return whole.view(dtype.newbyteorder("=")).astype(dtype)
    floats = rng.normal(0, 1000, n).cumsum().round(3)
    edges = rng.choice(np.array(EDGES), n)
    floats = np.where(rng.random(n) < (0.0 if n % 2 else 0.3), edges, floats)
    return (floats + 1j * rng.permutation(floats) if dtype.kind == "c" else floats).astype(dtype)


NUMBERS = ["|b1", "|i1", "|u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def ordered(rng, name):
    return name if name[0] == "|" else "<>"[rng.integers(0, 2)] + name


def pairs(rng):
    for a, b in itertools.product(NUMBERS, NUMBERS):
        for _ in range(2):
            yield ordered(rng, a), ordered(rng, b)


def undefined(*dtypes):
    """Whether a cast is undefined. NumPy casts floats that do not fit into u4 depending on the length of the array."""
    kinds = {np.dtype(d).str[1:] for d in dtypes}
    return "u4" in kinds and bool(kinds & {"f2", "f4", "f8", "c8", "c16"} or len(kinds) > 1)


def delta(rng):
    for d, a in pairs(rng):
        for n in SIZES:
            case({"id": "delta", "dtype": d, "astype": a}, values(rng, d, n, undefined(d, a)))
        stored({"id": "delta", "dtype": d, "astype": a}, values(rng, a, 777, undefined(d, a)).tobytes())
    for d in NUMBERS + ["<m8[s]", ">m8[25us]"]:
        case({"id": "delta", "dtype": d}, values(rng, d, 600))
        case({"id": "delta", "dtype": d}, values(rng, d, 601))
        stored({"id": "delta", "dtype": d}, bytes(rng.integers(0, 2, 13, "u1")))
    nat = np.array([5, 3, "NaT", 7, 8], "<m8[s]")
    case({"id": "delta", "dtype": "<m8[s]"}, nat)
    stored({"id": "delta", "dtype": "<m8[s]"}, nat.tobytes())
    for d, a in [("<M8[s]", "<M8[s]"), ("<m8[s]", "<i8"), ("<f8", "<m8[s]"), ("<U2", "<U2"), ("|O", "<i4")]:
        case({"id": "delta", "dtype": d, "astype": a}, np.zeros(3, d if d != "|O" else "i8"))
    case({"id": "delta", "dtype": "<i4", "what": 1}, np.zeros(3, "<i4"))


def fixed_scale_offset(rng):
    numbers = [(0, 1), (1000, 10), (-5, 3), (0.5, 10), (2, 0.25), (1e3, 1e2), (3, 10**12), (7, 0), (2**63, 1), (0.1, 7.7)]
    for d, a in pairs(rng):
        offset, scale = numbers[rng.integers(0, len(numbers))]
        config = {"id": "fixedscaleoffset", "offset": offset, "scale": scale, "dtype": d, "astype": a}
        if undefined(d, a) or "u4" in (d[1:], a[1:]):
            config.update(offset=1, scale=2)
            case(config, values(rng, d, 100, True)[50:] + np.array(1, d))
            continue
        for n in SIZES:
            case(config, values(rng, d, n))
        stored(config, values(rng, a, 778).tobytes())
    for (offset, scale), (d, a) in itertools.product(
        numbers, [("<f4", "<i2"), ("<f4", "|u1"), (">f8", "<i4"), ("<f4", "<f4"), ("<i2", "|i1"), ("<f2", "|u1"), ("<u8", "<i8")]
    ):
        config = {"id": "fixedscaleoffset", "offset": offset, "scale": scale, "dtype": d, "astype": a}
        case(config, values(rng, d, 999))
        case(config, values(rng, d, 1000))
        stored(config, values(rng, a, 999).tobytes())
    stored(config, b"12345")


def quantize(rng):
    floats = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
    for d, a in itertools.product(floats, floats):
        for digits in (-3, -1, 0, 1, 2, 3, 5, 7, 12, rng.integers(-40, 40)):
            for n in (1001, 38):
                case({"id": "quantize", "digits": int(digits), "dtype": d, "astype": a}, values(rng, d, n))
    for digits in (-309, -308, 307, 308):
        case({"id": "quantize", "digits": digits, "dtype": "<f8"}, values(rng, "<f8", 1001))
    case({"id": "quantize", "digits": 1, "dtype": "<i4"}, values(rng, "<i4", 3))
    stored({"id": "quantize", "digits": 1, "dtype": "<f4"}, b"123")


def astype(rng):
    for d, e in pairs(rng):
        for n in SIZES + (36,):
            tame = undefined(d, e)
            case({"id": "astype", "encode_dtype": e, "decode_dtype": d}, values(rng, d, n, tame))
        stored({"id": "astype", "encode_dtype": e, "decode_dtype": d}, values(rng, e, 512 + 36, tame).tobytes())
    for t, other in itertools.product(("<m8[s]", ">M8[s]"), ("<i8", ">f8", "|b1", "<c8", "<M8[s]", ">m8[s]", "|i1", "<f2")):
        case({"id": "astype", "encode_dtype": t, "decode_dtype": other}, values(rng, other, 37))
        case({"id": "astype", "encode_dtype": other, "decode_dtype": t}, values(rng, t, 38))
    stored({"id": "astype", "encode_dtype": "<i4", "decode_dtype": "<i8"}, b"123")


def bitround(rng):
    for d, keep, n in itertools.product(("<f2", "<f4", "<f8"), (0, 1, 3, 9, 10, 11, 22, 23, 24, 51, 52, 53), SIZES + (36,)):
        array = values(rng, d, n)
        case({"id": "bitround", "keepbits": keep}, array)
    for keep in (0, 3, 10):
        bits = rng.integers(0, 65536, 1000, "u2").view("<f2")
        case({"id": "bitround", "keepbits": keep}, bits)
    case({"id": "bitround", "keepbits": -1}, array)


def packbits(rng):
    for n in list(range(20)) + [1000, 1001]:
        case({"id": "packbits"}, values(rng, "|b1", n))
    case({"id": "packbits"}, rng.integers(0, 4, 100, "u1"))
    for data in (b"", b"\0", b"\3", b"\7\xff", b"\xff\1\2", b"\x09\xff\xff"):
        stored({"id": "packbits"}, data)


def categorize(rng):
    words = ["", "a", "b", "ab", "abc", "\u00df", "\u4e2d\u6587", "\U0001f600", "ab", "a\0", "\0a", "long label"]
    for d, a in itertools.product(
        ("<U1", ">U2", "<U3", ">U10"), ("|u1", "|i1", "<i2", ">u4", "<f4", ">f8", "<f2", "|b1", ">i8", "<u8")
    ):
        for labels in (words, words[1:4], [], words * 12):
            array = rng.choice(np.array(words), 57).astype(d)
            config = {"id": "categorize", "labels": labels, "dtype": d, "astype": a}
            case(config, array)
            case(config, array[:0])
            codes = rng.choice(np.array([0, 1, 2, 3, 4, 12, 13, 100, 127, 200, 255, 1.5, 0.5]), 300)
            stored(config, codes.clip(0, 127 if a == "|i1" else 255).astype(a).tobytes())
    for labels, d, a in ((["x"], "|S2", "|u1"), (["x"], "<i4", "|u1"), ([3], "<U1", "|u1"), (["x"] * 256, "<U1", "|u1")):
        case({"id": "categorize", "labels": labels, "dtype": d, "astype": a}, np.zeros(4, d))
    case({"id": "categorize", "labels": ["a"], "dtype": "<U1"}, np.array(["a"]))
    case({"id": "categorize", "labels": ["a"], "dtype": "<U2"}, np.zeros(3, "u4"))


def shuffle(rng):
    for size, n in itertools.product((-1, 0, 1, 2, 3, 4, 5, 8, 12, 16, 40), (0, 1, 7, 240, 1001, 48000)):
        case({"id": "shuffle", "elementsize": size}, rng.integers(0, 256, n, "u1"))
        case({"id": "shuffle", "elementsize": size}, rng.integers(0, 256, n * max(size, 1) % 60000, "u1"))
    case({"id": "shuffle"}, values(rng, "<f8", 100))
    stored({"id": "shuffle"}, b"12345")


def checksums(rng):
    configs = [{"id": i, **o} for i in ("crc32", "crc32c", "adler32") for o in ({}, {"location": "start"}, {"location": "end"})]
    configs += [{"id": "fletcher32"}] + [{"id": "jenkins_lookup3", **o} for o in ({}, {"initval": 5}, {"initval": 2**32 - 1})]
    configs += [{"id": "base64"}]
    for config in configs:
        for n in list(range(30)) + [719, 720, 721, 722, 5001]:
            case(config, rng.integers(0, 256, n, "u1"))
        case(config, np.full(5000, 255, "u1"))
        case(config, values(rng, ">f8", 33))
        for n in range(7):
            stored(config, bytes(rng.integers(0, 256, n, "u1")))
        data = bytearray(raw(codec_of(config).encode(np.arange(50, dtype="u1"))))
        data[9] ^= 4
        stored(config, bytes(data))
    for config in ({"id": "crc32", "location": "middle"}, {"id": "jenkins_lookup3", "initval": -1}, {"id": "fletcher32", "x": 1}):
        case(config, np.zeros(4, "u1"))
    for text in (b"aGVsbG8=", b" aGV\nsbG8=\n", b"aGVsbG8", b"aGVsbG8==", b"a", b"=", b"aG=VsbG8=", b"aA==aA==", b"a-_A", b"aB=="):
        stored({"id": "base64"}, text)


def compressors():
    for cname, clevel, shuffled in itertools.product(("lz4", "lz4hc", "blosclz", "zlib", "zstd"), (0, 1, 5, 9), (-1, 0, 1, 2)):
        yield {"id": "blosc", "cname": cname, "clevel": clevel, "shuffle": shuffled, "blocksize": 0}
    for blocksize in (100, 256, 4096, 1 << 20):
        yield {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": blocksize}
    for codec, levels in (("zlib", (-1, 0, 1, 6, 9)), ("gzip", (0, 1, 6, 9)), ("bz2", (1, 9)), ("zstd", (-5, 0, 1, 3, 19, 30))):
        for level in levels:
            yield {"id": codec, "level": level}
    yield {"id": "zstd", "level": 1, "checksum": True}
    for codec, level in itertools.product(("imagecodecs_zstd", "imagecodecs_deflate"), (None, 1, 12)):
        yield {"id": codec, "level": level}
    for acceleration in (-1, 1, 10, 1000):
        yield {"id": "lz4", "acceleration": acceleration}
    lzma2, lzma1 = {"id": 33, "preset": 1}, {"id": 4611686018427387905, "preset": 1}
    for check in (-1, 0, 1, 4, 10):
        yield {"id": "lzma", "format": 1, "check": check, "preset": 1, "filters": None}
    yield {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}
    yield {"id": "lzma", "format": 2, "check": -1, "preset": 1, "filters": None}
    for chain in ([lzma2], [{"id": 3, "dist": 4}, lzma2], [{"id": 4}, lzma2], [lzma1]):
        yield {"id": "lzma", "format": 3, "check": -1, "preset": None, "filters": chain}
    tuned = {"id": 33, "preset": 1, "dict_size": 65536, "lc": 2, "lp": 1, "pb": 1, "nice_len": 64, "mf": 4, "depth": 10}
    yield {"id": "lzma", "format": 3, "check": -1, "preset": None, "filters": [tuned]}


def compressed(rng):
    smooth = np.cumsum(rng.normal(0, 1, 20000))
    arrays = [np.zeros(0, "u1"), np.zeros(1, "u1"), (smooth[:37] * 10).astype("<i2"), smooth[:1001].astype(">f4")]
    arrays += [rng.integers(0, 256, 5003, "u1"), (smooth * 10).astype("<i2"), smooth.astype("<f4"), smooth[:6000]]
    arrays += [np.zeros(70001, "u1"), rng.integers(0, 3, 30).astype("<U10"), rng.integers(0, 99, 999).astype("V3")]
    for config, array in itertools.product(compressors(), arrays):
        slow = config.get("clevel", 0) == 9 or (config.get("level") or 0) > 9
        if not (slow and array.nbytes > 20000):
            case(config, array, "round trip")


def zfp(rng):
    modes = [{}, {"mode": 4, "tolerance": -1, "rate": -1, "precision": -1, "compression_kwargs": {"tolerance": -1}}]
    modes += [{"mode": 4, "tolerance": 1e-3}, {"mode": 4, "tolerance": 0}, {"mode": 2, "rate": 7.5}, {"mode": 2, "rate": 32}]
    modes += [{"mode": 2}, {"mode": 3, "precision": 0}, {"mode": 3, "precision": 11}, {"mode": 3}]
    shapes = [(1,), (37,), (1001,), (1, 1), (13, 9), (64, 3), (4, 4, 4), (5, 1, 11), (7, 6, 5), (2, 3, 5, 4), (1, 1, 1, 9)]
    for mode, shape, d in itertools.product(modes, shapes, ("<i4", "<i8", "<f4", "<f8")):
        config = {"id": "zfpy", **mode, "dtype": d, "shape": shape}
        ramp = np.cumsum(rng.integers(-9, 10, shape).ravel()).reshape(shape)
        case(config, (ramp * 100 if d[1] == "i" else ramp / 8).astype(d))
        is_reversible = not {"tolerance", "rate", "precision"} & mode.keys() or mode.get("tolerance") == -1
        if is_reversible:
            case(config, values(rng, d, ramp.size).reshape(shape))
    for d in ("|i1", "<u4", ">f4", "<f2", "<c8"):
        case({"id": "zfpy", "dtype": d, "shape": [5]}, np.zeros(5, d))


def flac(rng):
    for level, shape in itertools.product((0, 2, 5, 8), ((1,), (40,), (20001,), (3000, 1), (9000, 2), (300, 7), (5, 6, 7))):
        n = int(np.prod(shape))
        for array in (np.sin(np.arange(n) / 50) * 9000, rng.integers(-(2**15), 2**15, n), np.full(n, -5), np.arange(n) * 16):
            config = {"id": "flac", "level": level, "dtype": "<i2", "shape": shape}
            case(config, array.astype("i8").astype("<i2").reshape(shape), "round trip")


def answer():
    while (config := get()) is not None:
        config, encoded, expected = json.loads(config), get(), get()
        try:
            got = raw(codec_of(config).decode(encoded))
            put("ok" if got == expected else f"{len(got)} bytes, not the {len(expected)} expected, or other ones")
        except Exception as error:
            put(f"{type(error).__name__}: {error}")


def main():
    seed = int(sys.argv[1])
    random.seed(seed)
    rng = np.random.default_rng(seed)
    for group in (delta, fixed_scale_offset, quantize, astype, bitround, packbits, categorize, shuffle, checksums, compressed,
                  zfp, flac):
        group(rng)
    put("end")
    sys.stdout.buffer.flush()
    answer()
    sys.stdout.buffer.flush()


main()
