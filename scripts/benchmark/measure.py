"""The rows of reading: each method measures one row of the tables."""
import contextlib
import math
import os
import statistics
import subprocess
import time

from arrays import READ
from system import Failed, cpu_of, json_of, peak_of, timed

PEERS = ["zarr2", "zarr3", "zarr3-fused", "zarrs", "tensorstore"]
MOUNTED = ["zarrfs", "direct", "null", "null-direct", "plain"]
READERS = 4
CROWD = 64


class Samples:
    """The values of all rounds, by row and column. A column that failed has the reason and is not tried again."""

    def __init__(self):
        self.values, self.errors = {}, {}

    def add(self, row, column, *values):
        self.values.setdefault(row, {}).setdefault(column, []).extend(values)

    def left(self, row, columns):
        """Returns the columns that have not failed."""
        return [c for c in columns if c not in self.errors.get(row, {})]

    @contextlib.contextmanager
    def noting_failure(self, row, column):
        try:
            yield
        except Failed as e:
            self.errors.setdefault(row, {})[column] = str(e)

    def summary(self):
        rows = {}
        for row in [*self.values, *(r for r in self.errors if r not in self.values)]:
            columns = rows[row] = {}
            for column, values in self.values.get(row, {}).items():
                columns[column] = {"median": statistics.median(values), "min": min(values), "max": max(values),
                                   "samples": values}
            for column, error in self.errors.get(row, {}).items():
                columns[column] = {"error": error}
        return rows


class ArrayBench:
    """All measurements of one array."""

    def __init__(self, setup, array, store, plain):
        self.setup, self.array, self.store, self.plain = setup, array, store, plain
        self.mounts, self.samples = setup.mounts, Samples()
        self.size = array.bytes(setup.mib)
        self.shape = array.shape(setup.mib)
        self.out = setup.directory / "out.raw"
        direct = self.mounts.has_direct_io
        self.columns = [c for c in MOUNTED if direct or "direct" not in c]
        self.round = 0

    def verify(self):
        """Reads the files of the store and the plain file into the page cache."""
        self.compare(self.store)
        timed(["cat", self.plain])

    def compare(self, store):
        """Checks that the mount has the bytes of the plain file."""
        with self.mounts.zarrfs(store):
            if subprocess.run(["cmp", self.mounts.at / "data.raw", self.plain]).returncode:
                raise Failed(f"{store.name}: the mount has other bytes than the plain file")

    @contextlib.contextmanager
    def file(self, column, *options, warm=False):
        """Yields the flat file of a column, just mounted, and the process id of its daemon. With `warm`, the file
        was read before, and the kernel caches the null file."""
        at = self.mounts.at / "data.raw"
        direct = ["--direct-io"] if "direct" in column else []
        if column == "plain":
            yield self.plain, None
            return
        if "null" in column:
            mount = self.mounts.null(self.size, *(["--keep-cache"] if warm else direct))
        else:
            mount = self.mounts.zarrfs(self.store, *direct, *options)
        with mount as pid:
            if warm:
                timed(["cat", at])
            yield at, pid

    def peer(self, library, operation, /, **arguments):
        python = self.setup.zarr2 if library == "zarr2" else self.setup.peers
        result = json_of([python, self.setup.peer_script, library, operation, self.setup.json(arguments)])
        if "error" in result:
            raise Failed(result["error"])
        return result

    def on_file(self, operation, path, **arguments):
        """Returns the seconds that NumPy takes for an operation on a flat file."""
        library = {"shape": self.shape, "dtype": self.array.dtype}
        return self.peer("file", operation, library=library, path=path, **arguments)["seconds"]

    def fresh(self, row, columns, function, warm=False):
        """Adds one value for each column. Each is measured on a new mount."""
        for column in self.samples.left(row, columns):
            with self.samples.noting_failure(row, column), self.file(column, warm=warm) as (path, _):
                self.samples.add(row, column, function(path))

    def cold(self):
        return [c for c in self.columns if c != "null-direct"]

    def cat(self):
        for column in self.columns:
            with self.file(column) as (path, pid):
                before = cpu_of(pid) if pid else 0
                seconds, cpu = timed(["cat", path])
                cpu += (cpu_of(pid) if pid else 0) - before
                self.samples.add("cat", column, seconds)
                self.samples.add("cpu", column, cpu)
                if column in ("zarrfs", "direct"):
                    self.samples.add("peak", column, peak_of(pid))
        decoded = json_of([self.setup.decode, self.store])
        self.samples.add("codec", "zarrfs", decoded["codec_seconds"])
        # the time to read the encoded bytes from the page cache once
        self.samples.add("copy", "zarrfs", decoded["store_seconds"])
        self.samples.add("codec", "numcodecs", self.peer("numcodecs", "decode", path=self.store)["seconds"])

    def dd(self):
        for column in self.columns:
            with self.file(column) as (path, pid):
                before = cpu_of(pid) if pid else 0
                seconds, cpu = timed(dd(path))
                self.samples.add("dd", column, seconds)
                self.samples.add("dd-cpu", column, cpu + (cpu_of(pid) if pid else 0) - before)

    def warm(self):
        self.fresh("warm", ["zarrfs", "null", "plain"], lambda path: timed(["cat", path])[0], warm=True)

    def random(self):
        """Measures so few reads that hardly any finds its page in the page cache."""
        self.fresh("random-1", self.columns, lambda path: fio(path, 1, *self.few(1)))
        self.fresh("random-4", self.columns, lambda path: fio(path, 4, *self.few(4)))

    def few(self, jobs):
        return [f"--number_ios={self.setup.cold_reads // jobs}", f"--runtime={2 * self.setup.fio_ms}ms"]

    def random_warm(self):
        columns, limits = ["zarrfs", "null", "plain"], ["--time_based", f"--runtime={self.setup.fio_ms}ms"]
        self.fresh("random-warm-1", columns, lambda path: fio(path, 1, *limits), warm=True)
        self.fresh("random-warm-4", columns, lambda path: fio(path, 4, *limits), warm=True)

    def latency(self):
        """Measures reads of 4 KiB from different chunks, which also differ from round to round."""
        reads = self.array.random_reads(self.setup.mib, self.setup.reads, seed=self.round)
        starts = [[start for start, _ in read] for read in reads]
        offsets = [sum(x * math.prod(self.shape[i + 1:]) for i, x in enumerate(s)) * self.array.itemsize
                   for s in starts]
        for column in self.cold():
            with self.file(column) as (path, _):
                result = self.peer("pread", "pread", path=path, offsets=offsets, size=READ)
                self.samples.add("latency", column, *result["seconds"])
        for library in self.samples.left("latency", PEERS):
            with self.samples.noting_failure("latency", library):
                result = self.peer(library, "latency", path=self.store, reads=reads)
                self.samples.add("latency", library, *result["seconds"])

    def plane(self):
        """Measures reading one plane: the middle of the second axis."""
        if len(self.shape) < 2:
            return
        y = self.shape[1] // 2
        selection = [[None, None], [y, y + 1], [None, None]]
        self.fresh("plane", self.cold(), lambda path: self.on_file("plane", path, selection=selection))
        for library in self.samples.left("plane", PEERS):
            with self.samples.noting_failure("plane", library):
                result = self.peer(library, "plane", path=self.store, selection=selection)
                self.samples.add("plane", library, result["seconds"])

    def sum(self):
        self.fresh("sum", self.cold(), lambda path: self.on_file("total", path))

    def parallel(self):
        mib = -(-self.size >> 20)
        part = -(-mib // READERS)
        self.fresh("parallel", self.cold(), lambda path: timed(
            *(dd(path, f"skip={part * i}", f"count={part}") for i in range(READERS)))[0])

    def crowd(self):
        """Measures processes that all read the first row of chunks at once: of one file, or decoding it themselves."""
        reads = {"readers": CROWD, "selection": [[0, self.array.chunks[0]], *[[None, None]] * (len(self.shape) - 1)]}
        for column in self.samples.left("crowd", ["zarrfs", "plain", "zarr3"]):
            with self.samples.noting_failure("crowd", column):
                if column == "zarr3":
                    seconds, cpu = self.peer("zarr3", "crowd", path=self.store, **reads)["seconds"]
                else:
                    library = {"shape": self.shape, "dtype": self.array.dtype}
                    with self.file(column) as (path, pid):
                        before = cpu_of(pid) if pid else 0
                        seconds, cpu = self.peer("file", "crowd", library=library, path=path, **reads)["seconds"]
                        cpu += (cpu_of(pid) if pid else 0) - before
                self.samples.add("crowd", column, seconds)
                self.samples.add("crowd-cpu", column, cpu)

    def memory(self):
        for library in self.samples.left("memory", PEERS):
            with self.samples.noting_failure("memory", library):
                result = self.peer(library, "memory", path=self.store)
                self.samples.add("memory", library, result["seconds"])
                self.samples.add("cpu", library, result["cpu"])
                self.samples.add("peak", library, result["peak"])

    def to_file(self):
        planes = max(self.array.chunks[0], self.setup.slab_bytes // (self.size // self.shape[0]))
        planes -= planes % self.array.chunks[0]
        for library in self.samples.left("file", PEERS):
            with self.samples.noting_failure("file", library):
                try:
                    result = self.peer(library, "file", path=self.store, out=self.out, planes=planes)
                    if self.round == 0 and subprocess.run(["cmp", self.out, self.plain]).returncode:
                        raise Failed("wrote other bytes")
                finally:
                    self.out.unlink(missing_ok=True)
                self.samples.add("file", library, result["seconds"])

    def peak(self):
        with self.file("zarrfs", "--cache-size", "128M") as (path, pid):
            timed(["cat", path])
            self.samples.add("peak", "zarrfs-128M", peak_of(pid))


def fio(path, jobs, *limits):
    """Returns the number of random reads of 4 KiB per second."""
    return fio_reads(path, jobs, *limits)["iops"]


def fio_reads(path, jobs, *limits):
    """Reads 4 KiB at random places in `jobs` threads. Returns what fio says of it."""
    result = json_of(["fio", "--name=random", f"--filename={path}", "--readonly", "--rw=randread", f"--bs={READ}",
                      "--ioengine=psync", "--thread", f"--numjobs={jobs}", "--group_reporting", "--norandommap",
                      "--invalidate=0", "--output-format=json", *limits])
    return result["jobs"][0]["read"]


def dd(path, *operands):
    return ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none", *operands]


def seconds_since(start):
    return time.perf_counter() - start


class StoreBench:
    """Measurements of stores with many arrays or chunks."""

    def __init__(self, setup, stores):
        self.setup, self.stores, self.mounts, self.samples = setup, stores, setup.mounts, Samples()

    def first_byte(self):
        for name, (store, file) in self.stores["first-byte"].items():
            start = time.perf_counter()
            with self.mounts.zarrfs(store):
                read_byte(self.mounts.at / file)
                self.samples.add("first-byte", name, seconds_since(start))
        start = time.perf_counter()
        with self.mounts.null(1 << 30):
            read_byte(self.mounts.at / "data.raw")
            self.samples.add("first-byte", "null file", seconds_since(start))

    def ls(self):
        store = self.stores["ls"]
        with self.mounts.zarrfs(store):
            self.samples.add("ls", "zarrfs", timed(["ls", "-l", self.mounts.at])[0])
        self.samples.add("ls", "plain", timed(["ls", "-l", store])[0])

    def stat(self):
        store, names = self.stores["stat"]
        with self.mounts.zarrfs(store):
            self.samples.add("stat", "zarrfs", stat_all(self.mounts.at, names, "data.raw"))
        self.samples.add("stat", "plain", stat_all(store, names, ".zarray"))


def read_byte(path):
    with open(path, "rb", buffering=0) as f:
        f.read(1)


def stat_all(directory, names, file):
    start = time.perf_counter()
    for name in names:
        os.stat(f"{directory}/{name}/{file}")
    return seconds_since(start)
