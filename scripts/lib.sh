# Functions shared by the scripts in this folder, which source this file.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # the scripts use it
target=${CARGO_TARGET_DIR:-$root/target}

section() { printf '\n== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# install_packages PACKAGE...: installs Debian packages with apt-get
install_packages() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo -n'
    if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! $sudo true 2>/dev/null; }; then
        die "missing Debian packages: $*; install them as root and run this script again"
    fi
    section "apt-get install $*"
    # package lists may be missing or stale on a fresh machine
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# need COMMAND=PACKAGE...: installs each package whose command is missing
need() {
    local pair missing=()
    for pair; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
}

need_cargo() {
    command -v cargo >/dev/null || die "cargo is missing; install Rust 1.89 or later (https://rustup.rs)"
}

# the Debian package python3 does not contain ensurepip
need_venv() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is older than 3.11; install a later one"
}

# uv_tool: installs uv, which fills a virtual environment in seconds while pip takes minutes, and prints its path
uv_tool() {
    local dir=$root/target/venv/uv version=0.13.9
    if [ "$("$dir/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != $version ]; then
        rm -rf "$dir"
        python3 -m venv "$dir" >&2
        "$dir/bin/pip" install --quiet --disable-pip-version-check "uv==$version" >&2
    fi
    printf '%s\n' "$dir/bin/uv"
}

# install_python PYTHON ARGUMENT...: installs Python packages for an interpreter
install_python() {
    local uv pip index
    uv=$(uv_tool)
    # only the environment of uv has pip, which takes five seconds to install
    pip=${uv%/*}/pip
    # uv does not read pip's configuration
    index=$("$pip" config get global.index-url 2>/dev/null || true)
    env ${index:+"UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}"} UV_NATIVE_TLS=true UV_CACHE_DIR="$root/target/venv/cache" \
        "$uv" pip install --quiet --python "$@" >&2 ||
        "$pip" --python "$1" install --quiet --disable-pip-version-check "${@:2}" >&2
}

# venv NAME [PYTHON]: creates a virtual environment with requirements/NAME.txt, anew if the file has changed, and prints
# the path of its Python
venv() {
    local dir=$root/target/venv/$1 requirements=$root/scripts/requirements/$1.txt
    if ! cmp -s "$requirements" "$dir/requirements.txt" || ! "$dir/bin/python" -c '' 2>/dev/null; then
        rm -rf "$dir"
        "${2:-python3}" -m venv --without-pip "$dir" >&2
        install_python "$dir/bin/python" -r "$requirements"
        cp "$requirements" "$dir/requirements.txt"
    fi
    printf '%s\n' "$dir/bin/python"
}

# source_tests PACKAGE VERSION: unpacks the source of a Python package, whose wheel has no tests, and prints its path
source_tests() {
    local tools=$root/target/tools bin
    if ! [ -d "$tools/$1-$2/tests" ]; then
        bin=$(dirname "$(uv_tool)")
        # pip asks the source for its dependencies, even if it installs none
        install_python "$bin/python" hatchling==1.33.0 hatch-vcs==0.5.0
        "$bin/pip" download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary "$1" \
            --dest "$tools" "$1==$2" >&2
        tar -C "$tools" -xf "$tools/$1-$2.tar.gz"
    fi
    printf '%s\n' "$tools/$1-$2"
}

# cargo_tool NAME VERSION: installs a program with cargo below target/tools and prints its path
cargo_tool() {
    local dir=$root/target/tools
    if [ "$("$dir/bin/$1" --version 2>/dev/null)" != "$1 $2" ]; then
        # cargo install removes its own target directory
        env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$dir" --version "$2" "$1" >&2
    fi
    printf '%s\n' "$dir/bin/$1"
}

# npm_tool PACKAGE VERSION PROGRAM: installs a program with npm below target/tools and prints its path
npm_tool() {
    local dir=$root/target/tools/$1
    if ! grep -qF "\"version\": \"$2\"" "$dir/node_modules/$1/package.json" 2>/dev/null; then
        rm -rf "$dir"
        mkdir -p "$dir"
        npm install --silent --no-audit --no-fund --no-package-lock --omit=dev --ignore-scripts --prefix "$dir" "$1@$2" >&2
    fi
    printf '%s\n' "$dir/node_modules/.bin/$3"
}
