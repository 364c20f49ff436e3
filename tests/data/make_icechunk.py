#!/usr/bin/env python3
"""Writes the Icechunk repositories in tests/data/icechunk/ and the digests that tests compare zarrfs with.

The committed repositories were written by these packages:

    v1-NAME (version 1 of the format)                           icechunk 1.1.21
    v2-NAME (version 2 of the format), v1-by-2x and migrated    icechunk 2.3.0

and zarr 3.4.2, numpy 2.5.5 and xarray 2026.9.0 with Python 3.13. Those of version 2 need Python 3.12 or newer. Make one
environment for each version, and run the script with both, version 1 first:

    python3 -m venv ice1 && ice1/bin/pip install icechunk==1.1.21 zarr==3.4.2 numpy==2.5.5 xarray==2026.9.0
    python3 -m venv ice2 && ice2/bin/pip install icechunk==2.3.0 zarr==3.4.2 numpy==2.5.5 xarray==2026.9.0
    ice1/bin/python make_icechunk.py write icechunk
    ice2/bin/python make_icechunk.py write icechunk
    ice2/bin/python make_icechunk.py verify icechunk

`write` replaces the repositories of the installed version and their entries in digests.json; names of repositories after
the folder restrict it to those. The identifiers and times differ in each run, the values do not. `verify` reads every
repository again, those of version 1 with the newer package too, and compares.

Chunks of the virtual repositories lie in icechunk/virtual/, and are referred to as file:///zarrfs-fixture/virtual/NAME
or http://127.0.0.1:18965/virtual/NAME. So `write` and `verify` need permission to create /zarrfs-fixture (while they run,
it has a link to the folder), and that port. This makes a virtual repository with references to another location:

    ice2/bin/python make_icechunk.py virtual --location file:///some/folder/ REPOSITORY

It also writes the files to refer to, if the location is a folder.
"""

import argparse
import contextlib
import datetime
import email.utils
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import threading
import time
import urllib.parse
import warnings

import icechunk
import numpy as np
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

zarr.config.set({"array.rectilinear_chunks": True})
MAJOR = int(icechunk.__version__.split(".")[0])
FOLDER = pathlib.Path("/zarrfs-fixture")
FILES = "file:///zarrfs-fixture/virtual/"
PORT = 18965
WEB = f"http://127.0.0.1:{PORT}/virtual/"
# the web server sends these for every file
ETAG = "zarrfs-fixture-1"
LAST_MODIFIED = datetime.datetime(2025, 6, 1, tzinfo=datetime.timezone.utc)
# local files are older than the first, and newer than the second, wherever the repository is checked out
DISTANT_FUTURE = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
DISTANT_PAST = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
# 10 packed chunks lie in values.bin, 40 in a file each
PACKED_CHUNKS = 10
SMALL_FILES = 40


# Helpers

def values(shape, dtype, seed=0, limit=100):
    """Returns an array of values that depend on nothing but the arguments, from 1 to `limit`."""
    count = int(np.prod(shape))
    hashes = (np.arange(count, dtype=np.uint64) + np.uint64(1 + seed * 1000)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (hashes >> np.uint64(40)).astype(np.int64) % limit + 1
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        result = numbers % 2 == 1
    elif dtype.kind == "c":
        result = numbers + 1j * (numbers % 7)
    elif dtype.kind == "f":
        result = numbers / 4
    elif dtype.kind in "US":
        result = np.array([f"s{number}" for number in numbers])
    else:
        result = numbers
    return np.asarray(result).astype(dtype).reshape(shape)


def create(folder, spec, *, inline=None, containers=(), manifest=None):
    """Creates a repository. A container is a tuple: prefix of the locations, store, name (only kept by version 2)."""
    config = icechunk.RepositoryConfig.default()
    if inline is not None:
        config.inline_chunk_threshold_bytes = inline
    if manifest is not None:
        config.manifest = manifest
    for prefix, store, name in containers:
        name = {"name": name} if spec == 2 else {}
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, **name))
    options = {"spec_version": spec} if MAJOR >= 2 else {}
    shutil.rmtree(folder, ignore_errors=True)
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(folder)),
        config,
        authorize_virtual_chunk_access=authorize(prefix for prefix, _, _ in containers),
        **options,
    )
    repository.save_config()
    return repository


def open_repository(folder):
    """Opens a repository that may refer to the files, or to the web server, of this script."""
    storage = icechunk.local_filesystem_storage(str(folder))
    config = icechunk.Repository.fetch_config(storage)
    containers = (config.virtual_chunk_containers or {}) if config else {}
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=authorize(containers))


def authorize(prefixes):
    """Allows access to chunks at locations with these prefixes, without credentials."""
    return icechunk.containers_credentials({prefix: None for prefix in prefixes})


def array(store, name, shape, chunks, dtype="int32", *, data=True, seed=0, limit=100, **options):
    """Creates an array and, unless `data` is false, writes all of it."""
    options.setdefault("compressors", None)
    created = zarr.create_array(store, name=name, shape=shape, chunks=chunks, dtype=dtype, **options)
    if data:
        created[...] = values(shape, created.dtype, seed, limit)
    return created


@contextlib.contextmanager
def commit(repository, message, branch="main", pause=0.0, **options):
    """Gives a writable store, and commits what was written to it."""
    session = repository.writable_session(branch)
    yield session.store
    session.commit(message, **options)
    time.sleep(pause)


# Repositories

def make_types(folder, spec):
    """Types, codecs, layouts, fill values: one commit, chunks inline and native."""
    repository = create(folder, spec)
    with commit(repository, "Write arrays of each type and codec") as store:
        zarr.create_group(store, attributes={"title": "types and codecs", "nested": {"list": [1, 2.5, None, "é"]}})
        zarr.create_group(store, path="types", attributes={})
        for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                     "float16", "float32", "float64", "complex64", "complex128"):
            array(store, f"types/{name}", (5, 4), (2, 3), name)
        with warnings.catch_warnings():
            # these types have no final specification in Zarr
            warnings.simplefilter("ignore")
            array(store, "types/datetime64", (5,), (2,), "datetime64[s]")
            array(store, "types/timedelta64", (5,), (2,), "timedelta64[ms]")
            array(store, "types/unicode", (5,), (2,), "<U4")
            array(store, "types/bytes", (5,), (2,), "S4")
            strings = zarr.create_array(store, name="types/string", shape=(3,), chunks=(2,), dtype=str, compressors=None)
            strings[...] = np.array(["plain", "", "Ωmega"], dtype=object)

        zarr.create_group(store, path="codecs")
        # 2 × 2 chunks of 1,200 bytes, above the threshold of 512 bytes also when they are compressed
        big = dict(shape=(38, 28), chunks=(20, 15), dtype="float32", limit=1 << 20)
        array(store, "codecs/none", **big)
        array(store, "codecs/zstd", **big, compressors=ZstdCodec(level=5))
        array(store, "codecs/zstd-checksum", **big, compressors=ZstdCodec(level=1, checksum=True))
        array(store, "codecs/gzip", **big, compressors=GzipCodec(level=5))
        array(store, "codecs/blosc-lz4", **big, compressors=BloscCodec(cname="lz4", shuffle="shuffle", typesize=4))
        array(store, "codecs/blosc-zstd", **big, compressors=BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=4))
        array(store, "codecs/crc32c", **big, compressors=Crc32cCodec())
        array(store, "codecs/gzip-crc32c", **big, compressors=[GzipCodec(level=1), Crc32cCodec()])
        array(store, "codecs/big-endian", **big, serializer=BytesCodec(endian="big"))
        array(store, "codecs/transpose", **big, filters=TransposeCodec(order=(1, 0)), compressors=ZstdCodec(level=1))
        array(store, "codecs/sharding", (38, 36), (8, 10), "float32", shards=(24, 20), limit=1 << 20,
              compressors=ZstdCodec(level=1))
        array(store, "codecs/sharding-start", (38, 36), (24, 20), "int16", limit=1 << 14,
              serializer=ShardingCodec(chunk_shape=(8, 10), codecs=[BytesCodec(), GzipCodec(level=1)],
                                       index_codecs=[BytesCodec(), Crc32cCodec()], index_location="start"))
        sparse = array(store, "codecs/sharding-sparse", (48, 40), (8, 10), "int32", shards=(24, 20), data=False,
                       fill_value=-1)
        sparse[0:8, 0:10] = values((8, 10), "int32")

        zarr.create_group(store, path="layout")
        array(store, "layout/scalar", (), (), "float64")
        array(store, "layout/scalar-uninitialized", (), (), "int16", data=False, fill_value=7)
        array(store, "layout/uninitialized", (6, 5), (2, 2), "float32", data=False, fill_value=float("nan"))
        array(store, "layout/no-elements", (0, 3), (1, 3), "int32", data=False)
        missing = array(store, "layout/missing-chunks", (6, 6), (2, 2), "int32", data=False, fill_value=-99)
        missing[2:4, 2:4] = values((2, 2), "int32")
        missing[4:, :2] = values((2, 2), "int32", 1)
        infinite = array(store, "layout/infinite-fill", (4,), (2,), "float64", data=False, fill_value=float("-inf"))
        infinite[:2] = [1.5, -2.5]
        # kept, although all elements are the fill value
        array(store, "layout/written-fill", (4,), (2,), "int32", data=False, fill_value=3,
              config={"write_empty_chunks": True})[...] = 3
        array(store, "layout/chunk-larger", (3, 3), (8, 8), "uint16")
        array(store, "layout/single-elements", (2, 3), (1, 1), "int64")
        array(store, "layout/four-dimensions", (3, 2, 4, 5), (2, 1, 3, 2), "int16")
        array(store, "layout/named", (4, 6), (2, 6), "float32", dimension_names=["y", "x"],
              attributes={"units": "K", "valid_range": [0, 400], "long_name": "Température"})
        array(store, "layout/half-named", (4, 6), (2, 6), "float32", dimension_names=["y", None])
        # the first chunk is native, the second is inline after compression
        mixed = array(store, "layout/mixed", (400,), (200,), "int64", compressors=ZstdCodec(level=1), data=False)
        mixed[:200] = values((200,), "int64", 0, 1 << 24)
        mixed[200:] = 5
        if spec == 2:
            # version 1 of the package knows regular chunks only
            array(store, "layout/rectilinear", (10, 6), ((1, 4, 5), (2, 4)), "int32")
        array(store, "layout/bool-fill", (4,), (2,), "bool", data=False, fill_value=True)[:2] = [False, True]


def make_names(folder, spec):
    """Names of nodes that order, escape or resemble keys in unusual ways."""
    repository = create(folder, spec)
    with commit(repository, "Names") as store:
        zarr.create_group(store)
        # byte order of paths puts a-b between a and a/b
        for seed, name in enumerate(("a/b", "a-b", "a/b-c", "ab", "a b", "c", "c-group/c/c", "0",
                                     "deep/1/2/3/4/5/6/7/8/9/x", "Ünïcode/温度", "percent%20", "dot.name", "question?",
                                     "quote'\"", "x" * 200)):
            array(store, name, (3,), (2,), "int16", seed=seed)
    # in version 1 the package encodes this in the name of a folder, and does not decode it when it lists tags
    repository.create_tag("été", repository.lookup_branch("main"))
    repository.create_tag("plain tag", repository.lookup_branch("main"))
    if spec == 2:
        repository.create_branch("50% – done", repository.lookup_branch("main"))


def make_root(folder, spec):
    """An array at the root."""
    repository = create(folder, spec)
    with commit(repository, "An array is the root") as store:
        array(store, "", (5, 3), (2, 3), "int32")


def make_empty(folder, spec):
    """Nothing but the first snapshot."""
    create(folder, spec)


def make_inline(folder, spec):
    """Chunks just below, at and above the threshold of the configuration: first 64 bytes, then 0."""
    repository = create(folder, spec, inline=64)
    with commit(repository, "Sizes about the threshold") as store:
        zarr.create_group(store)
        for size in (1, 63, 64, 65, 128):
            array(store, f"size-{size}", (3 * size,), (size,), "uint8")
    config = repository.config
    config.inline_chunk_threshold_bytes = 0
    repository = icechunk.Repository.open(repository.storage, config)
    with commit(repository, "All chunks native") as store:
        array(store, "native", (6,), (2,), "uint8")


def make_split(folder, spec):
    """Arrays whose references are spread over several manifests."""
    conditions = icechunk.ManifestSplitCondition
    dimensions = icechunk.ManifestSplitDimCondition
    splitting = icechunk.ManifestSplittingConfig.from_dict({
        conditions.name_matches("by-axis"): {dimensions.Axis(0): 2, dimensions.Axis(1): 3},
        conditions.name_matches("by-name"): {dimensions.DimensionName("time"): 3},
        conditions.AnyArray(): {dimensions.Any(): 4},
    })
    repository = create(folder, spec, manifest=icechunk.ManifestConfig(splitting=splitting))
    with commit(repository, "Split manifests") as store:
        zarr.create_group(store)
        array(store, "by-axis", (10, 9), (2, 1), "int32")
        array(store, "by-name", (8, 4), (1, 2), "float32", dimension_names=["time", "x"])
        array(store, "by-any", (9, 2, 10), (1, 1, 3), "int16")
        array(store, "sparse", (64,), (1,), "int16", data=False)[[3, 40]] = [5, 6]
        array(store, "scalar", (), (), "int8")
    with commit(repository, "Change one manifest of each") as store:
        group = zarr.open_group(store)
        group["by-axis"][0:2, 0:1] = 77
        group["by-name"][7] = 1.25
        group["by-any"][8, 1, 9] = -5
    with commit(repository, "Append and delete chunks") as store:
        group = zarr.open_group(store)
        group["by-name"].resize((11, 4))
        group["by-name"][8:] = values((3, 4), "float32", 9)
        group["by-axis"].resize((6, 9))
        # the chunks of the fill value are removed
        group["by-any"][0] = 0


def make_xarray(folder, spec):
    """A dataset of xarray, appended to along the time, with a second group."""
    repository = create(folder, spec)

    def dataset(start, count, seed):
        time_values = np.datetime64("2024-01-01") + np.arange(start, start + count).astype("timedelta64[D]")
        return xr.Dataset(
            {
                "temperature": (("time", "lat", "lon"), values((count, 3, 4), "float32", seed) + 270, {"units": "K"}),
                "packed": (("time", "lat", "lon"), values((count, 3, 4), "float64", seed), {"units": "1"}),
                "mask": (("lat", "lon"), values((3, 4), "bool")),
                "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            },
            coords={
                "time": ("time", time_values.astype("datetime64[ns]"), {"standard_name": "time"}),
                "lat": ("lat", np.array([-10.0, 0.0, 10.0]), {"units": "degrees_north"}),
                "lon": ("lon", np.array([0.0, 90.0, 180.0, 270.0]), {"units": "degrees_east"}),
            },
            attrs={"Conventions": "CF-1.8", "title": "fixture"},
        )

    encoding = {
        "temperature": {"chunks": (2, 3, 4)},
        "packed": {"chunks": (2, 3, 2), "dtype": "int16", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -32768},
        "time": {"units": "days since 2024-01-01", "dtype": "int64", "chunks": (4,)},
    }
    with commit(repository, "Write the first three days") as store:
        dataset(0, 3, 1).to_zarr(store, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
    with commit(repository, "Append two days") as store:
        dataset(3, 2, 2).to_zarr(store, append_dim="time", consolidated=False)
    with commit(repository, "Add a group") as store:
        dataset(0, 2, 3).to_zarr(store, group="other/place", mode="w", zarr_format=3, consolidated=False)


def make_history(folder, spec):
    """Branches, tags, conflicts, deleted and recreated nodes, resized arrays; in version 2 also moves and amended commits.

    Commits of the branch main lie at least 1.1 seconds apart, so that times of whole seconds tell them apart.
    """
    pause = 1.1
    repository = create(folder, spec)
    with commit(repository, "Create", pause=pause) as store:
        zarr.create_group(store, attributes={"step": 1})
        array(store, "temperature", (4, 6), (2, 3), "float32", dimension_names=["time", "x"])
        array(store, "group/a", (8,), (4,), "int32")
        array(store, "group/b/c", (3,), (2,), "int16")
    first = repository.lookup_branch("main")
    with commit(repository, "Append three times\n\nAlong the first dimension.", pause=pause) as store:
        group = zarr.open_group(store)
        group["temperature"].resize((7, 6))
        group["temperature"][4:] = values((3, 6), "float32", 4)
        group.attrs["step"] = 2
    second = repository.lookup_branch("main")
    repository.create_tag("v1", second)
    repository.create_tag("doomed", first)
    repository.delete_tag("doomed")
    repository.create_branch("dev", second)
    with commit(repository, "Work on dev", branch="dev") as store:
        zarr.open_group(store)["group/a"][:2] = [1000, 1001]
        array(store, "dev-only", (4,), (2,), "uint8")
    with commit(repository, "More work on dev", branch="dev") as store:
        zarr.open_group(store)["dev-only"].resize((6,))

    # two sessions begin at the same snapshot; the second is rebased
    one = repository.writable_session("main")
    two = repository.writable_session("main")
    zarr.open_group(one.store)["group/a"][0] = 11
    zarr.open_group(two.store)["group/a"][7] = 22
    one.commit("One of two writers", metadata={"author": "one", "number": 3, "list": [1, "two", None], "flag": True})
    time.sleep(pause)
    try:
        two.commit("The other writer")
        raise RuntimeError("the second writer had no conflict")
    except icechunk.ConflictError:
        two.rebase(icechunk.ConflictDetector())
        two.commit("The other writer, rebased")
    time.sleep(pause)

    # a session divided over two writers, and merged
    session = repository.writable_session("main")
    forks = [session.fork(), session.fork()]
    for number, fork in enumerate(forks):
        zarr.open_group(fork.store)["temperature"][number * 2] = number - 0.5
    session.merge(*forks)
    session.commit("Merge two forks")
    time.sleep(pause)

    with commit(repository, "Delete a group", pause=pause) as store:
        del zarr.open_group(store)["group/b"]
    with commit(repository, "Recreate an array at its path with another type 🧊", pause=pause) as store:
        array(store, "group/b/c", (2, 2), (1, 2), "float64", seed=3)
    with commit(repository, "Shrink and grow", pause=pause) as store:
        temperature = zarr.open_group(store)["temperature"]
        temperature.resize((3, 6))
        temperature.resize((9, 5))
    with commit(repository, "Overwrite an array", pause=pause) as store:
        array(store, "group/a", (5,), (5,), "int8", overwrite=True, seed=5)
    repository.create_tag("v2.0 final", repository.lookup_branch("main"))

    if spec == 2:
        # such a session can move nodes, and nothing else
        session = repository.rearrange_session("main")
        session.move("/group", "/renamed")
        session.commit("Move a group")
        time.sleep(pause)
        session = repository.rearrange_session("main")
        session.move("/renamed/a", "/a-moved")
        session.move("/temperature", "/renamed/a")
        session.commit("Move an array, and another to its old path")
        time.sleep(pause)
        with commit(repository, "Tyop", pause=pause) as store:
            array(store, "shifted", (6, 4), (2, 2), "int32")
        session = repository.writable_session("main")
        array(session.store, "amended", (2,), (2,), "int8")
        session.amend("Typo, amended")
        time.sleep(pause)
        session = repository.writable_session("main")
        session.shift_array("/shifted", (1, 0))
        session.commit("Shift the chunks of an array")
        time.sleep(pause)
        session = repository.writable_session("main")
        session.reindex_array("/shifted", lambda index: [(index[0] + 1) % 3, index[1]],
                              lambda index: [(index[0] - 1) % 3, index[1]])
        session.commit("Rotate the chunks of an array")
        time.sleep(pause)

    # a snapshot of a branch that is deleted, kept by a tag
    repository.create_branch("gone", second)
    with commit(repository, "Kept by a tag only", branch="gone") as store:
        array(store, "tagged-only", (2,), (2,), "int32")
    repository.create_tag("keeper", repository.lookup_branch("gone"))
    repository.delete_branch("gone")
    # a branch moved back
    repository.create_branch("reset", repository.lookup_branch("main"))
    repository.reset_branch("reset", second)
    # a snapshot that is on no branch
    session = repository.writable_session("main")
    array(session.store, "detached", (2,), (2,), "int32")
    session.flush("On no branch")
    if spec == 2:
        repository.create_branch("team/feature", second)
        repository.set_metadata({"owner": "zarrfs", "level": 2})
    repository.rewrite_manifests("Rewrite the manifests", branch="main")
    # backups of the repo file, which are larger than all the rest, and which no reader needs
    shutil.rmtree(folder / "overwritten", ignore_errors=True)
    return {"deleted tags": ["doomed"]}


def make_expired(folder, spec):
    """Snapshots that were expired and garbage-collected, others that are only kept by a tag or a branch."""
    repository = create(folder, spec, inline=16)
    identifiers = []
    for number in range(7):
        with commit(repository, f"Commit {number}", pause=0.05) as store:
            if number == 0:
                zarr.create_group(store)
                array(store, "kept", (6,), (3,), "int64")
                array(store, "changed", (16,), (8,), "int32")
                array(store, "deleted", (16,), (8,), "int32")
            else:
                group = zarr.open_group(store)
                group["changed"][...] = values((16,), "int32", number)
                group["deleted"].resize((16 + number,))
                if number == 5:
                    del group["deleted"]
                    array(store, "deleted", (3,), (3,), "int16")
        identifiers.append(repository.lookup_branch("main"))
        if number == 1:
            repository.create_tag("old", identifiers[1])
        if number == 2:
            repository.create_branch("old-branch", identifiers[2])
    times = {info.id: info.written_at for info in repository.ancestry(branch="main")}
    limit = times[identifiers[4]]
    expired = sorted(repository.expire_snapshots(limit))
    summary = repository.garbage_collect(limit)
    print(f"    {len(expired)} snapshots expired, {summary.snapshots_deleted} of them deleted")
    return {"expired": expired}


def virtual_files(folder):
    """Writes the files that virtual references point into. Every one holds little-endian 16-bit integers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "many").mkdir(exist_ok=True)
    # 100 bytes that are no chunk, and the chunks of 4 × 4 elements
    packed = b"\xee" * 100 + values((PACKED_CHUNKS, 4, 4), "<i2").tobytes()
    (folder / "values.bin").write_bytes(packed)
    (folder / "with space+plus%25.bin").write_bytes(values((16,), "<i2", 8).tobytes())
    for number in range(SMALL_FILES):
        (folder / "many" / f"{number:03}.bin").write_bytes(values((16,), "<i2", number).tobytes())


def make_virtual(folder, spec, location=FILES, store=None):
    """Virtual references with and without checksums, among native and inline chunks; broken ones in arrays of their own."""
    store = store or icechunk.local_filesystem_store("/")
    repository = create(folder, spec, containers=[(location, store, "fixture")])
    plain = f"{location}values.bin"

    def references(store, name, *, location=plain, offset=100, chunks=2, length=32, checksum=None):
        array(store, name, (4 * chunks, 4), (4, 4), "int16", data=False, fill_value=-1)
        for number in range(chunks):
            store.set_virtual_ref(f"{name}/c/{number}/0", location, offset=offset + 32 * number, length=length,
                                  checksum=checksum, validate_container=False)

    with commit(repository, "Virtual references") as writable:
        zarr.create_group(writable)
        references(writable, "plain")
        references(writable, "newer-allowed", checksum=DISTANT_FUTURE if location.startswith("file:") else LAST_MODIFIED)
        if location.startswith("http:"):
            references(writable, "etag", checksum=ETAG)
            references(writable, "etag-quoted", checksum=f'"{ETAG}"')
        references(writable, "space", location=f"{location}with%20space+plus%2525.bin", offset=0, chunks=1)
        # virtual, inline, native and missing chunks in one array, the last chunk of the file among them
        mixed = array(writable, "mixed", (80, 4), (4, 4), "int16", data=False, fill_value=-1)
        mixed[0:4] = 5
        for number in (2, 3, PACKED_CHUNKS - 1):
            writable.set_virtual_ref(f"mixed/c/{number}/0", plain, offset=100 + 32 * number, length=32)
        specs = [icechunk.VirtualChunkSpec([number, 0], plain, 100 + 32 * number, 32) for number in range(PACKED_CHUNKS)]
        array(writable, "several", (4 * PACKED_CHUNKS, 4), (4, 4), "int16", data=False)
        assert not writable.set_virtual_refs("several", specs)
        if spec == 2:
            references(writable, "relative", location="vcc://fixture/values.bin")
        zarr.create_group(writable, path="broken")
        references(writable, "broken/date", checksum=DISTANT_PAST)
        references(writable, "broken/etag", checksum="not-this-one")
        references(writable, "broken/absent", location=f"{location}absent.bin")
        references(writable, "broken/short", offset=100 + 32 * (PACKED_CHUNKS - 1))
        references(writable, "broken/outside", location="file:///etc/hostname", offset=0, chunks=1)
        references(writable, "broken/dots", location=f"{location}../../etc/hostname", offset=0, chunks=1)
        if spec == 2:
            references(writable, "broken/no-container", location="vcc://nobody/values.bin")
    with commit(repository, "Overwrite a virtual chunk") as writable:
        zarr.open_group(writable)["several"][0:4] = 1


def make_web(folder, spec):
    """The same with references to a web server."""
    make_virtual(folder, spec, WEB, icechunk.http_store())


def make_locations(folder, spec):
    """Many virtual locations. Version 2 compresses them with a dictionary, by default from 1,000 in a manifest on."""
    manifest = None
    if MAJOR >= 2:
        compression = icechunk.ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=SMALL_FILES)
        manifest = icechunk.ManifestConfig(virtual_chunk_location_compression=compression)
    store = icechunk.local_filesystem_store("/")
    repository = create(folder, spec, containers=[(FILES, store, "fixture")], manifest=manifest)
    with commit(repository, "One file for each chunk") as writable:
        zarr.create_group(writable)
        for name, prefix in (("absolute", FILES), ("relative", "vcc://fixture/")):
            if name == "relative" and spec == 1:
                continue
            array(writable, name, (SMALL_FILES, 16), (1, 16), "int16", data=False)
            specs = [icechunk.VirtualChunkSpec([number, 0], f"{prefix}many/{number:03}.bin", 0, 32)
                     for number in range(SMALL_FILES)]
            assert not writable.set_virtual_refs(name, specs)
        # each chunk is one value of a file: 1,280 references, some of them with a date
        array(writable, "elements", (32, 40), (1, 1), "int16", data=False)
        specs = [
            icechunk.VirtualChunkSpec([row, column], f"{FILES}many/{column:03}.bin", 2 * (row % 16), 2,
                                      last_updated_at_checksum=DISTANT_FUTURE if column % 2 else None)
            for row in range(32) for column in range(40)
        ]
        assert not writable.set_virtual_refs("elements", specs)
        # as few as are not compressed
        array(writable, "few", (4, 16), (1, 16), "int16", data=False)
        specs = [icechunk.VirtualChunkSpec([number, 0], f"{FILES}many/{number:03}.bin", 0, 32) for number in range(4)]
        assert not writable.set_virtual_refs("few", specs)
    with commit(repository, "Overwrite one chunk of each") as writable:
        group = zarr.open_group(writable)
        group["absolute"][0] = 1
        group["elements"][0, 0] = 2


def make_unavailable(folder, spec):
    """A repository of version 2 that was made read-only."""
    repository = create(folder, spec)
    with commit(repository, "Write") as store:
        zarr.create_group(store)
        array(store, "a", (4,), (2,), "int32")
    availability = icechunk.RepoAvailability.read_only
    repository.set_status(icechunk.RepoStatus(availability, limited_availability_reason="moved elsewhere"))


def make_by_2x(folder, spec):
    """Version 1 of the format as the package of version 2 writes it."""
    repository = create(folder, spec)
    with commit(repository, "Written by the newer package") as store:
        zarr.create_group(store, attributes={"step": 1})
        # the snapshot has a length of 5 for the chunks, since the package divides the elements by the number of chunks
        array(store, "uneven", (9,), (6,), "int32")
        array(store, "group/native", (20, 20), (20, 20), "float64", compressors=GzipCodec(level=1))
        array(store, "scalar", (), (), "float32")
        array(store, "uninitialized", (5,), (2,), "float32", data=False, fill_value=1.5)
    with commit(repository, "Append", metadata={"author": "someone"}) as store:
        group = zarr.open_group(store)
        group["uneven"].resize((13,))
        group["uneven"][9:] = values((4,), "int32", 2)
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("dev", repository.lookup_branch("main"))


def make_migrated(folder, spec):
    """The history of version 1, migrated to version 2 and continued: snapshots and manifests of both versions.

    The references of version 1 are kept, as an option of the migration allows. They are out of date.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.parent / "v1-history", folder)
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    repository = icechunk.upgrade_icechunk_repository(repository, dry_run=False, delete_unused_v1_files=False)
    with commit(repository, "After the migration") as store:
        zarr.open_group(store)["group/a"][1] = 99
        array(store, "since", (4, 4), (2, 3), "int32")
    return {"deleted tags": ["doomed"]}


# of each: version of the package, version of the format
REPOSITORIES = {
    **{f"v1-{name}": (1, 1, make) for name, make in (
        ("types", make_types), ("names", make_names), ("root", make_root), ("empty", make_empty), ("inline", make_inline),
        ("split", make_split), ("xarray", make_xarray), ("history", make_history), ("expired", make_expired),
        # no web: version 1 of the package drops the port of a location
        ("virtual", make_virtual), ("locations", make_locations))},
    **{f"v2-{name}": (2, 2, make) for name, make in (
        ("types", make_types), ("names", make_names), ("root", make_root), ("empty", make_empty), ("inline", make_inline),
        ("split", make_split), ("xarray", make_xarray), ("history", make_history), ("expired", make_expired),
        ("virtual", make_virtual), ("web", make_web), ("locations", make_locations), ("unavailable", make_unavailable))},
    "v1-by-2x": (2, 1, make_by_2x),
    "migrated": (2, 2, make_migrated),
}


# Digests

def digest(node):
    """Returns the SHA-256 of the elements of an array: little-endian, in C order, nothing between them."""
    elements = np.asarray(node[...])
    if elements.dtype.kind in "OT":
        return {"sha256": None, "why": "strings of variable length have no fixed bytes"}
    elements = np.ascontiguousarray(elements.astype(elements.dtype.newbyteorder("<")))
    return {"sha256": hashlib.sha256(elements.tobytes()).hexdigest()}


def describe_array(session, path, node):
    """Returns the shape, type, digest and number of chunks of an array."""
    # the data type as zarr.json has it
    entry = {"shape": list(node.shape), "dtype": node.metadata.to_dict()["data_type"]}
    try:
        entry |= digest(node)
    except (icechunk.IcechunkError, OSError, ValueError) as error:
        lines = [line.strip(" x") for line in str(error).splitlines() if line.strip()]
        entry |= {"sha256": None, "error": lines[0][:90] if lines else type(error).__name__}

    async def coordinates():
        return [coordinate async for coordinate in session.chunk_coordinates(path)]

    kinds = {}
    for coordinate in zarr.core.sync.sync(coordinates()):
        kind = str(session.chunk_type(path, coordinate)).split(".")[-1].lower()
        kinds[kind] = kinds.get(kind, 0) + 1
    return entry | {"chunks": kinds}


def describe_snapshot(repository, info):
    """Returns the nodes of a snapshot."""
    session = repository.readonly_session(snapshot_id=info.id)
    entry = {"parent": info.parent_id, "message": info.message, "time": info.written_at.isoformat(),
             "metadata": info.metadata, "groups": {}, "arrays": {}}

    async def documents():
        prototype = zarr.core.buffer.default_buffer_prototype()
        keys = [key async for key in session.store.list() if key == "zarr.json" or key.endswith("/zarr.json")]
        return {key: (await session.store.get(key, prototype)).to_bytes() for key in keys}

    for key, document in sorted(zarr.core.sync.sync(documents()).items()):
        path = "/" + key.removesuffix("zarr.json").strip("/")
        # the begin is enough for tests to notice another document than the stored one
        metadata = hashlib.sha256(document).hexdigest()[:16]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = zarr.open(session.store, path=path.strip("/"), mode="r", zarr_format=3)
        if isinstance(node, zarr.Array):
            entry["arrays"][path] = describe_array(session, path, node) | {"zarr.json": metadata}
        else:
            entry["groups"][path] = metadata
    return entry


def describe(folder):
    """Returns the history of a repository, and its arrays in each snapshot."""
    repository = open_repository(folder)
    branches = {name: repository.lookup_branch(name) for name in sorted(repository.list_branches())}
    tags = {name: repository.lookup_tag(name) for name in sorted(repository.list_tags())}
    infos = {}
    for identifier in [*branches.values(), *tags.values()]:
        for info in repository.ancestry(snapshot_id=identifier):
            infos[info.id] = info
    reachable = set(infos)
    # snapshots on no branch; version 2 does not know those that were amended
    unknown = []
    for file in sorted((folder / "snapshots").iterdir()):
        if file.name not in infos:
            try:
                infos[file.name] = repository.lookup_snapshot(file.name)
            except icechunk.IcechunkError:
                unknown.append(file.name)
    entry = {
        "format": 2 if (folder / "repo").exists() else 1,
        "packages": {package.__name__: package.__version__ for package in (icechunk, zarr, np, xr)},
        "branches": branches,
        "tags": tags,
        "unknown": unknown,
        "snapshots": {},
    }
    for info in sorted(infos.values(), key=lambda info: info.written_at):
        entry["snapshots"][info.id] = describe_snapshot(repository, info)
        if info.id not in reachable:
            entry["snapshots"][info.id]["detached"] = True
    return entry


# Files and the web server that references point to

class Handler(http.server.BaseHTTPRequestHandler):
    """Sends ranges of the virtual files, with a fixed entity tag and date, which it also compares."""

    folder = pathlib.Path()
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = urllib.parse.unquote(self.path.removeprefix("/virtual/"))
        path = self.folder / name
        if not self.path.startswith("/virtual/") or ".." in name or not path.is_file():
            return self.reply(404, b"")
        match = self.headers.get("If-Match")
        since = self.headers.get("If-Unmodified-Since")
        if match is not None and match.strip('"') != ETAG:
            return self.reply(412, b"")
        if since is not None and email.utils.parsedate_to_datetime(since) < LAST_MODIFIED:
            return self.reply(412, b"")
        data = path.read_bytes()
        requested = self.headers.get("Range")
        if requested is None:
            return self.reply(200, data)
        start, _, end = requested.removeprefix("bytes=").partition("-")
        start, end = int(start), min(int(end) + 1 if end else len(data), len(data))
        if start >= len(data):
            return self.reply(416, b"")
        return self.reply(206, data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    do_HEAD = do_GET

    def reply(self, status, data, headers=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{ETAG}"')
        self.send_header("Last-Modified", email.utils.format_datetime(LAST_MODIFIED, usegmt=True))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    """Makes the virtual files available at the locations that the repositories refer to."""
    virtual_files(folder / "virtual")
    FOLDER.mkdir(exist_ok=True)
    link = FOLDER / "virtual"
    if not link.exists():
        link.symlink_to((folder / "virtual").resolve())
    Handler.folder = folder / "virtual"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        link.unlink()
        FOLDER.rmdir()


# Commands

def pretty(value, depth=0):
    """Formats the digests with one line for each array, so that changes are readable."""
    if not isinstance(value, dict) or depth == 5 or not any(isinstance(item, dict) for item in value.values()):
        return json.dumps(value, ensure_ascii=False)
    lines = (f"{json.dumps(key, ensure_ascii=False)}: {pretty(item, depth + 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(" " * (depth + 1) + line for line in lines) + "\n" + " " * depth + "}"


def write(folder, only):
    folder.mkdir(parents=True, exist_ok=True)
    digests_path = folder / "digests.json"
    digests = json.loads(digests_path.read_text()) if digests_path.exists() else {}
    with served(folder):
        for name, (package, spec, make) in REPOSITORIES.items():
            if package != MAJOR or (only and name not in only):
                continue
            print(name)
            more = make(folder / name, spec) or {}
            digests[name] = describe(folder / name) | more
    digests_path.write_text(pretty(dict(sorted(digests.items()))) + "\n")


def verify(folder, only):
    digests = json.loads((folder / "digests.json").read_text())
    failed = False
    with served(folder):
        for name, expected in digests.items():
            if (only and name not in only) or (MAJOR < expected["format"]):
                continue
            found = describe(folder / name)
            same = all(found[key] == expected[key] for key in ("format", "branches", "tags"))
            differences = [] if same else ["references"]
            for identifier in sorted(set(expected["snapshots"]) | set(found["snapshots"])):
                one, two = expected["snapshots"].get(identifier), found["snapshots"].get(identifier)
                if one is None or two is None:
                    differences.append(identifier)
                    continue
                for key in sorted(set(one) | set(two)):
                    if key != "arrays" and one.get(key) != two.get(key):
                        differences.append(f"{identifier} {key}: {one.get(key)} {two.get(key)}")
                for path in sorted(set(one["arrays"]) | set(two["arrays"])):
                    left, right = (dict(side["arrays"].get(path, {})) for side in (one, two))
                    # messages differ between the versions of the package, not whether there is one
                    for side in (left, right):
                        side["error"] = "error" in side
                    if left != right:
                        differences.append(f"{identifier} {path}: {left} {right}")
            print(name, "differs" if differences else "as recorded", *differences, sep="\n    " if differences else " ")
            failed |= bool(differences)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description="Writes the Icechunk repositories that tests use.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "verify"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=pathlib.Path)
        command.add_argument("only", nargs="*", help="names of repositories, all by default")
    command = commands.add_parser("virtual")
    command.add_argument("--location", required=True, help="URL that ends in a slash: file:///folder/ or http://host/path/")
    command.add_argument("--format", type=int, default=MAJOR, choices=(1, 2))
    command.add_argument("repository", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "write":
        return write(options.folder, options.only)
    if options.command == "verify":
        return verify(options.folder, options.only)
    if options.location.startswith("file://"):
        virtual_files(pathlib.Path(options.location.removeprefix("file://")))
        make_virtual(options.repository, options.format, options.location)
    else:
        make_virtual(options.repository, options.format, options.location, icechunk.http_store())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
