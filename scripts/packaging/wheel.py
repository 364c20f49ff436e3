#!/usr/bin/env python3
"""Makes a wheel from files that exist already; equal files give equal bytes.

Usage: wheel.py VERSION PLATFORM FOLDER WHEEL

FOLDER has the layout of the tarball: bin, share. PLATFORM has the platform tags, separated by dots.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "Mount a Zarr store: every compressed, chunked array as plain files"
LICENSES = ("LICENSE-APACHE", "LICENSE-MIT")


def metadata(version):
    lines = [
        "Metadata-Version: 2.4",
        "Name: zarrfs",
        f"Version: {version}",
        f"Summary: {SUMMARY}",
        "License-Expression: MIT OR Apache-2.0",
        *(f"License-File: {name}" for name in LICENSES),
        "License-File: third-party",
        "Classifier: Operating System :: POSIX :: Linux",
        "Requires-Python: >=3.6",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text(encoding="utf-8")


def contents(version, platform, folder):
    """Returns the members (name, bytes, mode), and the name of the member that lists them."""
    info = f"zarrfs-{version}.dist-info"
    data = f"zarrfs-{version}.data"
    members = []
    for path in sorted((ROOT / "packaging/python/zarrfs").glob("*.*")):
        members.append((f"zarrfs/{path.name}", path.read_bytes(), 0o644))
    members.append((f"{data}/scripts/zarrfs", (folder / "bin/zarrfs").read_bytes(), 0o755))
    for path in sorted(p for p in (folder / "share").rglob("*") if p.is_file()):
        # README.md is in the metadata, the licenses have another folder, and other documents are on the web
        if path.parts[len(folder.parts) + 1] != "doc":
            members.append((f"{data}/data/{path.relative_to(folder)}", path.read_bytes(), 0o644))
    documents = folder / "share/doc/zarrfs"
    for name in (*LICENSES, "third-party"):
        members.append((f"{info}/licenses/{name}", (documents / name).read_bytes(), 0o644))
    members.append((f"{info}/sboms/zarrfs.cdx.json", (documents / "zarrfs.cdx.json").read_bytes(), 0o644))
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in platform.split("."))
    wheel = f"Wheel-Version: 1.0\nGenerator: zarrfs scripts/packaging/wheel.py\nRoot-Is-Purelib: false\n{tags}"
    members.append((f"{info}/WHEEL", wheel.encode(), 0o644))
    members.append((f"{info}/METADATA", metadata(version).encode(), 0o644))
    return members, f"{info}/RECORD"


def write(target, members, record):
    lines = []
    # zip has no time before 1980
    moment = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)
    date = time.gmtime(moment)[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content, mode in members:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
            put(archive, name, content, mode, date)
        lines.append(f"{record},,\n")
        put(archive, record, "".join(lines).encode(), 0o644, date)


def put(archive, name, content, mode, date):
    entry = zipfile.ZipInfo(name, date)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = (0o100000 | mode) << 16
    archive.writestr(entry, content)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__.strip())
    version, platform, folder, target = sys.argv[1:]
    write(target, *contents(version, platform, Path(folder)))


if __name__ == "__main__":
    main()
