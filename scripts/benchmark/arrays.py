"""The arrays that are measured, and how they are created."""
import dataclasses
import json
import math
import random
import shutil

BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
READ = 4096  # size of a random read or write, in bytes
ITEMSIZE = {"<i2": 2, "<i4": 4, "<f4": 4, "<f8": 8}


@dataclasses.dataclass(frozen=True)
class Array:
    name: str
    field: str  # the kind of values: see `slab`
    dtype: str
    plane: tuple  # all dimensions but the first
    chunks: tuple
    compressor: dict | None = dataclasses.field(default_factory=lambda: BLOSC)
    order: str = "C"
    fraction: int = 1  # divisor of the size, for codecs that take minutes
    filters: tuple = ()

    @property
    def itemsize(self):
        return ITEMSIZE[self.dtype]

    @property
    def chunk_bytes(self):
        return math.prod(self.chunks) * self.itemsize

    @property
    def codec(self):
        return self.compressor["id"] if self.compressor else None

    def shape(self, mib):
        return (max(1, (mib << 20) // self.fraction // (math.prod(self.plane) * self.itemsize)), *self.plane)

    def bytes(self, mib):
        return math.prod(self.shape(mib)) * self.itemsize

    def grid(self, mib):
        """Returns the number of chunks along each dimension."""
        return [-(-length // chunk) for length, chunk in zip(self.shape(mib), self.chunks, strict=True)]

    def chunk_count(self, mib):
        return math.prod(self.grid(mib))

    def chunks_touched(self, mib, offsets):
        """Returns the number of chunks that share pages with these offsets of the flat array."""
        import numpy as np
        items = np.add.outer(np.array(offsets) // self.itemsize, np.arange(READ // self.itemsize)).ravel()
        indices = [i // c for i, c in zip(np.unravel_index(items, self.shape(mib)), self.chunks, strict=True)]
        return len(np.unique(np.ravel_multi_index(indices, self.grid(mib))))

    def plain_name(self, mib):
        """Returns the name of the plain file, which arrays with the same values share."""
        sizes = "x".join(map(str, self.shape(mib)))
        return f"{self.field}-{self.dtype[1:]}-{sizes}.raw"

    def random_reads(self, mib, count, seed):
        """Returns up to `count` reads of 4 KiB of the flat array, as slices. No two of them touch the same chunk."""
        shape, pick, items = self.shape(mib), random.Random(seed), READ // self.itemsize
        bands = [()]
        for length, chunk in list(zip(shape, self.chunks, strict=True))[:max(1, len(shape) - 1)]:
            bands = [(*b, start) for b in bands for start in range(0, length - length % chunk or 1, chunk)]
        reads = []
        for band in pick.sample(bands, min(count, len(bands))):
            if len(shape) == 1:
                x = pick.randrange(band[0], min(band[0] + self.chunks[0], shape[0]), items)
                reads.append([[x, x + items]])
                continue
            z = pick.randrange(band[0], min(band[0] + self.chunks[0], shape[0]))
            rows = max(1, items // shape[2])
            y = pick.randrange(band[1], min(band[1] + self.chunks[1], shape[1]), rows)
            x = pick.randrange(0, shape[2], items) if items < shape[2] else 0
            reads.append([[z, z + 1], [y, y + rows], [x, min(x + items, shape[2])]])
        return reads


CUBE, SQUARE = (64, 128, 128), (512, 512)
ARRAYS = [
    Array("f4-blosc-lz4", "smooth", "<f4", SQUARE, CUBE),
    Array("i2-zlib-1", "image", "<i2", SQUARE, CUBE, {"id": "zlib", "level": 1}),
    Array("i4-ramp-blosc", "ramp", "<i4", (), (1 << 20,)),
    Array("f4-zstd", "smooth", "<f4", SQUARE, CUBE, {"id": "zstd", "level": 3}),
    Array("f8-bz2", "rounded", "<f8", SQUARE, (16, 128, 128), {"id": "bz2", "level": 1}, fraction=8),
    Array("f8-lzma", "rounded", "<f8", SQUARE, (16, 128, 128), {"id": "lzma", "preset": 1}, fraction=8),
    Array("f4-none", "smooth", "<f4", SQUARE, CUBE, None),
    Array("f4-order-f", "smooth", "<f4", SQUARE, CUBE, order="F"),
    Array("f4-64k", "smooth", "<f4", SQUARE, (16, 32, 32)),
    Array("f4-4m-rows", "smooth", "<f4", (256, 1024), (16, 64, 1024)),
    Array("f4-16m-rows", "smooth", "<f4", (256, 1024), (16, 256, 1024)),
    Array("f4-64m", "smooth", "<f4", SQUARE, (64, 512, 512)),
]
# maps, of which each is one chunk of 16 MiB
MAP, ONE_MAP = (2048, 2048), (1, 2048, 2048)
ZLIB, SHUFFLE = {"id": "zlib", "level": 1}, {"id": "shuffle", "elementsize": 4}
MAPS = [
    Array("maps-zlib-1", "smooth", "<f4", MAP, ONE_MAP, ZLIB),
    Array("maps-shuffle-zlib-1", "smooth", "<f4", MAP, ONE_MAP, ZLIB, filters=(SHUFFLE,)),
    Array("maps-lz4", "smooth", "<f4", MAP, ONE_MAP, {"id": "lz4", "acceleration": 1}),
    Array("maps-bz2", "smooth", "<f4", MAP, ONE_MAP, {"id": "bz2", "level": 1}, fraction=8),
]


def slab(array, start, stop):
    """Returns the values for start <= z < stop."""
    import numpy as np
    if array.field == "ramp":
        return np.arange(start, stop, dtype=array.dtype)
    height, width = array.plane
    y, x = np.mgrid[0:height, 0:width].astype("f4") / width
    z = np.arange(start, stop, dtype="f4")
    # noise in the last bits, as in measured data
    noise = np.random.default_rng(start).normal(0, 1e-4, (len(z), height, width)).astype("f4")
    field = np.sin(7 * x + 3 * y + z[:, None, None] / 90).astype("f4") * np.float32(0.9) + noise
    scaled = {"smooth": lambda: field, "image": lambda: field * 2000, "rounded": lambda: field.astype("f8").round(3)}
    return scaled[array.field]().astype(array.dtype)


def make_plain(array, mib, path):
    length = array.shape(mib)[0]
    # planes of 64 MiB of f4 at a time
    step = max(1, (64 << 18) // math.prod(array.plane)) if array.plane else 1 << 22
    part = path.with_suffix(".part")
    with open(part, "wb") as f:
        for start in range(0, length, step):
            f.write(slab(array, start, min(start + step, length)).data)
    part.rename(path)


def make(array, mib, directory):
    """Returns the store of the array and the plain file with the same bytes, created unless an earlier run did."""
    store, plain = directory / f"{array.name}.zarr", directory / array.plain_name(mib)
    if not plain.exists():
        print(f"making {plain.name}", flush=True)
        make_plain(array, mib, plain)
    definition = json.dumps({**dataclasses.asdict(array), "mib": mib})
    made = store / ".made"
    if made.exists() and made.read_text() == definition:
        return store, plain
    import numcodecs
    import numpy as np
    import zarr
    print(f"making {store.name}", flush=True)
    shutil.rmtree(store, ignore_errors=True)
    shape = array.shape(mib)
    flat = np.memmap(plain, array.dtype, "r", shape=shape)
    codec = array.compressor and numcodecs.get_codec(dict(array.compressor))
    filters = [numcodecs.get_codec(dict(f)) for f in array.filters] or None
    out = zarr.open_array(str(store), mode="w", shape=shape, chunks=array.chunks, dtype=array.dtype, order=array.order,
                          compressor=codec, filters=filters)
    for start in range(0, shape[0], array.chunks[0]):
        out[start:start + array.chunks[0]] = flat[start:start + array.chunks[0]]
    if array.codec == "zstd":
        drop_checksum(store / ".zarray")
    made.write_text(definition)
    return store, plain


def drop_checksum(path):
    """Removes the member `checksum`, which TensorStore does not accept. A missing one means false."""
    document = json.loads(path.read_text())
    document["compressor"].pop("checksum", None)
    path.write_text(json.dumps(document))


def check_space(arrays, mib, directory, writes):
    """Prints the disk space that the arrays need, and fails if it is not available."""
    plains = {a.plain_name(mib): a.bytes(mib) for a in arrays}
    missing = sum(size for name, size in plains.items() if not (directory / name).exists())
    missing += sum(a.bytes(mib) for a in arrays if not (directory / f"{a.name}.zarr" / ".made").exists())
    # writing needs a copy of the store and a plain file, reading a raw file
    scratch = max((a.bytes(mib) for a in arrays), default=0) * (2 if writes else 1)
    free = shutil.disk_usage(directory).free
    gib = 1 << 30
    print(f"disk: up to {missing / gib:.1f} GiB for new arrays, {scratch / gib:.1f} GiB while it runs; "
          f"{free / gib:.1f} GiB are free", flush=True)
    if free < missing + scratch + gib:
        raise SystemExit("bench: not enough disk space; a smaller --mib or --only takes less")
