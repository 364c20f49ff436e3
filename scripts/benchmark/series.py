"""The row `series`: one item of each step of an array whose chunks hold one step each, as in maps over time."""
import contextlib
import random

from arrays import READ
from measure import PEERS
from remote import CONNECTIONS, REMOTE_PEERS, RemoteBench
from system import Failed, peak_of

# points of each pass; all passes of a column share one mount, or one opened array
PASSES = (1, 3)


class SeriesBench(RemoteBench):
    """Measurements of one array, whose decoded size is four times the limit of the cache of zarrfs."""

    def series(self):
        for place, peers in (("local", PEERS), ("remote", REMOTE_PEERS)):
            with self.opened(place) as (store, options), self.mounts.zarrfs(store, *self.cache()) as pid:
                library = {"shape": self.shape, "dtype": self.array.dtype}
                self.add(place, "zarrfs", self.peer("items", "series", path=self.mounts.at / "data.raw", daemon=pid,
                                                    points=self.points(), library=library, **options))
                self.samples.add(f"{place} peak", "zarrfs", peak_of(pid))
                if place == "local":
                    self.samples.add("4 KiB", "zarrfs", *self.random_reads())
            settings, row = {"requests": CONNECTIONS} if place == "remote" else {}, f"{place} pass 1 seconds"
            for library in self.samples.left(row, peers):
                with self.samples.noting_failure(row, library), self.opened(place) as (store, options):
                    result = self.peer(library, "series", path=store, points=self.points(), library=settings, **options)
                    self.add(place, library, result)
                    self.samples.add(f"{place} peak", library, result["peak"])

    def cache(self):
        return ["--cache-size", f"{max(1, self.size >> 22)}M"]

    @contextlib.contextmanager
    def opened(self, place):
        """Yields the store and, of a remote one, the process whose bytes are counted."""
        if place == "local":
            yield self.store, {}
            return
        with self.served() as server:
            yield f"{server.url}/{self.store.name}", {"server": server.process.pid}

    def points(self):
        """Returns points of all passes, so far apart that a page that the kernel reads ahead has only one of them."""
        pick, count = random.Random(self.round), sum(PASSES)
        height, width = self.array.plane
        band = height // count
        return [[y * band + pick.randrange(band // 2), pick.randrange(width)] for y in pick.sample(range(count), count)]

    def random_reads(self):
        pick = random.Random(self.round)
        offsets = [pick.randrange(self.size // READ) * READ for _ in range(self.setup.random_reads)]
        return self.peer("pread", "pread", path=self.mounts.at / "data.raw", offsets=offsets, size=READ)["seconds"]

    def add(self, place, column, result):
        import numpy as np
        plain = np.memmap(self.plain, self.array.dtype, "r", shape=self.shape)
        for i, (point, (y, x)) in enumerate(zip(result["seconds"], self.points(), strict=True)):
            if bytes.fromhex(point.pop("values")) != plain[:, y, x].tobytes():
                raise Failed(f"{column} returned other values than the plain file has")
            for name, value in point.items():
                self.samples.add(f"{place} pass {1 if i < PASSES[0] else 2} {name}", column, value)
