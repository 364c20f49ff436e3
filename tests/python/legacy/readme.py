"""Runs the recipes of README.txt in the directory of the array, in all languages except Julia and MATLAB. Each prints
the whole array and a part of it."""
import os
import re
import subprocess
import tempfile

import numpy as np

from expected import same
from table import close, row, run, version

# the file to which dd copies a part
COPY = os.path.expanduser("~/part.raw")


class Lines:
    """The recipe for one program, and the part of the array that it reads."""

    def __init__(self, array, program):
        with open(array.file("README.txt")) as f:
            text = f.read()
        named = re.search(r"part is (a\[.*?\])", text)
        self.values = array.numbers()
        self.part = eval(named[1], {"a": self.values}) if named else self.values
        self.lines, program_of_line = [], None
        for line in text.splitlines():
            if re.match(r"  \S", line) and line[2:11].rstrip() == line[2:11].strip() and line[10:11] == " ":
                program_of_line = line[2:10].strip()
            elif not line.startswith("           "):
                program_of_line = None
            if program_of_line == program:
                self.lines.append(line[11:])

    def text(self):
        return "\n".join(self.lines) + "\n"


def has(program):
    return lambda array: bool(Lines(array, program).lines)


def numbers(words, dtype):
    """Parses numbers into the array's dtype. Languages without unsigned types print the stored bits."""
    if dtype.kind == "c":
        return np.array([float(w) for w in words], "f8").view("c16")
    if dtype.kind == "f":
        return np.array([float(w) for w in words], "f8")
    return np.array([int(float(w)) if "." in w else int(w) for w in words], "i8").astype(dtype.newbyteorder("="))


def shown(said, lines, what=("a", "part")):
    """Compares the output after each marker."""
    found = said.split("@")[1:]
    same("count of results", len(found), len(what))
    for name, text in zip(what, found):
        wanted = np.asarray(lines.values if name == "a" else lines.part)
        got = numbers(text.split(), wanted.dtype)
        if wanted.dtype.kind == "c":
            close(f"{name}, real", got.real, wanted.real), close(f"{name}, imaginary", got.imag, wanted.imag)
        else:
            close(name, got, wanted)


@row("README.txt", "Python's lines", version("python3", "--version"), "values, shape, part", has("Python"))
def python(array):
    lines = Lines(array, "Python")
    here = {}
    before = os.getcwd()
    os.chdir(array.path)
    try:
        exec(lines.text(), here)
    finally:
        os.chdir(before)
    values = array.values()
    same("a", np.array(here["a"]), values)
    same("part", np.asarray(here["part"]).tobytes(), np.asarray(eval(lines_part(array), {"a": values})).tobytes())


def lines_part(array):
    with open(array.file("README.txt")) as f:
        return re.search(r"part is (a\[.*?\])", f.read())[1]


@row("README.txt", "Octave's lines", version("octave", "--version"), "values, shape, part", has("Octave"))
def octave(array):
    lines = Lines(array, "Octave")
    show = "".join(f"x = permute({name}, ndims({name}):-1:1); printf('@'); printf('%.17g ', x);\n" for name in ("a", "part"))
    # 64-bit integers are not converted to floats
    show = show.replace("%.17g", "%d") if array.dtype.kind in "iub" else show
    shape = "printf('%d ', size(a));\n"
    said = run("octave", "--quiet", "--no-gui", "--eval", lines.text() + shape + show, cwd=array.path)
    sizes, _, rest = said.partition("@")
    wanted = list(array.shape) + [1] * (2 - len(array.shape))
    while len(wanted) > 2 and wanted[-1] == 1:
        wanted.pop()
    same("size(a)", [int(n) for n in sizes.split()], wanted)
    shown("@" + rest, lines)


@row("README.txt", "R's lines", version("R", "--version"), "values, shape, part", has("R"))
def r(array):
    lines = Lines(array, "R")
    text = "c(rbind(c(Re(x)), c(Im(x))))" if array.dtype.kind == "c" else "as.numeric(x)"
    show = "cat(dim(a))\n" + "".join(
        f"x <- if (length(dim({name})) > 1) aperm({name}) else {name}; cat('@', sprintf('%.17g', {text}))\n"
        for name in ("a", "part"))
    sizes, _, rest = run("Rscript", "-e", lines.text() + show, cwd=array.path).partition("@")
    same("dim(a)", [int(n) for n in sizes.split()], list(array.shape))
    shown("@" + rest, lines)


@row("README.txt", "IDL's lines, in GDL", version("dpkg-query", "-W", "gnudatalanguage"), "values, dimensions, part", has("IDL"))
def gdl(array):
    lines = Lines(array, "IDL")
    with tempfile.TemporaryDirectory() as folder:
        out, program = os.path.join(folder, "out"), os.path.join(folder, "lines.pro")
        show = f"openw, w, '{out}', /get_lun\nprintf, w, size(a, /dimensions)\n"
        form = {"c": "printf, w, real_part({0}[i]), imaginary({0}[i]), format='(2(G0.17, \" \"))'", "f": "printf, w, {0}[i], format='(G0.17)'"}
        each = form.get(array.dtype.kind, "printf, w, {0}[i], format='(I0)'")
        for name in ("a", "part"):
            show += f"printf, w, '@'\nfor i = 0L, n_elements({name}) - 1 do {each.format(name)}\n"
        with open(program, "w") as f:
            f.write(lines.text() + show + "close, w\nexit\n")
        run("gdl", "-q", program, cwd=array.path)
        with open(out) as f:
            sizes, _, rest = f.read().partition("@")
    wanted = list(array.shape[::-1])
    while len(wanted) > 1 and wanted[-1] == 1:
        wanted.pop()
    same("size(a)", [int(n) for n in sizes.split()][:len(wanted)], wanted)
    shown("@" + rest, lines)


@row("README.txt", "Fortran's lines", version("gfortran", "--version"), "part", has("Fortran"))
def fortran(array):
    lines = Lines(array, "Fortran")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "lines.f90")
        form = "'(*(2(g0,1x)))'" if array.dtype.kind == "c" else "'(*(g0,1x))'"
        with open(source, "w") as f:
            f.write(f"program lines\n{lines.text()}write(*, '(a)') '@'\nwrite(*, {form}) part\nend program\n")
        program = os.path.join(folder, "lines")
        run("gfortran", "-o", program, source)
        shown(run(program, cwd=array.path), lines, ("part",))


@row("README.txt", "od, dd", version("od", "--version"), "part", has("shell"))
def shell(array):
    lines = Lines(array, "shell")
    od, dd = lines.lines
    part = np.ascontiguousarray(eval(lines_part(array), {"a": array.values()}))
    try:
        subprocess.run(dd, shell=True, check=True, capture_output=True, cwd=array.path)
        with open(COPY, "rb") as f:
            same("bytes that dd copies", f.read(), part.tobytes())
    finally:
        os.path.exists(COPY) and os.remove(COPY)
    said = subprocess.run(od, shell=True, check=True, capture_output=True, text=True, cwd=array.path).stdout
    words = [word for line in said.splitlines() for word in line.split()[1:]]
    if array.dtype.kind in "iubfc" and array.dtype.str[1:] != "f2":
        got = numbers(words, array.numbers().dtype)
        same("count of items", got.size, part.size)
        close("items that od shows", np.abs(got), np.abs(part.astype(got.dtype)).ravel())
