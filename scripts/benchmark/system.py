"""Processes and mounts. None of them remains after a run."""
import atexit
import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import time


class Failed(Exception):
    """A measurement that could not be made."""


def end_with_exception():
    """Makes SIGTERM and SIGHUP raise an exception, as Ctrl-C does, so that mounts are removed."""
    def leave(number, _):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


@contextlib.contextmanager
def processes(commands):
    """Starts commands, whose output is discarded, and yields their processes. Kills those that still run at the end."""
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        yield running
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                process.wait()


def timed(*commands):
    """Runs commands concurrently; returns the seconds until the last one ends, and their CPU seconds."""
    start, cpu = time.perf_counter(), 0.0
    with processes(commands) as running:
        for process in running:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
            if process.returncode:
                raise Failed(f"{process.args[0]} failed")
    return time.perf_counter() - start, cpu


def json_of(command):
    """Returns the output of a command, parsed as JSON."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])
    return json.loads(done.stdout[done.stdout.index("{"):])


def cpu_of(pid):
    """Returns the CPU seconds of a process so far, with those of threads that have ended."""
    # the clock that clock_getcpuclockid(3) returns
    return time.clock_gettime(~pid << 3 | 2)


def children_cpu():
    """Returns the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bytes_read_by(pid):
    """Returns the bytes that a process has read from files so far, and not from sockets."""
    return int(pathlib.Path(f"/proc/{pid}/io").read_text().split("rchar:")[1].split()[0])


def peak_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def mounted(path):
    # mountinfo writes blanks in octal
    name = str(path).replace(" ", "\\040")
    return any(line.split()[4] == name for line in open("/proc/self/mountinfo"))


def detach(path):
    """Removes a mount in any state."""
    if not mounted(path):
        return
    for command in (["umount", "-l", path], ["fusermount3", "-uz", path]):
        with contextlib.suppress(OSError):
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
                return


class Mounts:
    """One mount at a time, always at the same path."""

    def __init__(self, programs, directory, name="mnt"):
        self.zarrfs_program = programs / "zarrfs"
        self.null_program = programs / "examples" / "null_file"
        self.at = (directory / name).resolve()
        detach(self.at)
        self.at.mkdir(exist_ok=True)
        atexit.register(detach, self.at)
        text = subprocess.run([self.zarrfs_program, "mount", "--help"], stdout=subprocess.PIPE, text=True, check=True)
        self.has_direct_io = "--direct-io" in text.stdout

    @contextlib.contextmanager
    def zarrfs(self, store, *options):
        """Yields the process id of the daemon."""
        pid = None
        try:
            if subprocess.run([self.zarrfs_program, "mount", *options, store, self.at]).returncode:
                raise Failed(f"zarrfs can't mount {store}")
            pid = self.counters()["pid"]
            yield pid
        finally:
            if subprocess.run([self.zarrfs_program, "umount", self.at], stderr=subprocess.DEVNULL).returncode:
                detach(self.at)
                with contextlib.suppress(OSError, TypeError):
                    os.kill(pid, signal.SIGKILL)

    def counters(self):
        """Returns the counters of the mounted zarrfs."""
        return json.loads((self.at / ".zarrfs" / "stats.json").read_text())

    @contextlib.contextmanager
    def null(self, size, *options):
        """Yields the process id of the daemon."""
        command = [self.null_program, self.at, str(size), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
            try:
                if daemon.stdout.readline() != "ready\n":
                    raise Failed("the null file can't be mounted")
                self.set_readahead()
                yield daemon.pid
            finally:
                daemon.terminate()
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                detach(self.at)

    def set_readahead(self):
        """Gives the mount the read-ahead that zarrfs chooses where it may."""
        device = os.stat(self.at).st_dev
        with contextlib.suppress(PermissionError):
            setting = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            setting.write_text("256")


class LoopDisk:
    """A new file system in a file, mounted through a loop device. Needs root."""

    def __init__(self, kind, directory, mib):
        self.kind, self.image, self.at = kind, directory / f"{kind}.image", directory / kind
        self.mib = mib

    def __enter__(self):
        atexit.register(self.remove)
        self.remove()
        self.at.mkdir()
        # written, since the first user of a sparse file would pay for its blocks
        with open(self.image, "wb") as f:
            for _ in range(self.mib):
                f.write(bytes(1 << 20))
            os.fsync(f.fileno())
        quiet = {"ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard"], "xfs": ["mkfs.xfs", "-q", "-f", "-K"]}[self.kind]
        for command in ([*quiet, self.image], ["mount", "-o", "loop", self.image, self.at]):
            if subprocess.run(command).returncode:
                raise Failed(f"{command[0]} failed")
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        if mounted(self.at):
            subprocess.run(["umount", self.at], check=False)
        with contextlib.suppress(OSError):
            self.at.rmdir()
        self.image.unlink(missing_ok=True)

    def commits(self):
        """Returns the number of commits of the journal so far; `None` where the kernel does not count them."""
        device = next((line.split()[0] for line in open("/proc/self/mounts") if line.split()[1] == str(self.at)), "")
        for info in pathlib.Path("/proc/fs/jbd2").glob(f"{pathlib.Path(device).name}-*/info"):
            return int(info.read_text().split()[0])
        return None


def file_system_of(directory):
    """Returns the type of the file system of a directory, as stat(1) names it."""
    said = subprocess.run(["stat", "--file-system", "--format=%T", directory], stdout=subprocess.PIPE, text=True)
    return said.stdout.strip()


def machine():
    def first(path, name):
        lines = pathlib.Path(path).read_text().splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")
    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(first("/proc/meminfo", "MemTotal").split()[0]) << 10,
        "kernel": os.uname().release,
    }


def versions(zarrfs, zarr2, peers, servers, root):
    """Returns the versions of zarrfs, the libraries and the tools."""
    ask = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"

    def of(python, *names):
        return json_of([python, "-c", ask, *names])

    def say(*command):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    return {
        "zarrfs": say(zarrfs, "--version").removeprefix("zarrfs "),
        "commit": say("git", "-C", root, "describe", "--always", "--dirty"),
        "zarr2": of(zarr2, "zarr", "numcodecs"),
        "peers": of(peers, "zarr", "zarrs", "tensorstore", "numcodecs", "numpy", "fsspec", "aiohttp"),
        "servers": of(servers, "moto"),
        "fio": say("fio", "--version"),
    }
