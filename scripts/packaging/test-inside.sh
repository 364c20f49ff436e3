# Functions of the tests that run on a fresh system.
# shellcheck shell=bash

fail() {
    echo "failed: $*" >&2
    exit 1
}

# expect TEXT COMMAND...: runs the command, which must succeed and print exactly TEXT
expect() {
    local wanted=$1 said
    shift
    echo "\$ $*"
    said=$("$@" 2>&1) || fail "$* said: $said"
    [ "$said" = "$wanted" ] || fail "$* said: $said"
}

# has TEXT COMMAND...: runs the command, which must succeed and print TEXT among other things
has() {
    local wanted=$1 said
    shift
    echo "\$ $*"
    said=$("$@" 2>&1) || fail "$* said: $said"
    [[ $said == *"$wanted"* ]] || fail "$* said: $said"
}

# as_me COMMAND: runs a command line as the user "me", in its home directory
as_me() { setpriv --reuid me --regid me --init-groups env HOME=/home/me bash -c "cd && $*"; }
