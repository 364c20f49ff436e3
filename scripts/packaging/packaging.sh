# Functions that scripts/package and scripts/release share. Sourced after lib.sh, in the root of the checkout.
# shellcheck shell=bash disable=SC2154 # lib.sh sets root

# Cargo.toml names this folder, independent of CARGO_TARGET_DIR
made=$root/target/package
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH

# make_files PROGRAM TRIPLE: writes the files beside the program: manual pages, completions, links, licenses. PROGRAM
# runs on this machine, TRIPLE is the target of the package
make_files() {
    local program=$1 triple=$2 name verb
    rm -rf "$made"
    mkdir -p "$made"/{sbin,man1,man8,completions}
    for name in mount.zarrfs mount.fuse.zarrfs umount.fuse.zarrfs; do
        verb=${name%%.*}
        ln -s ../bin/zarrfs "$made/sbin/$name"
        ln -s "../man1/zarrfs-$verb.1.gz" "$made/man8/$name.8.gz"
    done
    "$program" man --all "$made/man1"
    "$program" completions bash >"$made/completions/zarrfs"
    "$program" completions zsh >"$made/completions/_zarrfs"
    "$program" completions fish >"$made/completions/zarrfs.fish"
    # if PYTHON has zig, the bill of materials lists the parts of zig
    "${PYTHON:-python3}" scripts/packaging/bill_of_materials.py "$triple" "$made/zarrfs.cdx.json" "$made/third-party"
    {
        printf 'zarrfs (%s-1) unstable; urgency=medium\n\n' "$version"
        printf '  * Built from commit %s.\n\n' "$(git rev-parse --short=12 HEAD)"
        printf ' -- The zarrfs authors <>  %s\n' "$(LC_ALL=C date -R -u -d "@$SOURCE_DATE_EPOCH")"
    } >"$made/changelog"
}

# debian_package FOLDER ARGUMENT...: makes the package with `cargo deb ARGUMENT...`, and prints its path
debian_package() {
    local folder=$1 cargo_deb
    shift
    cargo_deb=$(cargo_tool cargo-deb 3.8.0)
    mkdir -p "$folder"
    "$cargo_deb" deb --quiet --locked --no-build --output "$folder/" "$@" >/dev/null
    find "$folder" -name "zarrfs_$version-1_*.deb" -newer "$made/changelog"
}
