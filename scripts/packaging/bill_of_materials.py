#!/usr/bin/env python3
"""Lists the libraries that are part of the program: a CycloneDX document, and their license texts.

Usage: bill_of_materials.py TARGET BOM.json LICENSES.txt

It reads Cargo.lock and the sources that cargo has fetched, and builds nothing.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LICENSE_FILE = re.compile(r"(?i)(licen[sc]e|copying|notice|copyright|unlicense)([-._].*)?")
# folders of the crates that are not in the program, and licenses that do not apply because another one is
# offered
UNUSED_FOLDERS = {"benches", "contrib", "debian", "examples", "programs", "tests", "zlib-ng"}
NOT_CHOSEN = re.compile(r"GNU (LESSER |LIBRARY )?GENERAL PUBLIC LICENSE", re.IGNORECASE)


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked_crates(target):
    """Returns the names and versions of the crates that are linked into the program."""
    edges = "normal,no-proc-macro"
    options = ("--package", "zarrfs", "--locked", "--target", target, "--edges", edges)
    lines = cargo("tree", *options, "--prefix", "none", "--format", "{p}")
    return {tuple(line.split()[:2]) for line in lines.splitlines() if not line.startswith("zarrfs")}


def packages(target):
    """Returns zarrfs itself and the linked crates, in order, as `cargo metadata` describes them."""
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    by_name = {(p["name"], "v" + p["version"]): p for p in metadata["packages"]}
    own = next(p for p in metadata["packages"] if p["name"] == "zarrfs")
    return own, [by_name[crate] for crate in sorted(linked_crates(target))]


def license_texts(package):
    """Returns the license texts of a crate, and of the C sources in it."""
    folder = Path(package["manifest_path"]).parent
    texts = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in UNUSED_FOLDERS)
        for name in sorted(files):
            if LICENSE_FILE.fullmatch(name) and not name.endswith((".sh", ".rs", ".c", ".h")):
                text = Path(path, name).read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
                # xz and zstd have these licenses for other programs, or as an alternative
                if not NOT_CHOSEN.search(text[:600]):
                    texts.append(text.strip("\n"))
    own = ROOT / "packaging/licenses" / package["name"]
    if own.exists():
        texts.append(own.read_text().strip("\n"))
    if not texts and "Apache-2.0" not in package["license"]:
        sys.exit(f"{package['name']}: no license text; write packaging/licenses/{package['name']}")
    return texts


def toolchain():
    """Returns the parts of the compilers that are in the program: name, version, license."""
    rust = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[1]
    parts = [("rust-std", rust, "MIT OR Apache-2.0")]
    try:
        from importlib.metadata import version

        # the libunwind and compiler-rt of zig
        parts.append(("zig-runtime", version("ziglang"), "MIT AND Apache-2.0 WITH LLVM-exception"))
    except ImportError:
        pass
    return parts


def component(package):
    checksum = checksums().get((package["name"], package["version"]))
    return {
        "type": "library",
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
        **({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}),
    }


def checksums():
    """Returns the checksums of Cargo.lock by name and version."""
    lock = (ROOT / "Cargo.lock").read_text()
    entry = re.compile(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([^"]+)"')
    return {(name, version): checksum for name, version, checksum in entry.findall(lock)}


def bill(own, linked):
    tools = [
        {"type": "library", "name": name, "version": version, "licenses": [{"expression": expression}]}
        for name, version, expression in toolchain()
    ]
    main = {"type": "application", "name": "zarrfs", "version": own["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**main, "licenses": [{"expression": own["license"]}]}},
        "components": tools + [component(package) for package in linked],
    }


def text_of(linked):
    """Returns all license texts, each once, with the names of its crates."""
    lines = ["Libraries that are part of the program, and their licenses:", ""]
    lines += [f"{name} {version}  {expression}" for name, version, expression in toolchain()]
    lines += [f"{p['name']} {p['version']}  {p['license'].replace('/', ' OR ')}" for p in linked]
    # texts that differ in white space alone are the same
    users = {}
    for package in linked:
        for text in license_texts(package):
            names = users.setdefault(" ".join(text.split()), (text, []))[1]
            if package["name"] not in names:
                names.append(package["name"])
    for text, names in users.values():
        lines += ["", "=" * 80, ", ".join(names), "-" * 80, "", text]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip())
    own, linked = packages(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps(bill(own, linked), indent=2) + "\n")
    Path(sys.argv[3]).write_text(text_of(linked))


if __name__ == "__main__":
    main()
