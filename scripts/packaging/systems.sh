# Functions that run an installed zarrfs on a fresh Debian. Sourced after lib.sh, in the root of the checkout.
# shellcheck shell=bash disable=SC2154 # lib.sh sets root

need_systems() {
    [ "$(id -u)" = 0 ] || die "must run as root, because it mounts and changes its root directory"
    [ -e /dev/fuse ] || die "/dev/fuse is missing: this kernel or container has no FUSE"
    need debootstrap=debootstrap unshare=util-linux
}

# debian_mirror: prints the address from which this Debian gets its packages
debian_mirror() {
    local suite
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016 # apt-get evaluates it
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk -v suite="$suite" '$2 == suite { print $1; exit }'
}

# debian_base SUITE [minimal]: makes an archive of a fresh Debian in target/, once, and prints its path. Unless minimal,
# it has programs that users of the package may have
debian_base() {
    local suite=$1 base=$root/target/debootstrap-desktop-$1${2:+-$2}.tar work script=() packages=()
    [ $# = 2 ] || packages=("--include=fuse3,attr,man-db,bash-completion,python3,python3-venv,desktop-file-utils,shared-mime-info,xdg-utils")
    if [ ! -s "$base" ]; then
        # this debootstrap may not know the suite yet
        [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=(/usr/share/debootstrap/scripts/sid)
        work=$(mktemp -d)
        debootstrap --variant=minbase "${packages[@]}" \
            "$suite" "$work" "$(debian_mirror)" "${script[@]}" >"$work.log" 2>&1 || die "debootstrap failed: $work.log"
        chmod 755 "$work" # users need it as their root directory
        # renamed only when it is complete
        tar -C "$work" --one-file-system -cf "$base.part" . && mv "$base.part" "$base"
        rm -rf --one-file-system "$work" "$work.log"
    fi
    printf '%s\n' "$base"
}

# fresh_system SUITE: unpacks a fresh Debian into a new folder and prints its path; the caller removes it
fresh_system() {
    local base system
    base=$(debian_base "$1")
    system=$(mktemp -d)
    tar -C "$system" -xf "$base"
    cp -r "$root/tests/data/sample.zarr" "$system/srv/sample.zarr"
    cp "$root/scripts/packaging/test-inside.sh" "$system/"
    printf '%s\n' "$system"
}

# in_system SYSTEM COMMAND...: runs a command as root on the system, without network; its mounts and processes end
# with it
in_system() {
    # shellcheck disable=SC2016 # the inner shell evaluates it
    unshare --mount --pid --net --fork --kill-child bash -euc '
        mount --bind "$0" "$0"
        mount -t tmpfs tmpfs "$0/dev"
        # devices of the system, with the modes that udev sets
        mknod -m 666 "$0/dev/null" c 1 3
        mknod -m 666 "$0/dev/urandom" c 1 9
        mknod -m 666 "$0/dev/fuse" c 10 229
        ln -s /proc/self/fd "$0/dev/fd"
        mount -t proc proc "$0/proc"
        mount -t tmpfs tmpfs "$0/run"
        # as on a booted system, since fusermount3 reads this file
        ln -sf ../proc/self/mounts "$0/etc/mtab"
        # not chroot, below which users can make no namespaces
        cd "$0"
        pivot_root . .
        umount -l .
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 "$@"
    ' "$@"
}

# other_libraries ARCHITECTURE FOLDER: unpacks a Debian with the C library of another architecture into a folder
other_libraries() {
    local architecture=$1 folder=$2 debian=$1
    [ "$architecture" != aarch64 ] || debian=arm64
    [ "$architecture" != x86_64 ] || debian=amd64
    debootstrap --arch="$debian" --foreign --variant=minbase bullseye "$folder" "$(debian_mirror)" >"$folder.log" 2>&1 ||
        die "debootstrap failed: $folder.log"
}
