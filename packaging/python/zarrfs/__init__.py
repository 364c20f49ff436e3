"""Zarr stores as plain files, in Python.

    import zarrfs

    with zarrfs.mount("s3://bucket/climate.zarr", containers=["h5"]) as path:
        ...                                     # any library opens path + "/dataset.h5"
    zarrfs.run("climate.zarr", ["cdo", "sinfo", "{}/dataset.nc"], containers="nc")
    a = zarrfs.array("climate.zarr/tas")        # a numpy.memmap

The module starts the program zarrfs that is installed with it, and needs no other package; numpy is imported by
`array` alone. Keywords are the options of the command line: `cache_size="512M"` is `--cache-size=512M`, `read_only=True`
is `--read-only`, and a list gives an option several values. Everything that fails raises `Error`.

A mount ends with its block, and with this process, however that ends: the daemon has a pipe whose other end only this
process holds.
"""

import ast
import atexit
import ctypes
import errno
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
import warnings
import weakref
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type, Union

if TYPE_CHECKING:
    import numpy

__all__ = ["Error", "Mount", "array", "mount", "run"]

Path = Union[str, "os.PathLike[str]"]

# Options whose values are one list; of others each value repeats the option.
_LISTS = ("containers", "headers", "ingest", "views")

# Options that would keep the program from mounting, or from returning once it has.
_REFUSED = ("foreground", "help")

# msync(2), which stores what was written to a map.
_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_SYNC = 4

# The beginning of a line with an error.
_ERROR = "\nerror: "

# Time in seconds in which the end of the pipe detaches a mount that is in use.
_DETACH_LIMIT = 10.0

# Time in seconds for the last lines of a program that has ended, if a process that it started still has its standard error.
_LINES_LIMIT = 2.0


class Error(Exception):
    """A failure of zarrfs.

    `exit_code` is the exit code of the command line: 1 an error of the system or of the data, 2 a wrong option, 3 no such
    store or array, 4 not a Zarr store, 5 the mountpoint, 6 no FUSE, 7 a mount without a daemon. `message` is what the
    command line says, and `hint` the part of it that says what to do, or None.
    """

    def __init__(self, exit_code: int, message: str, hint: Optional[str] = None) -> None:
        super().__init__(exit_code, message, hint)
        self.exit_code = exit_code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class Mount:
    """A mounted store: a context manager whose value is the path of the mount.

    `path` is the mountpoint. A mount that is not used as a context manager ends with `close`, or with this process.
    """

    path: str

    def __init__(self, store: Path, mountpoint: Optional[Path] = None, **options: object) -> None:
        """Mounts a store as `mount` does."""
        words = [_program(), "mount", "--until-eof"]
        if mountpoint is None:
            mountpoint = os.path.join(tempfile.gettempdir(), "zarrfs-" + uuid.uuid4().hex)
            words.append("--auto-mountpoint")
        self.path = os.path.realpath(os.fspath(mountpoint))
        self._may_end = bool(options.get("idle_timeout"))
        self._process = os.getpid()
        self._closing = threading.RLock()
        # stays empty if `idle_timeout` ends the mount at once
        self._device = ""
        words += _words(options) + ["--", os.fspath(store), self.path]
        # a fork at this moment would have the pipe in the child, too
        with _fork_lock:
            theirs, self._pipe = os.pipe()
            _open[self._pipe] = self
        try:
            try:
                _call(words, theirs)
            finally:
                os.close(theirs)
            self._device = (_devices(self.path) or [""])[-1]
        except BaseException:
            self._drop()
            raise

    def __enter__(self) -> str:
        return self.path

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        error = self._end()
        if error is None:
            return
        if isinstance(raised, Exception):
            # the exception of the block goes on, and its traceback begins with this one
            _add_context(raised, Error(error.exit_code, error.message, error.hint))
            return
        # the interpreter prints neither SystemExit nor GeneratorExit
        raise error from raised

    def close(self) -> None:
        """Stores everything that was written, and unmounts.

        Raises `Error` if something could not be stored, or if that can't be known. What could not be stored stays in the
        mount, which then stays as long as this process: close it again once the cause has gone. A mount with open files
        or maps is detached: its path is gone, and it ends with the last of them. In a process that a fork has made this
        does nothing.
        """
        error = self._end()
        if error is not None:
            raise error

    def _end(self) -> Optional[Error]:
        """Ends the mount. Returns why it could not."""
        # a process that a fork has made leaves the mount to its parent
        if os.getpid() != self._process:
            return None
        with self._closing:
            if self._pipe < 0:
                return None
            error = self._sync_maps()
            if error is not None:
                return error
            try:
                self._unstored()
            except OSError as e:
                return self._end_lost(e)
            try:
                _call([_program(), "umount", "--", self.path])
            except Error as error:
                if self._is_there() and not self._is_stored():
                    return error
                if not self._is_there():
                    # it is unmounted, and its daemon may still store
                    self._drop()
                    return error
            self._drop()
            # with open files it ends a little later
            end = time.monotonic() + _DETACH_LIMIT
            while self._is_there() and time.monotonic() < end:
                time.sleep(0.002)
            return None

    def _end_lost(self, e: OSError) -> Optional[Error]:
        """Ends a mount that does not answer, or is not there."""
        was_there = self._is_there()
        try:
            _call([_program(), "umount", "--", self.path])
        except Error:
            pass
        self._drop()
        if self._may_end and not was_there:
            return None
        return Error(1, "{}: can't know whether everything is stored: {}".format(self.path, e.strerror))

    def _unstored(self) -> bytes:
        """Stores everything. Returns the names of chunks that could not be stored."""
        with open(os.path.join(self.path, ".zarrfs", "sync"), "rb") as control:
            return control.read()

    def _is_stored(self) -> bool:
        try:
            return not self._unstored()
        except OSError:
            return False

    def _is_there(self) -> bool:
        """Returns whether the mount has its path, also if its daemon has ended."""
        return self._device in _devices(self.path)

    def _sync_maps(self) -> Optional[Error]:
        """Stores what this process has written to shared maps, which the daemon has not seen yet."""
        failure = None
        for path, begin, end in list(_written_maps(self.path)):
            # the file may have lost its name
            if _LIBC.msync(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(_MS_SYNC)) != 0:
                code = ctypes.get_errno()
                # another thread has ended the map, which stores it
                if code != errno.ENOMEM:
                    # the kernel takes its pages for stored from now on
                    hint = "write its items again, and close again"
                    why = "{}: a map could not be stored: {}; {}".format(path, os.strerror(code), hint)
                    failure = Error(1, why, hint)
        return failure

    def _drop(self) -> None:
        """Closes the pipe: the daemon stores everything, and unmounts what is still mounted."""
        with _fork_lock:
            if self._pipe >= 0 and _open.pop(self._pipe, None) is self:
                os.close(self._pipe)
            self._pipe = -1


# The mounts of this process, by the ends of their pipes.
_open: Dict[int, Mount] = {}

# Held while a pipe is made or closed, and during a fork.
_fork_lock = threading.RLock()


def _leave_to_parent() -> None:
    """Closes the pipes in a child process, which would keep the mounts of its parent."""
    for pipe in _open:
        os.close(pipe)
    _open.clear()
    _fork_lock.release()


# Python 3.6, where only the program works, has no such function
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_leave_to_parent
    )


@atexit.register
def _close_all() -> None:
    """Stores and unmounts at the end of the interpreter, and says what could not be stored."""
    for mounted in list(_open.values()):
        error = mounted._end()
        if error is not None and sys.stderr:
            print("error: {}".format(error), file=sys.stderr)


def mount(store: Path, mountpoint: Optional[Path] = None, **options: object) -> Mount:
    """Mounts a store: a directory, an archive or a URL.

    The value of `with zarrfs.mount(store) as path:` is the path of the mount, which by default is a new directory among the
    temporary ones. When the block ends everything is stored, and the mount is gone. If something could not be stored, that
    raises `Error`; an exception of the block goes on, with that `Error` in its context.

    Keywords are the options of `zarrfs mount`.
    """
    return Mount(store, mountpoint, **options)


def run(
    store: Path,
    command: Sequence[Path],
    *,
    check: bool = True,
    capture_output: bool = False,
    **options: object
) -> "subprocess.CompletedProcess[bytes]":
    """Runs a command with a mount that it alone sees, without privileges, and stores everything that it has written.

    `{}` in a word of the command stands for the mountpoint, and so does ZARRFS_MOUNT in its environment. The command gets
    the standard input and output of this process; its standard error passes through this process. `capture_output=True`
    returns both as bytes. Raises `Error` if zarrfs fails, or if the command does; with `check=False` the exit code is in
    the result, as after `subprocess.run`.

    Keywords are the options of `zarrfs run`.
    """
    name = os.fspath(store)
    # a name that begins with a dash is no option
    words = [_program(), "run"] + _words(options) + [os.path.join(".", name) if name.startswith("-") else name, "--"]
    words += [os.fspath(word) for word in command]
    out = subprocess.PIPE if capture_output else None
    try:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE)
    except (OSError, ValueError) as e:
        raise Error(1, "{}: {}".format(words[0], e)) from e
    with process:
        said = _Lines(process.stderr, is_shown=not capture_output)
        try:
            printed = process.stdout.read() if process.stdout else None
            code = process.wait()
        except BaseException:
            # zarrfs passes the signal on, and stores everything
            process.terminate()
            process.wait()
            raise
        finally:
            said.join(_LINES_LIMIT)
            # the thread closes it
            process.stderr = None
    if code and check:
        raise _error(code, said.text(), os.fspath(command[0]) if command else "")
    return subprocess.CompletedProcess(words, code, printed, said.captured())


def array(store: Path, mode: str = "r", **options: object) -> "numpy.memmap[Any, Any]":
    """Maps an array into memory: `store` is its path or URL, as `climate.zarr/tas`.

    Chunks are loaded when items of them are used. With the mode `r+` items can be changed: `flush()` returns when they are
    stored, and raises OSError otherwise. The array is mounted as long as the map or a view of it exists; what was not
    flushed by then is stored at that time, also if this process is killed.

    Keywords are the options of `zarrfs mount`.
    """
    import numpy

    if mode not in ("r", "r+"):
        raise Error(2, "mode {!r}: neither 'r' nor 'r+'".format(mode))
    options.setdefault("headers", "npy")
    if mode == "r":
        options.setdefault("read_only", True)
    mounted = Mount(store, None, **options)
    try:
        try:
            # numpy.load would read the first chunks for the header, and open the file a second time
            with open(os.path.join(mounted.path, "data.npy"), mode + "b", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                form, start = _header(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NORMAL)
                layout: Dict[str, Any] = {
                    "dtype": numpy.lib.format.descr_to_dtype(form["descr"]),
                    "shape": form["shape"],
                    "order": "F" if form["fortran_order"] else "C",
                    "offset": start,
                    "filename": file,
                    "mode": mode,
                }
                mapped: "numpy.memmap[Any, Any]" = numpy.memmap(**layout)
        except FileNotFoundError:
            if not mounted._is_there():
                raise Error(1, "{}: the mount has ended".format(os.fspath(store))) from None
            is_array = os.path.exists(os.path.join(mounted.path, "data.raw"))
            why = "its items are no numpy dtype" if is_array else "not an array; name one in it"
            raise Error(1 if is_array else 3, "{}: {}".format(os.fspath(store), why)) from None
        except (OSError, ValueError) as e:
            raise Error(1, "{}: {}".format(os.fspath(store), getattr(e, "strerror", None) or e)) from e
    except BaseException:
        mounted.close()
        raise
    # views keep the map alive, and not the array
    weakref.finalize(mapped.base, mounted.close).atexit = False
    return mapped


def _header(file: IO[bytes]) -> Tuple[Dict[str, Any], int]:
    """Returns what the header of an open data.npy says, and where the items begin."""
    begin = file.read(8)
    size = 2 if begin[6] == 1 else 4
    length = int.from_bytes(file.read(size), "little")
    return ast.literal_eval(file.read(length).decode()), 8 + size + length


class _Lines(threading.Thread):
    """Reads the standard error of a program, and shows it if nobody else does."""

    def __init__(self, stream: Optional[IO[bytes]], is_shown: bool) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._is_shown = is_shown
        self._said = bytearray()
        self.start()

    def run(self) -> None:
        if self._stream is None:
            return
        with self._stream as stream:
            while True:
                part = os.read(stream.fileno(), 65536)
                if not part:
                    return
                self._said += part
                if self._is_shown:
                    # the messages are the last ones
                    del self._said[:-65536]
                    _show(part)

    def text(self) -> str:
        return bytes(self._said).decode(errors="replace")

    def captured(self) -> Optional[bytes]:
        return None if self._is_shown else bytes(self._said)


def _show(part: bytes) -> None:
    try:
        while part:
            part = part[os.write(2, part) :]
    except OSError:
        pass


def _program() -> str:
    """Returns the path of the program: where pip installs programs for this package, or else in PATH."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", "posix_user"),
        # pip install --target
        os.path.join(package, "bin"),
        # pip install --prefix: PREFIX/lib/python3.X/site-packages
        os.path.join(package, "..", "..", "..", "bin"),
    ]
    for folder in folders + os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "zarrfs")
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    hint = "install the package again"
    raise Error(1, "zarrfs: the program is not in any of {}; {}".format(", ".join(folders), hint), hint)


def _words(options: Dict[str, object]) -> List[str]:
    """Returns keywords as options of the command line."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if name in _REFUSED:
            raise Error(2, "{}: not from Python".format(option))
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        values = list(_values(value))
        if name in _LISTS and values:
            values = [",".join(values)]
        words += ["{}={}".format(option, one) for one in values]
    return words


def _values(value: object) -> Iterator[str]:
    if isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _values(one)
    elif isinstance(value, os.PathLike):
        yield os.fspath(value)
    else:
        yield str(value)


def _call(words: List[str], stdin: int = subprocess.DEVNULL) -> None:
    """Runs the program to its end."""
    try:
        done = subprocess.run(words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except (OSError, ValueError) as e:
        raise Error(1, "{}: {}".format(words[0], e)) from e
    text = done.stderr.decode(errors="replace")
    # where another library takes the exit codes of all children the code is 0
    if done.returncode or _ERROR in "\n" + text:
        raise _error(done.returncode or 1, text, "zarrfs")
    if text:
        warnings.warn(text.strip(), RuntimeWarning, stacklevel=4)


def _error(code: int, said: str, program: str) -> Error:
    """Returns the failure of a program that has ended with `code`."""
    if code < 0:
        code = 128 - code
    _, found, text = ("\n" + said).partition(_ERROR)
    if not found:
        return Error(code, "{}: {}".format(program, _ending(code)))
    message, _, more = text.partition("\n\n")
    message = message.strip().replace(_ERROR, "\n")
    tips = [line.strip()[len("tip: ") :] for line in more.splitlines() if line.strip().startswith("tip: ")]
    advice = message.rpartition("; ")
    return Error(code, message, tips[0] if tips else advice[2] if advice[1] else None)


def _ending(code: int) -> str:
    if code > 128:
        try:
            return "ended by {}".format(signal.Signals(code - 128).name)
        except ValueError:
            pass
    return "exit code {}".format(code)


def _devices(path: str) -> List[str]:
    """Returns the devices of the mounts of zarrfs at a path, the topmost last. No daemon is asked."""
    path = path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        parts = [line.split(" ") for line in table]
    return [part[2] for part in parts if part[4] == path and "fuse.zarrfs" in part]


def _written_maps(folder: str) -> Iterator[Tuple[str, int, int]]:
    """Returns the files below a folder that this process has mapped shared and writable, with their addresses."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(None, 5)
            path = parts[5].replace("\\012", "\n") if len(parts) == 6 else ""
            if parts[1][1::2] == "ws" and path.startswith(folder + os.sep):
                begin, end = parts[0].split("-")
                yield path, int(begin, 16), int(end, 16)


def _add_context(raised: BaseException, error: Error) -> None:
    """Adds a new error to the traceback of an exception, as one that came before it.

    An error that was raised meanwhile has the exception in its own context: that would be a circle.
    """
    first = raised
    seen = {id(raised)}
    while True:
        before = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        first = before
    first.__suppress_context__ = False
    first.__context__ = error
