#!/usr/bin/env python3
"""Copies the hostile stores of tests/data/hostile to DIR and adds cases that a git repository cannot hold.

    hostile.py DIR

DIR/cases.json lists all cases; its "fields" explain the keys. Remove DIR with rm -rf: some paths in it are
longer than PATH_MAX.
"""
import hashlib
import json
import os
import pathlib
import shutil
import socket
import stat
import struct
import sys
import zlib

RAW = struct.pack("<4i", 1, 2, 3, 4)
META = {"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i4", "compressor": None, "fill_value": 0,
        "order": "C", "filters": None}
GROUP = '{"zarr_format": 2}\n'
WORKS = {"size": 32, "sha256": hashlib.sha256(RAW + RAW).hexdigest()}
TAIL = {"size": 32, "good_chunk": "1", "good_hex": RAW.hex()}


class Corpus:
    def __init__(self, folder, committed):
        self.folder = folder
        with open(committed / "cases.json") as f:
            self.manifest = json.load(f)

    def store(self, name):
        store = self.folder / name
        shutil.copytree(self.folder / "shape.zarr/healthy", store / "healthy")
        (store / ".zgroup").write_text(GROUP)
        return store

    def add(self, store, array, kind, expected, check, name=None, **fields):
        self.manifest["cases"].append({
            "name": f"{store.stem}/{name or array}", "store": store.name, "array": array, "kind": kind,
            "expected": expected, "check": check, **fields,
        })


def array(path, **meta):
    """Writes an array of two chunks of four int32 items."""
    path.mkdir(parents=True)
    (path / ".zarray").write_text(json.dumps(META | meta))
    for key in "01":
        (path / key).write_bytes(RAW)
    return path


def sparse(path, size):
    with open(path, "wb") as f:
        f.truncate(size)


def odd_files(corpus):
    """Puts special files in the places of chunks and metadata. They must not be opened, which could block."""
    store = corpus.store("files.zarr")

    def unix_socket(path):
        # the address of a socket has at most about 100 bytes
        back = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
        os.chdir(back)

    makers = {"fifo": os.mkfifo, "socket": unix_socket, "sparse": lambda p: sparse(p, 1 << 40)}
    if os.geteuid() == 0:
        makers["device"] = lambda p: os.mknod(p, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        try:
            makers["device"](store / "probe")
            os.remove(store / "probe")
        except OSError:  # containers may forbid device nodes
            del makers["device"]
    else:
        def unreadable(path):
            path.write_bytes(RAW)
            path.chmod(0)
        makers["unreadable"] = unreadable
    for name, make in makers.items():
        chunk = array(store / f"chunk-{name}") / "0"
        chunk.unlink()
        make(chunk)
        expected = "EACCES" if name == "unreadable" else "EIO"
        corpus.add(store, f"chunk-{name}", "chunk", expected, f"the chunk is a {name}", chunk="0", **TAIL)
        if name == "sparse":
            continue
        for file, expected in ((".zarray", "error"), (".zattrs", "works"), (".zgroup", "works")):
            where = array(store / f"{file[1:]}-{name}")
            (where / file).unlink(missing_ok=True)
            make(where / file)
            corpus.add(store, where.name, "array", expected, f"{file} is a {name}; nothing waits for it", chunk="0",
                       **(WORKS if expected == "works" else {"unreadable": True}))


def large_files(corpus):
    """Writes documents beyond the limit of 16 MiB."""
    store = corpus.store("large.zarr")
    sparse(array(store / "zarray-1-gib") / ".zarray", 1 << 30)
    corpus.add(store, "zarray-1-gib", "array", "EIO", ".zarray of 1 GiB; memory stays flat", chunk="0",
               unreadable=True)
    with open(array(store / "zarray-17-mib") / ".zarray", "ab") as f:
        f.write(b" " * (17 << 20))
    corpus.add(store, "zarray-17-mib", "array", "EIO", "sound .zarray with 17 MiB of white space", chunk="0",
               unreadable=True)
    with open(array(store / "zarray-1-mib") / ".zarray", "ab") as f:
        f.write(b" " * (1 << 20))
    corpus.add(store, "zarray-1-mib", "array", "works", "sound .zarray with 1 MiB of white space", chunk="0", **WORKS)
    sparse(array(store / "zattrs-1-gib") / ".zattrs", 1 << 30)
    corpus.add(store, "zattrs-1-gib", "array", "works", ".zattrs of 1 GiB: the array is still there; memory stays flat",
               chunk="0", **WORKS)
    sparse(store / ".zmetadata", 1 << 30)
    array(store / "beside-zmetadata")
    corpus.add(store, "beside-zmetadata", "array", "works", ".zmetadata of 1 GiB in the root: not needed", chunk="0",
               **WORKS)
    array(store / "filters-10000", filters=[{"id": "crc32"}] * 10000)
    corpus.add(store, "filters-10000", "array", "refuse", "10,000 filters; the chunks are too short for them",
               chunk="0")
    array(store / "unknown-filters-10000", filters=[{"id": "nosuchfilter"}] * 10000)
    corpus.add(store, "unknown-filters-10000", "array", "EOPNOTSUPP", "10,000 unknown filters", chunk="0")
    where = array(store / "vast-item", dtype="|S2147483647", shape=[2], chunks=[1], fill_value="eA==")
    for key in "01":
        (where / key).unlink()
    corpus.add(store, "vast-item", "array", "works", "items of 2 GiB, and a fill value of as much; memory stays flat",
               size=(1 << 32) - 2, reads=[[0, 2, "7800"], [(1 << 31) - 2, 3, "007800"]])
    where = array(store / "pages", shape=[3 << 15], chunks=[1 << 15])
    for key, content in (("0", bytes(1 << 17)), ("1", b"short"), ("2", RAW + bytes((1 << 17) - 16))):
        (where / key).write_bytes(content)
    corpus.add(store, "pages", "chunk", "EIO", "a bad chunk of many pages: reading ahead into it harms no neighbor",
               chunk="1", good_chunk="0", size=3 << 17,
               reads=[[0, 16, bytes(16).hex()], [(1 << 17) - 16, 16, bytes(16).hex()], [1 << 18, 16, RAW.hex()]])
    bomb = zlib.compressobj(9, wbits=-15)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(256)) + bomb.flush()
    adler, crc = 1, 0
    for _ in range(256):
        adler, crc = zlib.adler32(bytes(1 << 20), adler), zlib.crc32(bytes(1 << 20), crc)
    frames = {
        "zlib": b"\x78\xda" + body + struct.pack(">I", adler),
        "gzip": b"\x1f\x8b\x08" + bytes(6) + b"\xff" + body + struct.pack("<II", crc, 256 << 20),
    }
    for codec, frame in frames.items():
        where = array(store / f"bomb-{codec}", compressor={"id": codec, "level": 1})
        (where / "0").write_bytes(frame)
        good = zlib.compress(RAW) if codec == "zlib" else zlib.compressobj(wbits=31)
        (where / "1").write_bytes(good if codec == "zlib" else good.compress(RAW) + good.flush())
        corpus.add(store, where.name, "chunk", "EIO",
                   f"{codec}: 256 MiB of zeros where 16 bytes belong; memory stays flat", chunk="0", **TAIL)


def links(corpus):
    """Creates symbolic links. Those inside the store are followed, those out of it are not."""
    outside = corpus.folder / "outside"
    array(outside / "secret")
    (outside / ".zgroup").write_text(GROUP)
    (outside / "secret/0").write_bytes(b"top secret bytes")
    store = corpus.store("links.zarr")

    array(store / "inside/real")
    (store / "linked").symlink_to("inside")
    corpus.add(store, "linked/real", "array", "works", "a link to a group of the same store", chunk="0", **WORKS)
    chunk = array(store / "linked-chunk") / "0"
    chunk.unlink()
    chunk.symlink_to("1")
    corpus.add(store, "linked-chunk", "array", "works", "a chunk that is a link to another chunk", chunk="0", **WORKS)

    for name, target in (("relative", "../outside"), ("absolute", outside.resolve()), ("root", "/")):
        (store / f"out-{name}").symlink_to(target)
        where = "secret" if name != "root" else "etc"
        corpus.add(store, f"out-{name}/{where}", "lookup", "error", f"a link out of the store, {name}",
                   name=f"out-{name}")
    out = ((".zarray", "array", "error"), ("0", "chunk", "error"), (".zattrs", "array", "works"))
    for file, kind, expected in out:
        where = array(store / f"out-{file.lstrip('.')}")
        (where / file).unlink(missing_ok=True)
        (where / file).symlink_to(f"../../outside/secret/{'.zarray' if file == '.zattrs' else file}")
        fields = TAIL if kind == "chunk" else WORKS if expected == "works" else {"unreadable": True}
        corpus.add(store, where.name, kind, expected, f"{file} is a link out of the store", chunk="0", **fields)

    (store / "cycle-a").symlink_to("cycle-b")
    (store / "cycle-b").symlink_to("cycle-a")
    corpus.add(store, "cycle-a/x", "lookup", "ELOOP", "two links that point at each other", name="cycle")
    (store / "self").symlink_to("self")
    corpus.add(store, "self/x", "lookup", "ELOOP", "a link that points at itself", name="self")
    array(store / "loop/real")
    (store / "loop/again").symlink_to(".")
    corpus.add(store, "loop/real", "array", "works", "a group that holds a link to itself", chunk="0", **WORKS)
    (store / "twice").mkdir()
    for name in "ab":
        (store / "twice" / name).symlink_to(".")
    corpus.add(store, "twice", "group", "works", "two links to their own directory: paths without number, yet listings end")
    where = array(store / "far", shape=[8000], chunks=[4])
    (where / "0").unlink()
    (where / "1").rename(where / "1999")
    (where / "1500").symlink_to("../../outside/secret/0")
    corpus.add(store, "far", "chunk", "error", "a link out of the store, far from the start: no hole for SEEK_DATA",
               chunk="1500", good_chunk="1999", size=32000, data=24000)
    where = array(store / "far-level", shape=[8000, 1], chunks=[4, 1], dimension_separator="/")
    for key in "01":
        (where / key).unlink()
    (where / "1500").symlink_to("../../outside/secret")
    corpus.add(store, "far-level", "chunk", "error", "as far, but the link stands for a level of chunk keys",
               chunk="1500.0", size=32000, data=0)
    chunk = array(store / "chunk-cycle") / "0"
    chunk.unlink()
    chunk.symlink_to("0")
    corpus.add(store, "chunk-cycle", "chunk", "error", "a chunk that is a link to itself", chunk="0", **TAIL)
    chunk = array(store / "chunk-dangling") / "0"
    chunk.unlink()
    chunk.symlink_to("gone")
    blank = hashlib.sha256(bytes(16) + RAW).hexdigest()
    corpus.add(store, "chunk-dangling", "chunk", "either",
               "a chunk that is a link to nothing: an error, or no such chunk", chunk="0", size=32, sha256=blank)


def names(corpus):
    store = corpus.store("paths.zarr")
    long = "n" * 255
    array(store / long)
    corpus.add(store, long, "array", "works", "a name of 255 bytes", name="255-bytes", chunk="0", **WORKS)
    corpus.add(store, "n" * 256, "lookup", "ENAMETOOLONG", "a name of 256 bytes, which no file has", name="256-bytes")
    array(store / "line\nfeed")
    corpus.add(store, "line\nfeed", "array", "either", "a line feed in a name: shown, or left out with a warning",
               chunk="0", name="line-feed", **WORKS)
    os.mkdir(os.fsencode(store) + b"/\xff\xfe")
    shutil.copytree(store / "healthy", os.path.join(os.fsdecode(os.fsencode(store) + b"/\xff\xfe"), "inner"))
    corpus.add(store, "", "group", "works",
               "a name that is not UTF-8: shown, or left out with a warning; the root lists", name="not-utf-8")

    # a path of 7,000 bytes, created one directory at a time
    array(store / "/".join(["deeper"] * 200) / "array")
    corpus.add(store, "/".join(["deeper"] * 200 + ["array"]), "array", "works", "an array below 200 groups",
               chunk="0", name="deep-200", **WORKS)
    back = os.open(".", os.O_RDONLY)
    os.chdir(store / "/".join(["deeper"] * 200))
    for _ in range(800):
        os.mkdir("deeper")
        os.chdir("deeper")
    pathlib.Path(".zgroup").write_text(GROUP)
    os.chdir(back)
    os.close(back)
    corpus.add(store, "/".join(["deeper"] * 1000), "lookup", "ENAMETOOLONG", "1,000 groups deep, beyond PATH_MAX",
               name="deep-1000")


def main():
    folder = pathlib.Path(sys.argv[1])
    committed = pathlib.Path(__file__).resolve().parent.parent / "data/hostile"
    if folder.exists():
        sys.exit(f"hostile.py: {folder} is there already")
    shutil.copytree(committed, folder)
    corpus = Corpus(folder, committed)
    for part in (odd_files, large_files, links, names):
        part(corpus)
    with open(folder / "cases.json", "w") as f:
        json.dump(corpus.manifest, f, indent=1)
    print(f"{folder}: {len(corpus.manifest['cases'])} cases")


if __name__ == "__main__":
    main()
