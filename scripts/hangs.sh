# Functions that end tests which hang, for scripts/test and scripts/run-tests, which source this file after lib.sh.
#
# A process that waits for a FUSE mount may hold the lock of its memory. A program that reads its command line, its
# executable or its environment then waits as well, and cannot be killed. So processes are found by their names, and
# looked at by wait channels and stacks. Whatever looks at other processes runs under `within`, which leaves it behind.
# shellcheck shell=bash

# within SECONDS COMMAND...: runs a command and prints its output, or what it has printed when the time is over. Does not
# wait for a process that cannot be killed: its output goes to a file, since a pipe would stay open with it.
within() {
    local limit=$1 output pid tick
    shift
    output=$(mktemp)
    "$@" >"$output" 2>/dev/null </dev/null &
    pid=$!
    for ((tick = 0; tick < limit * 20; tick++)); do
        is_running "$pid" || break
        # without TMPDIR, by which list_servers knows the processes of tests
        (unset TMPDIR && exec sleep 0.05)
    done
    if is_running "$pid"; then
        for pid in $(descendants "$pid"); do kill -KILL "$pid" 2>/dev/null || true; done
    fi
    cat "$output"
    rm -f "$output"
}

# mounts: prints the mounts below TMPDIR, the last one first
mounts() { awk -v dir="${TMPDIR:-/nonexistent}/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts | tac; }

# is_ours PID: whether a process runs zarrfs of this checkout
is_ours() {
    local exe
    exe=$(readlink "/proc/$1/exe")
    # shellcheck disable=SC2154 # lib.sh sets target
    case $exe in "$target"/*/zarrfs | "$target"/*/zarrfs' (deleted)') echo "$1" ;; esac
}

# daemons: prints the processes that run zarrfs of this checkout
daemons() {
    local pid
    for pid in /proc/[0-9]*; do
        # the name never blocks
        if [ "$(cat "$pid/comm" 2>/dev/null)" = zarrfs ]; then within 2 is_ours "${pid#/proc/}"; fi
    done
}

# descendants PID: prints a process and all those below it
descendants() {
    local pid=$1 child children
    echo "$pid"
    for children in "/proc/$pid"/task/*/children; do
        # shellcheck disable=SC2013 # the file has words in one line
        for child in $(cat "$children" 2>/dev/null); do descendants "$child"; done
    done
}

# waiting PID...: prints the threads of processes, and where in the kernel they wait. libtest names a thread after its test.
waiting() {
    local pid task
    for pid; do
        for task in "/proc/$pid"/task/*; do
            [ -d "$task" ] || continue
            printf '%8s %8s  %-16s %s\n' "$pid" "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
                "$(cat "$task/wchan" 2>/dev/null)"
        done
    done
}

# stacks PID...: prints the threads of processes, and the functions of the kernel in which they are. Needs root
stacks() {
    local pid task
    for pid; do
        for task in "/proc/$pid"/task/*; do
            printf '%8s  %s\n' "${task##*/}" "$(head -n 6 "$task/stack" 2>/dev/null | awk '{ print $2 }' | paste -sd ' ')"
        done
    done
}

# abort_connections: makes all waiting and later requests to the FUSE mounts below TMPDIR fail
abort_connections() {
    local control=/sys/fs/fuse/connections number
    if [ -z "$(ls "$control" 2>/dev/null)" ]; then timeout -s KILL 5 mount -t fusectl none "$control" 2>/dev/null || true; fi
    awk -v dir="${TMPDIR:-/nonexistent}/" 'index($5, dir) == 1 && / - fuse/ { split($3, dev, ":"); print dev[2] }' \
        /proc/self/mountinfo | sort -u | while read -r number; do
        timeout -s KILL 5 sh -c "echo 1 >$control/$number/abort" >/dev/null 2>&1 || true
    done
}

# end_daemons: kills all daemons and aborts their connections, so that no process waits for them
end_daemons() {
    local pid
    for pid in $(daemons); do kill -KILL "$pid" 2>/dev/null || true; done
    abort_connections
}

# end_hang PID: reports what the processes of a test wait for, and ends the daemons that they may wait for
end_hang() {
    echo "processes, threads, and where in the kernel they wait:"
    # shellcheck disable=SC2046 # numbers
    set -- "$1" $(descendants "$1") $(daemons)
    within 20 waiting "${@:2}"
    within 20 stacks "${@:2}"
    echo "mounts:"
    mounts
    end_daemons
    echo "after the daemons were killed:"
    # shellcheck disable=SC2046 # numbers
    within 20 waiting $(descendants "$1") $(daemons)
}

# is_running PID: whether a process exists and is not a zombie
is_running() { kill -0 "$1" 2>/dev/null; }

# end_group PID: ends a process group, and all processes below its first one. Does not wait for those that cannot be killed.
end_group() {
    local _ pid all
    all=$(descendants "$1")
    kill -TERM -- "-$1" 2>/dev/null || true
    for _ in {1..50}; do is_running "$1" && sleep 0.2; done
    kill -KILL -- "-$1" 2>/dev/null || true
    for pid in $all; do kill -KILL "$pid" 2>/dev/null || true; done
    for _ in {1..50}; do is_running "$1" && sleep 0.2; done
    if is_running "$1"; then echo "process $1 cannot be killed"; fi
}

# run_limited SECONDS NAME COMMAND...: runs a command in its own process group. Ends it after a number of seconds, and
# returns 124. Starts no other background process, which would keep pipes open.
run_limited() {
    local limit=$1 name=$2 start=$SECONDS pid _
    shift 2
    # In the background bash ignores SIGINT and SIGQUIT, and nohup ignores SIGHUP. Programs would inherit that, and
    # tests that end programs by these signals would wait forever.
    setsid env --default-signal=HUP,INT,QUIT "$@" </dev/null &
    pid=$!
    # shellcheck disable=SC2064 # expanded now: the trap must end this process, not a later one
    trap "kill -TERM -- -$pid 2>/dev/null" INT TERM HUP
    while is_running "$pid"; do
        if [ $((SECONDS - start)) -ge "$limit" ]; then
            printf '\n%s\n' "$name takes more than $limit s" >&2
            end_hang "$pid" >&2
            end_group "$pid" >&2
            trap - INT TERM HUP
            return 124
        fi
        # each sleep is a process, and many of these loops run at a time
        if [ $((SECONDS - start)) -lt 3 ]; then sleep 0.1; else sleep 0.5; fi
    done
    trap - INT TERM HUP
    # after an interrupt, wait for other processes of the group, which may still be ending
    for _ in {1..50}; do
        kill -0 -- "-$pid" 2>/dev/null || break
        sleep 0.1
    done
    wait "$pid"
}
