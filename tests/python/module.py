"""Uses the Python module zarrfs as programs do, and compares what is stored with zlib and struct.

    module.py            runs all tests; module.py WORD... those whose names begin with one of the words
    module.py CASE ...   is a child process of a test

The module must be importable, and so must numpy. It runs with Python 3.8 and later.
"""

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import numpy
import zarrfs

ROWS, COLUMNS, STEP = 64, 32, 8
PROGRAM = zarrfs._program()
SCRIPT = os.path.abspath(__file__)


def make_store(folder):
    """A store with an array of i4 in compressed chunks of whole rows."""
    store = os.path.join(folder, "store.zarr")
    os.makedirs(os.path.join(store, "a"))
    with open(os.path.join(store, ".zgroup"), "w") as file:
        file.write('{"zarr_format": 2}')
    with open(os.path.join(store, "a", ".zarray"), "w") as file:
        file.write(
            '{"zarr_format": 2, "shape": [%d, %d], "chunks": [%d, %d], "dtype": "<i4", "fill_value": 0, "order": "C",'
            ' "filters": null, "compressor": {"id": "zlib", "level": 1}}' % (ROWS, COLUMNS, STEP, COLUMNS)
        )
    return store


def stored(store):
    """Returns the rows of the array as other programs find them in the store."""
    rows = []
    for chunk in range(ROWS // STEP):
        try:
            with open(os.path.join(store, "a", "%d.0" % chunk), "rb") as file:
                decoded = zlib.decompress(file.read())
        except FileNotFoundError:
            decoded = bytes(STEP * COLUMNS * 4)
        values = struct.unpack("<%di" % (STEP * COLUMNS), decoded)
        rows += [values[n * COLUMNS : (n + 1) * COLUMNS] for n in range(STEP)]
    return rows


def write_first(store, value):
    """Writes the first item, as other programs do."""
    with open(os.path.join(store, "a", "0.0"), "wb") as file:
        file.write(zlib.compress(struct.pack("<i", value) + bytes(STEP * COLUMNS * 4 - 4)))


def is_mounted(path):
    with open("/proc/self/mountinfo") as table:
        return any(line.split(" ")[4] == path for line in table)


def processes(text):
    """Returns the numbers of the processes of zarrfs with a word that contains `text`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"mount"] and any(text.encode() in word for word in words):
            found.append(int(pid))
    return found


def wait_for(what, done):
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < 120, "waited two minutes in vain for " + what
        time.sleep(0.01)


def gone(path):
    wait_for("the end of " + path, lambda: not is_mounted(path) and not os.path.exists(path) and not processes(path))


def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except zarrfs.Error as e:
        return e
    raise AssertionError("no error")


def number(path, name):
    """Returns a number of the statistics of a mount; 0 without it."""
    with open(os.path.join(path, ".zarrfs", "stats")) as stats:
        return int(next((line.split()[1] for line in stats if line.split()[:1] == [name]), 0))


@contextlib.contextmanager
def slow_program(folder):
    """Lets `zarrfs mount` return only when the mount has ended."""
    path = os.path.join(folder, "slow")
    with open(path, "w") as file:
        file.write(
            '#!/bin/sh\n%s "$@" || exit\n[ "$1" != mount ] || for path; do :; done\n'
            'while [ "$1" = mount ] && grep -q " $path " /proc/self/mountinfo; do sleep 0.01; done\n' % PROGRAM
        )
    os.chmod(path, 0o700)
    usual = zarrfs._program
    zarrfs._program = lambda: path
    try:
        yield
    finally:
        zarrfs._program = usual


def child(*arguments, **options):
    """Starts this script as another process. Its first line is returned, too."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT] + list(arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    line = process.stdout.readline().decode().strip()
    assert line, arguments
    return process, line


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


# options and errors


def test_options_are_those_of_the_command_line(folder, store):
    for keywords, words in [
        ({"nonsense": True}, ["--nonsense"]),
        ({"nonsense": 3}, ["--nonsense=3"]),
        ({"cache_size": "lots"}, ["--cache-size=lots"]),
        ({"containers": ["h5", "pdf"]}, ["--containers=h5,pdf"]),
        ({"retries": -1}, ["--retries=-1"]),
        ({"layout_file": os.path.join(folder, "no"), "sync": True}, ["--layout-file=%s/no" % folder, "--sync"]),
    ]:
        path = os.path.join(folder, "mnt")
        told = subprocess.run(
            [PROGRAM, "mount", "--auto-mountpoint"] + words + [store, path], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        error = error_of(zarrfs.mount, store, path, auto_mountpoint=True, **keywords)
        assert told.returncode == error.exit_code, (error, told)
        assert told.stderr.decode().startswith("error: " + error.message + "\n"), (error, told)
        assert str(error) == error.message
    assert error_of(zarrfs.mount, store, read_onyl=True).hint == "a similar argument exists: '--read-only'"
    for name in zarrfs._REFUSED:
        assert error_of(zarrfs.mount, store, **{name: True}).exit_code == 2


def test_options_with_lists_are_joined_or_repeated(folder, store):
    told = subprocess.run([PROGRAM, "mount", "--help"], stdout=subprocess.PIPE).stdout.decode()
    # --headers <LIST>, --ingest[=<LIST>]
    lists = sorted(line.split()[0].split("[")[0][2:] for line in told.splitlines() if "<LIST>" in line)
    assert lists == sorted(zarrfs._LISTS)
    with zarrfs.mount(store, containers=["h5", "nc"], headers=("npy",), read_only=True, sync=False, region=None) as path:
        assert {"dataset.h5", "dataset.nc"} <= set(os.listdir(path))
        names = os.listdir(os.path.join(path, "a"))
        assert "data.npy" in names and "data.vrt" not in names
    assert zarrfs._words({"ingest": True}) == ["--ingest"]
    assert zarrfs._words({"ingest": ["nc", "npy"]}) == ["--ingest=nc,npy"]
    header = ["X-A: 1", "X-B: 2"]
    assert zarrfs._words({"header": header}) == ["--header=X-A: 1", "--header=X-B: 2"]


def test_options_and_stores_that_fail_raise_with_code_and_hint(folder, store):
    assert error_of(zarrfs.mount, os.path.join(folder, "missing")).exit_code == 3
    os.mkdir(os.path.join(folder, "plain"))
    assert error_of(zarrfs.mount, os.path.join(folder, "plain")).exit_code == 4
    error = error_of(zarrfs.mount, store, os.path.join(folder, "no"))
    assert error.exit_code == 5 and error.hint and error.message.endswith("; " + error.hint), error
    import pickle

    copy = pickle.loads(pickle.dumps(error))
    assert (copy.exit_code, copy.message, copy.hint) == (error.exit_code, error.message, error.hint)
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("zarrfs-")]
    assert not zarrfs._open


# blocks


def test_block_mounts_and_stores(folder, store):
    with zarrfs.mount(store) as path:
        with open(os.path.join(path, "a", "data.raw"), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), struct.pack("<i", 7), 4)
            # the file is still open, and its bytes are not stored before the block ends
            unclosed = os.dup(file.fileno())
    assert stored(store)[0][1] == 7
    assert not is_mounted(path)
    os.close(unclosed)
    gone(path)


def test_block_has_the_mountpoint_that_is_named(folder, store):
    os.mkdir(os.path.join(folder, "a b"))
    os.chdir(folder)
    with zarrfs.mount("store.zarr", "a b") as path:
        os.chdir("/")
        assert path == os.path.join(os.path.realpath(folder), "a b") and is_mounted(path.replace(" ", "\\040"))
        assert os.path.exists(os.path.join(path, "a", "data.raw"))
    assert os.listdir(path) == []
    with zarrfs.mount(store, os.path.join(folder, "new"), auto_mountpoint=True) as path:
        assert os.path.exists(os.path.join(path, "a", "data.raw"))
    gone(path)


def block(store):
    """Keeps the first chunk from being stored: no value can take the place of a directory."""
    if os.path.exists(os.path.join(store, "a", "0.0")):
        os.remove(os.path.join(store, "a", "0.0"))
    os.makedirs(os.path.join(store, "a", "0.0", "blocked"))


def unblock(store):
    os.removedirs(os.path.join(store, "a", "0.0", "blocked"))


def unstored(store, path):
    """Writes what can't be stored. Returns the open file."""
    file = os.open(os.path.join(path, "a", "data.raw"), os.O_RDWR)
    os.pwrite(file, struct.pack("<i", 9), 0)
    block(store)
    return file


def test_block_raises_what_is_not_stored_and_the_mount_stays(folder, store):
    mounted = zarrfs.mount(store)
    with mounted as path:
        file = unstored(store, path)
        assert_unstored(error_of(mounted.close))
        unblock(store)
    assert stored(store)[0][0] == 9
    os.close(file)
    gone(path)


def assert_unstored(error):
    assert error.exit_code == 1 and "still mounted" in error.message and "0.0" in error.message, error


def test_block_that_raises_keeps_its_exception(folder, store):
    def leave_by(raised):
        mounted = zarrfs.mount(store)
        file = None
        try:
            with mounted as path:
                file = unstored(store, path)
                raise raised
        finally:
            unblock(store)
            mounted.close()
            os.close(file)
            gone(path)

    try:
        leave_by(KeyError("mine"))
    except KeyError as e:
        assert_unstored(e.__context__)
        import traceback

        assert "still mounted" in "".join(traceback.format_exception(type(e), e, e.__traceback__))
    else:
        raise AssertionError
    chained = ValueError("after")
    chained.__cause__ = OSError("before")
    try:
        leave_by(chained)
    except ValueError as e:
        assert_unstored(e.__cause__.__context__)
    # an exit that the interpreter does not print would hide the failure
    for quiet in (SystemExit(0), KeyboardInterrupt()):
        try:
            leave_by(quiet)
        except zarrfs.Error as e:
            assert_unstored(e)
            assert e.__cause__ is quiet


def test_block_that_raises_unmounts(folder, store):
    try:
        with zarrfs.mount(store) as path:
            raise KeyError("mine")
    except KeyError as e:
        assert e.__context__ is None
    gone(path)


def test_block_raises_if_the_mount_has_ended(folder, store):
    mounted = zarrfs.mount(store)
    subprocess.run([PROGRAM, "umount", mounted.path], check=True)
    assert "can't know" in error_of(mounted.close).message
    mounted.close()
    with zarrfs.mount(store, idle_timeout="20ms") as path:
        gone(path)
    with slow_program(folder):
        # the mount has ended before its program returns
        with zarrfs.mount(store, idle_timeout="20ms") as path:
            # the daemon removes the mountpoint a little later
            gone(path)
        os.mkdir(os.path.join(folder, "mnt"))
        with zarrfs.mount(store, os.path.join(folder, "mnt"), idle_timeout="20ms") as path:
            assert os.listdir(path) == []
        error = error_of(zarrfs.array, store + "/a", idle_timeout="20ms")
        assert error.message == store + "/a: the mount has ended", error
    mounted = zarrfs.mount(store)
    # the process that holds the mount is stopped, since it would start another daemon, and killed last: a daemon that
    # sees it die ends in order
    holders = [pid for pid in [number(mounted.path, "holder_pid")] if pid]
    for pid in holders:
        os.kill(pid, signal.SIGSTOP)
    for pid in [pid for pid in processes(mounted.path) if pid not in holders] + holders:
        os.kill(pid, signal.SIGKILL)
    error = error_of(mounted.close)
    assert "can't know" in error.message, error
    wait_for("the unmount", lambda: not is_mounted(mounted.path))
    os.rmdir(mounted.path)


def test_block_outlives_its_daemon_and_an_upgrade(folder, store):
    for end_of in ("block", "pipe"):
        mounted = zarrfs.mount(store)
        path = mounted.path
        if number(path, "holder_pid"):
            daemon = number(path, "pid")
            os.kill(daemon, signal.SIGKILL)
            wait_for("a successor", lambda: number(path, "pid") != daemon)
            subprocess.run([PROGRAM, "upgrade", path], check=True)
        with open(os.path.join(path, "a", "data.raw"), "r+b") as file:
            file.write(struct.pack("<i", 5))
        if end_of == "block":
            mounted.close()
        else:
            mounted._drop()
        gone(path)
        assert stored(store)[0][0] == 5
    mounted = zarrfs.mount(store, no_outlive=True)
    mounted._drop()
    gone(mounted.path)


# maps


def test_map_that_is_open_at_the_end_of_a_block_is_stored_and_stays(folder, store):
    with zarrfs.mount(store) as path:
        a = numpy.load(os.path.join(path, "a", "data.npy"), mmap_mode="r+")
        a[3, 4] = 34
        processes_before = processes(path)
    assert not is_mounted(path) and processes_before
    assert stored(store)[3][4] == 34
    assert a[3, 4] == 34 and a[60, 0] == 0
    a[5, 6] = 56
    a.flush()
    assert stored(store)[5][6] == 56
    a[7, 8] = 78
    del a
    gone(path)
    assert stored(store)[7][8] == 78


def test_map_that_can_not_be_stored_raises(folder, store):
    mounted = zarrfs.mount(store)
    a = numpy.load(os.path.join(mounted.path, "a", "data.npy"), mmap_mode="r+")
    a[0, 0] = 1
    os.rename(os.path.join(store, "a"), store + ".moved")
    error = error_of(mounted.close)
    assert error.exit_code == 1 and os.path.join(mounted.path, "a", "data.npy") in error.message, error
    assert is_mounted(mounted.path)
    os.rename(store + ".moved", os.path.join(store, "a"))
    a[0, 0] = 1
    mounted.close()
    assert stored(store)[0][0] == 1
    del a
    gone(mounted.path)


def test_map_of_an_array(folder, store):
    a = zarrfs.array(os.path.join(store, "a"), mode="r+")
    path = next(iter(zarrfs._open.values())).path
    assert isinstance(a, numpy.memmap) and a.shape == (ROWS, COLUMNS) and a.dtype == numpy.dtype("<i4")
    a[1] = numpy.arange(COLUMNS)
    a.flush()
    assert stored(store)[1] == tuple(range(COLUMNS))
    view = a[2:4]
    view[:] = 8
    del a
    assert is_mounted(path)
    view.flush()
    assert stored(store)[3] == (8,) * COLUMNS
    view[0, 0] = 9
    del view
    gone(path)
    assert stored(store)[2][0] == 9
    assert not zarrfs._open
    b = zarrfs.array(os.path.join(store, "a"), cache_size="64M")
    assert not b.flags.writeable and list(b[1]) == list(range(COLUMNS))
    del b
    a = zarrfs.array(os.path.join(store, "a"), "r+")
    a[0, 0] = 1
    block(store)
    for _ in range(2):
        try:
            a.flush()
            raise AssertionError("flush has stored nothing, and says nothing")
        except OSError:
            pass
    unblock(store)
    a.flush()
    assert stored(store)[0][0] == 1
    del a


def test_map_of_other_shapes_and_of_no_array(folder, store):
    for name, shape in [("scalar", []), ("empty", [0, 3]), ("one", [1])]:
        os.mkdir(os.path.join(store, name))
        with open(os.path.join(store, name, ".zarray"), "w") as file:
            file.write(
                '{"zarr_format": 2, "shape": %s, "chunks": %s, "dtype": "<f8", "fill_value": 2.5, "order": "C",'
                ' "filters": null, "compressor": null}' % (shape, [max(1, n) for n in shape])
            )
        a = zarrfs.array(os.path.join(store, name))
        assert a.shape == tuple(shape) and (a == 2.5).all(), name
        del a
    assert error_of(zarrfs.array, store).exit_code == 3
    assert error_of(zarrfs.array, os.path.join(store, "b")).exit_code == 3
    assert error_of(zarrfs.array, os.path.join(store, "a"), "w").exit_code == 2
    assert not zarrfs._open


# commands


def test_run_stores_what_a_command_writes(folder, store):
    done = zarrfs.run(store, ["wc", "-c", "{}/a/data.raw"], capture_output=True)
    assert done.returncode == 0 and done.stdout.split()[0] == str(ROWS * COLUMNS * 4).encode() and done.stderr == b""
    script = "printf '\\005' | dd of=$ZARRFS_MOUNT/a/data.raw conv=notrunc status=none"
    zarrfs.run(store, ["sh", "-c", script])
    assert stored(store)[0][0] == 5
    error = error_of(zarrfs.run, store, ["sh", "-c", "echo said; echo complained >&2; exit 3"], capture_output=True)
    assert (error.exit_code, error.message) == (3, "sh: exit code 3"), error
    done = zarrfs.run(store, ["sh", "-c", "echo said; echo complained >&2; exit 3"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"said\n", b"complained\n")
    # its standard error passes through
    said = subprocess.run([sys.executable, SCRIPT, "complaining", store], stderr=subprocess.PIPE).stderr
    assert said == b"complained\n", said
    assert error_of(zarrfs.run, store, ["sh", "-c", "kill -TERM $$"]).exit_code == 143
    assert error_of(zarrfs.run, store, ["no-such-program"], capture_output=True).exit_code == 127
    assert error_of(zarrfs.run, os.path.join(folder, "missing"), ["true"], capture_output=True).exit_code == 3
    assert "--nonsense" in error_of(zarrfs.run, store, ["true"], capture_output=True, nonsense=True).message
    zarrfs.run(store, ["test", "-e", "{}/dataset.h5"], containers=["h5", "nc"], read_only=True)


def case_complaining(store):
    zarrfs.run(store, ["sh", "-c", "echo complained >&2"])


# the end of the process


def case_holding(store, *more):
    """Mounts, and writes what is not stored yet. Waits, or ends as the word says."""
    mounted = zarrfs.mount(store)
    file = os.open(os.path.join(mounted.path, "a", "data.raw"), os.O_RDWR)
    os.pwrite(file, struct.pack("<i", 11), 0)
    if "fork" in more and os.fork() == 0:
        os.close(file)
        time.sleep(600)
    if "multiprocessing" in more:
        for method in multiprocessing.get_all_start_methods():
            multiprocessing.get_context(method).Process(target=time.sleep, args=(600,), daemon=True).start()
    if "subprocess" in more:
        subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
    print(mounted.path, flush=True)
    sys.stdin.readline()
    if "fail" in more:
        block(store)
    if "exit" in more:
        os._exit(0)
    if "exec" in more:
        os.execv("/bin/sleep", ["sleep", "600"])


def test_end_of_the_process_ends_the_mount(folder, store):
    # a kernel of a notebook that is restarted ends in one of these ways
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, "exit", "return", "exec"):
        write_first(store, 0)
        process, path = child("holding", store, str(how), stderr=subprocess.DEVNULL)
        if isinstance(how, str):
            process.stdin.write(b"\n")
            process.stdin.flush()
        else:
            process.send_signal(how)
        gone(path)
        assert stored(store)[0][0] == 11, how
        end(process)


def test_end_of_the_process_with_children(folder, store):
    for how in ("fork", "multiprocessing", "subprocess"):
        write_first(store, 0)
        # the children are in a group of their own, for their end
        process, path = child("holding", store, how, start_new_session=True)
        try:
            process.kill()
            process.wait()
            if how == "multiprocessing":
                # children that a fork has made have the file open
                wait_for("the unmount", lambda: not is_mounted(path) and stored(store)[0][0] == 11)
            else:
                gone(path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            end(process)
        gone(path)
        assert stored(store)[0][0] == 11


def test_end_of_the_interpreter_says_what_is_not_stored(folder, store):
    process, path = child("holding", store, "fail", stderr=subprocess.PIPE)
    process.stdin.write(b"\n")
    process.stdin.flush()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert said.startswith("error: ") and "0.0" in said, said
    end(process)
    gone(path)


def test_process_that_forks_keeps_the_mount(folder, store):
    with zarrfs.mount(store) as path:
        pid = os.fork()
        if pid == 0:
            # the block ends in the child, too
            try:
                sys.exit(0 if os.path.exists(os.path.join(path, "a", "data.raw")) else 1)
            finally:
                mounted = zarrfs.Mount.__new__(zarrfs.Mount)
                del mounted
                try:
                    with zarrfs.mount(store) as own:
                        is_own = own != path and os.path.exists(own)
                finally:
                    os._exit(0 if is_own and not zarrfs._open else 2)
        assert os.waitpid(pid, 0)[1] == 0
        assert is_mounted(path)
    mounted = zarrfs.mount(store)
    pid = os.fork()
    if pid == 0:
        with mounted:
            pass
        mounted.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_mounted(mounted.path)
    mounted.close()
    assert not is_mounted(mounted.path)


def test_process_with_threads_mounts_while_it_forks(folder, store):
    failed = []

    def work(number):
        try:
            for _ in range(4):
                with zarrfs.mount(store) as path:
                    with open(os.path.join(path, "a", "data.raw"), "r+b") as file:
                        file.seek(number * COLUMNS * 4)
                        file.write(struct.pack("<i", number + 1))
                assert not is_mounted(path)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pid = os.fork()
        if pid == 0:
            os._exit(len(zarrfs._open))
        assert os.waitpid(pid, 0)[1] == 0
        time.sleep(0.01)
    assert not failed, failed
    assert [row[0] for row in stored(store)[:4]] == [1, 2, 3, 4]
    # any thread may end a mount, and several at once
    mounted = zarrfs.mount(store)
    threads = [threading.Thread(target=mounted.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gone(mounted.path)


def test_process_with_asyncio_unmounts_when_canceled(folder, store):
    paths = []

    async def use(begun):
        loop = asyncio.get_running_loop()
        mounted = await loop.run_in_executor(None, zarrfs.mount, store)
        try:
            paths.append(mounted.path)
            begun.set()
            await asyncio.sleep(600)
        finally:
            await loop.run_in_executor(None, mounted.close)

    async def block(begun):
        with zarrfs.mount(store) as path:
            paths.append(path)
            begun.set()
            await asyncio.sleep(600)

    async def main():
        for coroutine in (use, block):
            begun = asyncio.Event()
            task = asyncio.get_running_loop().create_task(coroutine(begun))
            await begun.wait()
            assert is_mounted(paths[-1])
            task.cancel()
            try:
                await task
                raise AssertionError("not canceled")
            except asyncio.CancelledError:
                pass
            assert not is_mounted(paths[-1])

    asyncio.run(main())
    assert len(paths) == 2


def test_process_without_exit_codes_finds_failures(folder, store):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "missing" in error_of(zarrfs.mount, os.path.join(folder, "missing")).message
        mounted = zarrfs.mount(store)
        file = unstored(store, mounted.path)
        assert_unstored(error_of(mounted.close))
        unblock(store)
        mounted.close()
        os.close(file)
    finally:
        signal.signal(signal.SIGCHLD, before)
    gone(mounted.path)


# kill -9


def case_writing(store, seed):
    """Writes row after row, each with a number that grows, and prints what is synced: the row and the number."""
    order = random.Random(int(seed))
    number = 0
    if int(seed) % 2:
        a = zarrfs.array(os.path.join(store, "a"), mode="r+")
        number = int(a.max())
        print("begun", flush=True)
        while True:
            number += 1
            row = order.randrange(ROWS)
            a[row] = number
            a.flush()
            print(row, number, flush=True)
    with zarrfs.mount(store) as path:
        with open(os.path.join(path, "a", "data.raw"), "r+b", buffering=0) as file:
            number = int(numpy.frombuffer(file.read(), "<i4").max())
            print("begun", flush=True)
            while True:
                number += 1
                row = order.randrange(ROWS)
                os.pwrite(file.fileno(), struct.pack("<i", number) * COLUMNS, row * COLUMNS * 4)
                os.fsync(file.fileno())
                print(row, number, flush=True)


def test_kill_of_a_writer_leaves_no_mount_and_loses_no_synced_byte(folder, store):
    kills = int(os.environ.get("ZARRFS_PYTHON_KILLS", "6"))
    seed = int(os.environ.get("ZARRFS_SEED", "1"))
    moments = random.Random(seed)
    temporary = os.path.join(folder, "temporary")
    os.mkdir(temporary)
    synced = [0] * ROWS
    writes = early = 0
    for kill in range(kills):
        process, line = None, None
        process = subprocess.Popen(
            [sys.executable, SCRIPT, "writing", store, str(seed + kill)],
            stdout=subprocess.PIPE,
            env=dict(os.environ, TMPDIR=temporary),
        )
        if moments.random() < 0.2:
            # while it begins, or mounts
            time.sleep(moments.random())
        else:
            line = process.stdout.readline()
            time.sleep(moments.random() * 0.3)
        process.kill()
        said, _ = process.communicate()
        lines = said.decode().split("\n")[:-1]
        lines = [line for line in lines if line != "begun"]
        for line in lines:
            row, number = map(int, line.split())
            synced[row] = number
        writes += len(lines)
        early += not lines
        wait_for("the end of the mount", lambda: not processes(temporary))
        with open("/proc/self/mountinfo") as table:
            assert temporary not in table.read()
        assert os.listdir(temporary) == []
        rows = stored(store)
        for row, number in zip(rows, synced):
            # a later write may be stored, too, as a whole
            assert row[0] >= number and len(set(row)) == 1, (kill, row, number)
        synced = [row[0] for row in rows]
    print("{} kills, {} of them before a write, {} synced writes: nothing lost".format(kills, early, writes))


def main():
    cases = {name[len("case_") :]: case for name, case in globals().items() if name.startswith("case_")}
    if sys.argv[1:] and sys.argv[1] in cases:
        return cases[sys.argv[1]](*sys.argv[2:])
    tests = [(name, test) for name, test in sorted(globals().items()) if name.startswith("test_")]
    chosen = [(name, test) for name, test in tests if name.startswith(tuple("test_" + word for word in sys.argv[1:] or [""]))]
    assert chosen, sys.argv
    for name, test in chosen:
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.realpath(folder)
            os.mkdir(os.path.join(folder, "tmp"))
            # mountpoints
            tempfile.tempdir = os.path.join(folder, "tmp")
            os.environ["TMPDIR"] = tempfile.tempdir
            begun = time.monotonic()
            try:
                test(folder, make_store(folder))
            except BaseException:
                print("failed:", name, flush=True)
                raise
            finally:
                os.chdir("/")
                for mounted in list(zarrfs._open.values()):
                    mounted._drop()
                tempfile.tempdir = None
                del os.environ["TMPDIR"]
        assert not zarrfs._open, name
        print("ok: {} {:.1f} s".format(name, time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    main()
