"""One measurement in a fresh process: peer.py LIBRARY OPERATION ARGUMENTS, the last as JSON; it prints JSON.

Imports are done before the clock starts; opening the array is part of what is measured, but for the random reads, of
which each is measured by itself.
"""
import json
import os
import pathlib
import sys
import time


class Zarr:
    """zarr-python 2 or 3, whichever is installed."""

    def __init__(self):
        import zarr
        self.zarr = zarr

    def open(self, path):
        return self.zarr.open_array(path, mode="r")

    def read(self, array, selection):
        return array[selection]


class Zarrs(Zarr):
    """zarr-python 3 with the codec pipeline of zarrs, which must not fall back to zarr-python's own."""

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
        # by itself zarr-python makes an array of the stored order, which zarrs can't fill
        shape = [len(range(*s.indices(n))) for s, n in zip(selection, array.shape, strict=True)]
        out = self.numpy.empty(shape, array.dtype)
        array.get_basic_selection(selection, out=self.buffer.from_numpy_array(out))
        return out


class TensorStore:
    def __init__(self):
        import tensorstore
        self.ts = tensorstore

    def open(self, path):
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}
        return self.ts.open(spec, open=True, read=True).result()

    def read(self, array, selection):
        return array[selection].read().result()


class File:
    """A file of the flat bytes, and numpy."""

    def __init__(self, shape, dtype):
        import numpy
        self.numpy, self.shape, self.dtype = numpy, tuple(shape), dtype

    def open(self, path):
        return self.numpy.memmap(path, self.dtype, "r", shape=self.shape)

    def read(self, array, selection):
        return array[selection].copy()


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
    """Row of chunks by row of chunks, as one converts arrays that are larger than the memory."""
    import numpy

    def convert():
        array = library.open(path)
        with open(out, "wb") as f:
            for start in range(0, array.shape[0], planes):
                stop = min(start + planes, array.shape[0])
                rows = library.read(array, (slice(start, stop), *whole(array)[1:]))
                # of an array of order F, tofile writes item by item
                numpy.ascontiguousarray(rows).tofile(f)
    return timed(convert)


def plane(library, path, selection):
    return timed(lambda: library.read(library.open(path), slices(selection)))


def latency(library, path, reads):
    array = library.open(path)
    return [timed(library.read, array, slices(read)) for read in reads]


def pread(_, path, offsets, size):
    fd = os.open(path, os.O_RDONLY)
    return [timed(os.pread, fd, size, offset) for offset in offsets]


def total(library, path):
    return timed(lambda: library.open(path).sum())


def decode(_, path):
    """All chunks by the codec library alone, in one thread; what it takes to read them is not counted."""
    import numcodecs
    import numpy
    numcodecs.blosc.use_threads = False
    numcodecs.blosc.set_nthreads(1)
    document = json.loads(pathlib.Path(path, ".zarray").read_text())
    if document["compressor"] is None:
        return 0.0
    codec = numcodecs.get_codec(document["compressor"])
    # fresh memory for each chunk would be counted; the others can't be spared it
    reuse = document["compressor"]["id"] in ("blosc", "zstd")
    out = {"out": numpy.empty(document["chunks"], document["dtype"])} if reuse else {}
    seconds = 0.0
    for entry in os.scandir(path):
        if entry.name[0].isdigit():
            stored = pathlib.Path(entry.path).read_bytes()
            seconds += timed(codec.decode, stored, **out)
    return seconds


def peak_memory():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


LIBRARIES = {"zarr2": Zarr, "zarr3": Zarr, "zarrs": Zarrs, "tensorstore": TensorStore, "file": File,
             "pread": lambda: None, "numcodecs": lambda: None}
OPERATIONS = {f.__name__: f for f in (memory, file, plane, latency, pread, total, decode)}


def main():
    name, operation, arguments = sys.argv[1:]
    arguments = json.loads(arguments)
    try:
        library = LIBRARIES[name](**arguments.pop("library", {}))
        result = {"seconds": OPERATIONS[operation](library, **arguments), "peak": peak_memory()}
    except Exception as e:  # whatever a library can't do is a result
        said = str(e) or str(e.__cause__ or "")
        # TensorStore appends its specification, and both say where the array is
        said = said.split(" [tensorstore_spec")[0].replace(str(pathlib.Path(arguments["path"]).parent) + "/", "")
        result = {"error": f"{type(e).__name__}: {said}"[:300]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
