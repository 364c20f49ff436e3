"""The rows of growth: what more arrays, chunks, readers and mounts cost."""
import contextlib
import time

from arrays import ARRAYS, READ, make
from measure import Samples, fio_reads, read_byte, seconds_since
from stores import ROWS, made_arrays, made_grid, names
from system import Mounts, children_cpu, cpu_of, peak_of, timed

SIZES = {"grow-arrays": [10, 100, 1_000, 10_000, 100_000],
         "grow-chunks": [1_000, 10_000, 100_000, 1_000_000, 10_000_000],
         "grow-readers": [1, 4, 16, 64], "grow-mounts": [1, 4, 16]}
ALL_STORED = 100_000  # the largest grid of which also all chunks are stored


class GrowthBench:
    """Measures the same at several sizes. A column is named by what is measured and the size."""

    def __init__(self, setup, directory, quick):
        self.setup, self.mounts, self.samples, self.directory = setup, setup.mounts, Samples(), directory
        self.sizes = {row: sizes[:3] if quick else sizes for row, sizes in SIZES.items()}
        self.round = 0

    def arrays(self):
        for count in self.sizes["grow-arrays"]:
            store = made_arrays(self.directory, count)
            self.read_into_page_cache(store)
            self.add("grow-arrays, ls -l", "plain", count, timed(["ls", "-l", store])[0])
            with self.first_byte("grow-arrays", "zarrfs", count, store, f"{names(count)[-1]}/data.raw") as pid:
                self.add("grow-arrays, ls -l", "zarrfs", count, timed(["ls", "-l", self.mounts.at])[0])
                self.add("grow-arrays, peak memory", "zarrfs", count, peak_of(pid))

    def chunks(self):
        for count in self.sizes["grow-chunks"]:
            self.grid(count, 1, f"{ROWS} stored")
            if count <= ALL_STORED:
                self.grid(count, count // ROWS, "all stored")

    def grid(self, count, stored, kind):
        store = made_grid(self.directory, count // ROWS, stored)
        self.read_into_page_cache(store)
        zarrfs, plain = f"zarrfs, {kind}", f"plain, {kind}"
        with self.first_byte("grow-chunks", zarrfs, count, store, "data.raw") as pid:
            self.add("grow-chunks, ls -l", zarrfs, count, timed(["ls", "-l", self.mounts.at])[0])
            self.add("grow-chunks, peak memory", zarrfs, count, peak_of(pid))
        # in a new mount, since the kernel keeps the attributes that ls asked for
        with self.mounts.zarrfs(store):
            self.add("grow-chunks, du", zarrfs, count, timed(["du", "-s", self.mounts.at])[0])
        self.add("grow-chunks, ls -l", plain, count, timed(["ls", "-lR", store])[0])
        self.add("grow-chunks, du", plain, count, timed(["du", "-s", store])[0])

    def readers(self):
        """Measures random reads of an array that is four times as large as the cache: as many for any number of
        readers, and so few that hardly any finds its page in the page cache."""
        store, _ = make(ARRAYS[0], self.setup.mib, self.setup.directory)
        for count in self.sizes["grow-readers"]:
            with self.mounts.zarrfs(store, "--cache-size", f"{max(1, self.setup.mib // 4)}M") as pid:
                before, daemon = children_cpu(), cpu_of(pid)
                done = fio_reads(self.mounts.at / "data.raw", count, f"--number_ios={self.setup.cold_reads // count}")
                daemon = cpu_of(pid) - daemon
                reads = done["io_bytes"] // READ
            self.add("grow-readers, reads", "zarrfs", count, done["iops"])
            self.add("grow-readers, CPU of a read", "zarrfs", count, (children_cpu() - before + daemon) / reads)
            self.add("grow-readers, CPU of the daemon for a read", "zarrfs", count, daemon / reads)

    def many_mounts(self):
        """Measures mounts of one store, made one after the other."""
        store, _ = make(ARRAYS[0], self.setup.mib, self.setup.directory)
        for count in self.sizes["grow-mounts"]:
            mounts = [Mounts(self.setup.programs, self.directory, f"mnt-{i}") for i in range(count)]
            with contextlib.ExitStack() as stack:
                start = time.perf_counter()
                pids = [stack.enter_context(m.zarrfs(store)) for m in mounts]
                self.add("grow-mounts, mount", "zarrfs", count, seconds_since(start))
                start = time.perf_counter()
                for m in mounts:
                    read_byte(m.at / "data.raw")
                self.add("grow-mounts, first byte", "zarrfs", count, seconds_since(start))
                self.add("grow-mounts, peak memory", "zarrfs", count, sum(map(peak_of, pids)))
            for m in mounts:
                m.at.rmdir()

    @contextlib.contextmanager
    def first_byte(self, row, column, count, store, file):
        """Measures the time from the mount command to the first byte of a file. Yields the process id of the daemon."""
        start = time.perf_counter()
        with self.mounts.zarrfs(store) as pid:
            read_byte(self.mounts.at / file)
            self.add(f"{row}, first byte", column, count, seconds_since(start))
            yield pid

    def add(self, row, column, count, value):
        self.samples.add(row, f"{column}, {count}", value)

    @staticmethod
    def read_into_page_cache(store):
        timed(["find", store, "-type", "f", "-exec", "cat", "{}", "+"])


GROWTH_ROWS = {"grow-arrays": GrowthBench.arrays, "grow-chunks": GrowthBench.chunks,
               "grow-readers": GrowthBench.readers, "grow-mounts": GrowthBench.many_mounts}
