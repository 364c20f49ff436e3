"""The rows of the table. Each opens one kind of file with one program, for every array or group that both support."""
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from expected import Different  # noqa: E402

ROWS = []
LIMIT = 120


class Row:
    """A row: one kind of file that one program reads."""

    def __init__(self, read, file, program, version, what, takes, crashes):
        self.read, self.file, self.program, self.version, self.what, self.takes = read, file, program, version, what, takes
        self.crashes = crashes

    def compare(self, subjects):
        """Returns the number of comparisons and the differences."""
        there = [s for s in subjects if s.has(self.file) and self.takes(s)]
        faults = []
        for subject in there:
            try:
                apart(self.read, subject) if self.crashes else self.read(subject)
            except Different as e:
                faults.append(f"{subject.key}: {e}")
            except subprocess.CalledProcessError as e:
                said = f"{e.stdout or ''} {e.stderr or ''}".split()
                faults.append(f"{subject.key}: exit code {e.returncode}: {' '.join(said)[-300:]}")
            except Exception as e:  # the error of a library that cannot read the file
                faults.append(f"{subject.key}: {type(e).__name__}: {e}")
        return len(there), faults


def apart(read, subject):
    """Runs the comparison in a separate process."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        return process.submit(read, subject).result()


def row(file, program, version, what, takes=lambda subject: True, crashes=False):
    """Makes a row from a function that raises on a difference. `takes` excludes arrays that the program does not
    support, and `crashes` marks libraries that crash instead of raising."""
    def make(read):
        ROWS.append(Row(read, file, program, version, what, takes, crashes))
        return read
    return make


class Group:
    """A group and its arrays, which dataset.nc shows."""

    def __init__(self, arrays):
        self.key, self.arrays = arrays[0].group, arrays
        self.path = os.path.dirname(arrays[0].path)

    def file(self, name):
        return os.path.join(self.path, name)

    def has(self, name):
        return os.path.exists(self.file(name))

    def is_cdf5(self):
        with open(self.file("dataset.nc"), "rb") as f:
            return f.read(4) == b"CDF\x05"

    def signed(self, array, values):
        """Returns the values for programs that ignore `_Unsigned`: without CDF-5, bytes are signed."""
        return values if self.is_cdf5() or array.dtype.str[1:] != "u1" else values.astype("u1").astype("i1").astype("f8")

    def grids(self):
        """Returns the arrays whose rows and columns have coordinates."""
        return [a for a in self.arrays if len(a.shape) > 1 and all(set(axis) - {"name"} for axis in a.axes[-2:])]


def run(*command, feed=None, binary=False, **more):
    """Returns the output of a program. Raises an error, which fails the row, if the program fails."""
    command = [str(word) for word in command]
    return subprocess.run(command, input=feed or ("" if not binary else b""), capture_output=True, text=not binary,
                          timeout=LIMIT, check=True, **more).stdout


def version(*command):
    """Returns the version in a program's output."""
    try:
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=LIMIT)
    except FileNotFoundError:
        return "missing"
    words = (done.stdout + done.stderr).replace(",", " ").split()
    words = [word.strip("()v") for word in words]
    return next((word for word in words if word[:1].isdigit() and "." in word and word[-1].isdigit()), "")


def close(what, got, want, digits=6):
    """Compares numbers that were converted to text or to a less precise type."""
    got, want = np.asarray(got, "f8").ravel(), np.asarray(want, "f8").ravel()
    if got.shape != want.shape:
        raise Different(f"{what}: {got.size} numbers instead of {want.size}")
    bad = ~np.isclose(got, want, rtol=10.0 ** -digits, atol=10.0 ** -digits, equal_nan=True)
    if bad.any():
        n = int(np.argmax(bad))
        raise Different(f"{what}: {bad.sum()} of {want.size} differ, the first is number {n}: {got[n]!r} instead of {want[n]!r}")


def decoded(array):
    """Returns the values decoded by the CF conventions: missing values are NaN, the others are scaled."""
    values = array.values().astype("f8")
    if array.fill() is not None:
        values = np.where(values == array.fill(), np.nan, values)
    return values * (array.scale or 1) + (array.offset or 0)
