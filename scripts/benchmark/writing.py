"""The rows of writing: each method measures one row of the tables. Each value is measured on a new copy of the array.
The file system is synced before the clock starts."""
import contextlib
import os
import random
import shutil

from arrays import READ
from measure import PEERS, ArrayBench
from system import Failed, LoopDisk, cpu_of, json_of, peak_of, timed

COLUMNS = ["zarrfs", "null", "plain"]
STRETCH = 64 << 10  # bytes; random writes change one page of each stretch
WORKING_SET = 256 << 20  # bytes that random writes touch: half of the default cache


class WriteBench(ArrayBench):
    """All measurements of one array."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.copy, self.files = self.setup.directory / "written.zarr", self.setup.directory / "written"
        self.flat = self.mounts.at / "data.raw"

    @contextlib.contextmanager
    def copied(self, full):
        """Creates a copy of the array, without chunks or, if `full`, with all of them."""
        with empty_directory(self.copy):
            for file in self.store.iterdir() if full else [self.store / ".zarray"]:
                shutil.copy(file, self.copy)
            os.sync()
            yield

    @contextlib.contextmanager
    def copied_plain(self, full):
        """Yields the path of a plain file, which is missing or, if `full`, has all its bytes."""
        try:
            if full:
                shutil.copyfile(self.plain, self.out)
            os.sync()
            yield self.out
        finally:
            self.out.unlink(missing_ok=True)

    @contextlib.contextmanager
    def target(self, column, full, *options, check=False):
        """Yields the flat file of a column and the process id of its daemon. With `check`, compares the store with the
        plain file at the end."""
        if column == "plain":
            with self.copied_plain(full) as path:
                yield path, None
        elif column == "null":
            os.sync()
            with self.mounts.null(self.size) as pid:
                yield self.flat, pid
        else:
            with self.copied(full):
                with self.mounts.zarrfs(self.copy, *options) as pid:
                    yield self.flat, pid
                if check and self.round == 0:
                    self.compare(self.copy)

    def write(self):
        self.write_whole("write", full=False)
        with empty_directory(self.files):
            os.sync()
            made = json_of([self.setup.encode, self.store, self.files, self.setup.write_threads])
        self.samples.add("encode", "zarrfs", made["codec_seconds"])
        self.samples.add("encode", "numcodecs", self.peer("numcodecs", "encode", path=self.store)["seconds"])
        self.samples.add("write-files", "plain", made["write_seconds"])

    def overwrite(self):
        self.write_whole("overwrite", full=True)

    def write_whole(self, row, full):
        for column in COLUMNS:
            with self.target(column, full, check=True) as (path, pid):
                before = cpu_of(pid) if pid else 0
                seconds, cpu = timed(self.dd_into(path))
                self.samples.add(row, column, seconds)
                self.samples.add(f"{row}-cpu", column, cpu + (cpu_of(pid) if pid else 0) - before)
                if column == "zarrfs":
                    self.samples.add("write-peak", column, peak_of(pid))
                    done = self.mounts.counters()
                    self.samples.add(f"{row}-decodes", column, done["chunk_decodes"] + done["block_decodes"])
                    self.add_stored(f"{row}-stored", self.array.chunk_count(self.setup.mib))

    def dd_into(self, path):
        return ["dd", f"if={self.plain}", f"of={path}", "bs=1M", "conv=fsync,notrunc", "status=none"]

    def write_peak(self):
        with self.target("zarrfs", False, "--cache-size", "128M", check=True) as (path, pid):
            timed(self.dd_into(path))
            self.samples.add("write-peak", "zarrfs-128M", peak_of(pid))

    def store_all(self):
        """Measures the libraries writing from memory: until they return, and until all data is on disk."""
        for library in self.samples.left("store", PEERS):
            with self.samples.noting_failure("store", library), self.copied(full=False):
                seconds, synced = self.peer(library, "store", path=self.copy, plain=self.plain)["seconds"]
                if self.round == 0:
                    self.compare(self.copy)
                self.samples.add("store", library, seconds)
                self.samples.add("store-synced", library, synced)

    def journaled(self):
        """Measures dd and the libraries on file systems with a journal, each created in a new file. Needs root."""
        if os.geteuid():
            return
        for kind in ("ext4", "xfs"):
            disk = LoopDisk(kind, self.setup.directory.resolve(), 2 * (self.size >> 20) + 512)
            row = f"write-{kind}"
            with self.samples.noting_failure(row, "zarrfs"), disk:
                before, self.copy = self.copy, disk.at / "written.zarr"
                try:
                    with self.target("zarrfs", False) as (path, _):
                        commits = disk.commits()
                        self.samples.add(row, "zarrfs", timed(self.dd_into(path))[0])
                        if commits is not None:
                            self.samples.add(f"{row}-commits", "zarrfs", disk.commits() - commits)
                    for library in self.samples.left(row, PEERS):
                        with self.samples.noting_failure(row, library), self.copied(full=False):
                            _, synced = self.peer(library, "store", path=self.copy, plain=self.plain)["seconds"]
                            self.samples.add(row, library, synced)
                finally:
                    self.copy = before

    def update(self):
        with self.target("zarrfs", True) as (path, _), empty_directory(self.files):
            seed = random.Random(self.round).getrandbits(63)
            took = json_of([self.setup.update, self.store, path, self.files, self.setup.updates, seed])
        self.samples.add("update", "zarrfs", *took.pop("mount"))
        self.samples.add("update", "plain", *map(sum, zip(*took.values(), strict=True)))
        for part, values in took.items():
            self.samples.add("update-parts", part, *values)

    def random_write(self):
        """Writes one page of each stretch, in random order, then calls fsync once."""
        pick = random.Random(self.round)
        offsets = [start + pick.randrange(0, STRETCH, READ)
                   for start in range(0, min(self.size, WORKING_SET) - STRETCH + 1, STRETCH)]
        pick.shuffle(offsets)
        for column in COLUMNS:
            with self.target(column, full=True) as (path, _):
                seconds = self.peer("pwrite", "pwrite", path=path, offsets=offsets, size=READ)["seconds"]
                self.samples.add("random-write", column, len(offsets) / seconds)
                if column == "zarrfs":
                    self.add_stored("random-write-stored", self.array.chunks_touched(self.setup.mib, offsets))

    def add_stored(self, row, written):
        """Adds the number of times that the mount stored each written chunk, on average."""
        stored = self.mounts.counters()["chunks_stored"]
        if stored < written:
            raise Failed(f"{self.array.name}: {stored} chunks were stored of {written} that were written")
        self.samples.add(row, "zarrfs", stored / written)


@contextlib.contextmanager
def empty_directory(path):
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir()
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def check_disk(directory, file_system):
    if file_system in ("tmpfs", "ramfs"):
        raise Failed(f"{directory} is in memory: writing is measured on a disk; --only can name other rows")
