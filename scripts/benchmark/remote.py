"""The rows of stores that are not local directories: over a network with latency, in a zip file, in a bucket."""
import contextlib
import os
import pathlib
import subprocess
import urllib.request
import zipfile

from measure import StoreBench as NearStoreBench
from system import Failed, children_cpu, cpu_of, json_of, timed
from writing import WriteBench

LATENCY_MS = 20
# concurrent requests: as many as a mount sends
CONNECTIONS = 64
REMOTE_PEERS = ["zarr3", "zarr3-fused", "tensorstore"]


class RemoteServer:
    """Serves the directory of a store over a network with latency."""

    def __init__(self, program, directory):
        self.process = subprocess.Popen([program, directory, str(LATENCY_MS)], stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline().split()
        if said[:1] != ["ready"]:
            raise Failed("the remote server can't be started")
        self.port = int(said[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def requests(self):
        """Returns the number of requests so far."""
        with urllib.request.urlopen(f"{self.url}/.requests") as answer:
            return int(answer.read())

    def end(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def remote_server(program, directory):
    server = RemoteServer(program, directory)
    try:
        yield server
    finally:
        server.end()


class RemoteBench(WriteBench):
    """All measurements of one array."""

    def remote(self):
        """Measures a cold cat of the array over the network, the network alone, and libraries reading into memory."""
        chunks = self.array.chunk_count(self.setup.mib)
        with self.served() as server:
            command = [self.setup.remote_client, self.store, server.port, self.store.name, CONNECTIONS]
            before = children_cpu()
            self.samples.add("remote", "link", json_of(command)["seconds"])
            self.samples.add("remote-cpu", "link", children_cpu() - before + cpu_of(server.process.pid))
        with self.served() as server, self.mounts.zarrfs(f"{server.url}/{self.store.name}") as pid:
            before = cpu_of(pid)
            seconds, cpu = timed(["cat", self.mounts.at / "data.raw"])
            self.samples.add("remote", "zarrfs", seconds)
            self.samples.add("remote-cpu", "zarrfs", cpu + cpu_of(pid) - before)
            self.samples.add("remote-requests", "zarrfs", server.requests() / chunks)
            self.check_bytes()
        for library in self.samples.left("remote", REMOTE_PEERS):
            with self.samples.noting_failure("remote", library), self.served() as server:
                url = f"{server.url}/{self.store.name}"
                result = self.peer(library, "memory", path=url, library={"requests": CONNECTIONS})
                self.samples.add("remote", library, result["seconds"])
                self.samples.add("remote-requests", library, server.requests() / chunks)
        self.remote_limits()

    def served(self):
        return remote_server(self.setup.remote_server, self.store.parent)

    def check_bytes(self):
        """Checks that the last read, which the kernel has cached, equals the plain file."""
        if self.round == 0 and subprocess.run(["cmp", self.mounts.at / "data.raw", self.plain]).returncode:
            raise Failed(f"{self.store.name}: over a network or in a zip file the mount has other bytes")

    def remote_limits(self):
        """Measures the limits of the machine without a network: the null file, and decoding."""
        with self.file("null") as (path, pid):
            before = cpu_of(pid)
            seconds, cpu = timed(["cat", path])
            self.samples.add("remote-null", "null", seconds)
            self.samples.add("remote-cpu", "null", cpu + cpu_of(pid) - before)
        self.samples.add("remote-codec", "zarrfs", json_of([self.setup.decode, self.store])["codec_seconds"])

    def zip(self):
        """Measures a cold cat of the array in a zip file with stored members, and in a directory."""
        archive = self.setup.directory / f"{self.array.name}.zip"
        if self.round == 0:
            make_zip(self.store, archive)
        columns = [("zarrfs", archive), ("directory", self.store)]
        # in alternating order
        for column, store in columns[::-1] if self.round % 2 else columns:
            with self.mounts.zarrfs(store):
                self.samples.add("zip", column, timed(["cat", self.mounts.at / "data.raw"])[0])
                if column == "zarrfs":
                    self.check_bytes()


def make_zip(store, archive):
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as out:
        for file in sorted(store.iterdir()):
            if file.name != ".made":
                out.write(file, file.name)
    part.rename(archive)


class StoreBench(NearStoreBench):
    """Measurements of stores with many arrays or chunks."""

    def ls_s3(self):
        """Counts listings and other requests of `ls -l` for an array of many chunks in a bucket."""
        if self.round > 0:
            return  # counts do not vary, and moto is slow
        with bucket(self.setup.servers, self.setup.listed) as (process, endpoint, url):
            with self.mounts.zarrfs(url, "--endpoint-url", endpoint):
                before, asked = listings_of(process), self.mounts.counters()["requests"]
                seconds, _ = timed(["ls", "-l", self.mounts.at])
                listings, requests = listings_of(process) - before, self.mounts.counters()["requests"] - asked
        self.samples.add("ls-s3", "zarrfs", seconds)
        self.samples.add("ls-s3-listings", "zarrfs", listings)
        self.samples.add("ls-s3-others", "zarrfs", requests - listings)


@contextlib.contextmanager
def bucket(python, chunks):
    """Yields the process that serves a bucket with an array of `chunks` chunks, its endpoint and its URL."""
    # moto requires credentials, but accepts any
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_DEFAULT_REGION="us-east-1")
    command = [python, pathlib.Path(__file__).with_name("bucket.py"), str(chunks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline().split()
            if said[:1] != ["ready"]:
                raise Failed("moto can't be started")
            yield process, *said[1:]
        finally:
            process.kill()


def listings_of(process):
    print(file=process.stdin, flush=True)
    return int(process.stdout.readline())
