"""Makes one measurement in a new process: peer.py LIBRARY OPERATION ARGUMENTS, with arguments and output in JSON.

The seconds include opening the array, but not the imports. Each random read is measured separately, without opening.
"""
import ctypes
import json
import os
import pathlib
import resource
import sys
import time

from system import bytes_read_by, cpu_of


class Zarr:
    """Opens an array with the installed zarr-python, 2 or 3. For a URL, up to `requests` requests are in flight."""

    def __init__(self, requests=None):
        import zarr
        self.zarr = zarr
        if requests:
            zarr.config.set({"async.concurrency": requests})

    def open(self, path, write=False):
        return self.zarr.open_array(path, mode="r+" if write else "r")

    def read(self, array, selection):
        return array[selection]

    def write(self, array, values):
        array[...] = values


class Zarrs(Zarr):
    """Configures zarr-python 3 to use the codec pipeline of zarrs, without falling back to its own."""

    def __init__(self):
        super().__init__()
        import numpy
        import zarrs  # noqa: F401
        from zarr.core.buffer import default_buffer_prototype
        self.numpy, self.buffer = numpy, default_buffer_prototype().nd_buffer
        self.zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True})

    def read(self, array, selection):
        if array.order == "C":
            return array[selection]
        # by default zarr-python allocates an array in the stored order, into which zarrs cannot decode
        shape = [len(range(*s.indices(n))) for s, n in zip(selection, array.shape, strict=True)]
        out = self.numpy.empty(shape, array.dtype)
        array.get_basic_selection(selection, out=self.buffer.from_numpy_array(out))
        return out


class Fused(Zarr):
    """Configures zarr-python 3 to use its other codec pipeline, which decodes in a pool of threads."""

    def __init__(self, requests=None):
        super().__init__(requests)
        self.zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"})


class TensorStore:
    def __init__(self, requests=None, driver=None):
        import tensorstore
        self.ts, self.requests, self.driver = tensorstore, requests, driver

    def open(self, path, write=False):
        kvstore = {"driver": "file", "path": f"{path}/"}
        if self.requests:
            base, name = str(path).rsplit("/", 1)
            kvstore = {"driver": "http", "base_url": f"{base}/", "path": f"{name}/",
                       "http_request_concurrency": {"limit": self.requests}}
        driver = self.driver or ("zarr3" if os.path.exists(f"{path}/zarr.json") else "zarr")
        spec = {"driver": driver, "kvstore": kvstore}
        return self.ts.open(spec, open=True, read=True, write=write).result()

    def read(self, array, selection):
        return array[selection].read().result()

    def write(self, array, values):
        array.write(values).result()


class File:
    """A file of flat bytes, read with numpy."""

    def __init__(self, shape, dtype):
        import numpy
        self.numpy, self.shape, self.dtype = numpy, tuple(shape), dtype

    def open(self, path):
        return self.numpy.memmap(path, self.dtype, "r", shape=self.shape)

    def read(self, array, selection):
        return array[selection].copy()


class Items(File):
    """A file of flat bytes, of which each item is read with pread(2)."""

    def open(self, path):
        return os.open(path, os.O_RDONLY)

    def read(self, file, selection):
        size = self.numpy.dtype(self.dtype).itemsize
        _, y, x = (s.start for s in selection)
        _, height, width = self.shape
        places = (((z * height + y) * width + x) * size for z in range(self.shape[0]))
        return self.numpy.frombuffer(b"".join(os.pread(file, size, at) for at in places), self.dtype)


def timed(function, *arguments, **options):
    start = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - start


def slices(selection):
    return tuple(slice(*s) for s in selection)


def whole(array):
    return (slice(None),) * len(array.shape)


def memory(library, path):
    def read():
        array = library.open(path)
        library.read(array, whole(array))
    return timed(read)


def file(library, path, out, planes):
    """Converts one row of chunks at a time, as for arrays larger than memory."""
    import numpy

    def convert():
        array = library.open(path)
        with open(out, "wb") as f:
            for start in range(0, array.shape[0], planes):
                stop = min(start + planes, array.shape[0])
                rows = library.read(array, (slice(start, stop), *whole(array)[1:]))
                # tofile would write the items of an array of order F one by one
                numpy.ascontiguousarray(rows).tofile(f)
    return timed(convert)


def store(library, path, plain):
    """Writes the whole new array. Returns the seconds until the library returns, and until the data is on disk."""
    import numpy
    array = library.open(path)
    shape, dtype = tuple(array.shape), getattr(array.dtype, "numpy_dtype", array.dtype)
    values = numpy.fromfile(plain, dtype).reshape(shape)
    start = time.perf_counter()
    library.write(library.open(path, write=True), values)
    seconds = time.perf_counter() - start
    sync(path)
    return [seconds, time.perf_counter() - start]


def sync(path):
    """Syncs the file system that `path` is on."""
    fd = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        raise OSError(ctypes.get_errno(), "syncfs")
    os.close(fd)


def plane(library, path, selection):
    return timed(lambda: library.read(library.open(path), slices(selection)))


def crowd(library, path, selection, readers):
    """Reads the same items in several processes at once, forked after the imports, and returns the seconds until the last
    one ends, and their CPU seconds."""
    gate, opener = os.pipe()
    children = []
    for _ in range(readers):
        child = os.fork()
        if child == 0:
            try:
                os.close(opener)
                os.read(gate, 1)
                library.read(library.open(path), slices(selection))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    start = time.perf_counter()
    os.close(opener)
    ended = [os.wait4(child, 0)[1:] for child in children]
    seconds = time.perf_counter() - start
    if any(status for status, _ in ended):
        raise RuntimeError("a reader failed")
    return [seconds, sum(usage.ru_utime + usage.ru_stime for _, usage in ended)]


def latency(library, path, reads):
    array = library.open(path)
    return [timed(library.read, array, slices(read)) for read in reads]


def series(library, path, points, daemon=None, server=None):
    """Reads one item of each step for each point (y, x). Returns what each point costs, and its values."""
    def now():
        counters = {"seconds": time.perf_counter(), "cpu": cpu_seconds()}
        if daemon:
            counters["daemon_cpu"] = cpu_of(daemon)
        if server:
            # which it sends
            counters["bytes"] = bytes_read_by(server)
        return counters

    array, found = library.open(path), []
    for y, x in points:
        before = now()
        values = library.read(array, (slice(None), slice(y, y + 1), slice(x, x + 1)))
        cost = {name: value - before[name] for name, value in now().items()}
        found.append({**cost, "values": values.tobytes().hex()})
    return found


def pread(_, path, offsets, size):
    fd = os.open(path, os.O_RDONLY)
    return [timed(os.pread, fd, size, offset) for offset in offsets]


def pwrite(_, path, offsets, size):
    """Writes `size` bytes at each offset, and calls fsync once."""
    data = os.urandom(size)
    fd = os.open(path, os.O_RDWR)

    def write():
        for offset in offsets:
            os.pwrite(fd, data, offset)
        os.fsync(fd)
    return timed(write)


def total(library, path):
    return timed(lambda: library.open(path).sum())


def codec_and_chunks(path):
    """Returns the codec of an array, or None, its document, and its stored chunks."""
    import numcodecs
    numcodecs.blosc.use_threads = False
    numcodecs.blosc.set_nthreads(1)
    document = json.loads(pathlib.Path(path, ".zarray").read_text())
    codec = document["compressor"] and numcodecs.get_codec(document["compressor"])
    names = (e.path for e in os.scandir(path) if codec and e.name[0].isdigit())
    return codec, document, (pathlib.Path(name).read_bytes() for name in names)


def decode(_, path):
    """Decodes all chunks with the codec library alone, in one thread; reading them is not counted."""
    import numpy
    codec, document, chunks = codec_and_chunks(path)
    # one buffer for all chunks where the codec can use it; others allocate memory for each chunk
    reuse = codec and codec.codec_id in ("blosc", "zstd")
    out = {"out": numpy.empty(document["chunks"], document["dtype"])} if reuse else {}
    return sum(timed(codec.decode, stored, **out) for stored in chunks)


def encode(_, path):
    """Encodes all chunks with the codec library alone, in one thread; decoding them before is not counted."""
    import numpy
    codec, document, chunks = codec_and_chunks(path)
    return sum(timed(codec.encode, numpy.frombuffer(codec.decode(stored), document["dtype"])) for stored in chunks)


def cpu_seconds():
    """Returns the CPU seconds of all threads of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


LIBRARIES = {"zarr2": Zarr, "zarr3": Zarr, "zarr3-fused": Fused, "zarrs": Zarrs, "tensorstore": TensorStore,
             "file": File, "items": Items, "pread": lambda: None, "pwrite": lambda: None, "numcodecs": lambda: None}
OPERATIONS = {f.__name__: f for f in (memory, file, store, plane, crowd, latency, series, pread, pwrite, total, decode,
                                      encode)}


def main():
    name, operation, arguments = sys.argv[1:]
    arguments = json.loads(arguments)
    try:
        library = LIBRARIES[name](**arguments.pop("library", {}))
        before = cpu_seconds()
        seconds = OPERATIONS[operation](library, **arguments)
        result = {"seconds": seconds, "cpu": cpu_seconds() - before, "peak": peak_memory()}
    except Exception as e:  # a failure is a result
        said = str(e) or str(e.__cause__ or "")
        # without the specification that TensorStore appends, and without paths
        said = said.split(" [tensorstore_spec")[0].replace(arguments["path"].rsplit("/", 1)[0] + "/", "")
        result = {"error": f"{type(e).__name__}: {said}"[:300]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
