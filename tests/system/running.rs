//! `zarrfs run`, as root and as an ordinary user without fusermount3: bytes, exit codes, signals,
//! killed processes and programs that outlive the command. bash and the tools of the system are the
//! reference. Each script has its own processes and mounts, so that it sees whatever is left
//! behind.

use crate::support::{ZARRFS, announce, copy_tree, is_installed, test_data, with_timeout};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

/// The user who runs zarrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Root,
    Nobody,
}

const USERS: [User; 2] = [User::Root, User::Nobody];

/// Functions of the scripts. `run` runs the verb as the user, as `$RUN` does in the background, and
/// `left` prints what is left after some minutes: processes, directories or mounts.
const FUNCTIONS: &str = r#"
    exec 2>&1
    RUN="$AS $D/zarrfs run"
    zarrfs() { $AS "$D/zarrfs" "$@"; }
    run() { $RUN "$@"; }
    code() { local code=0; "$@" || code=$?; echo "code $code"; }
    wait_for() { for _ in $(seq 4000); do eval "$1" && return; sleep 0.05; done; echo "in vain: $1"; }
    left() {
        wait_for '[ -z "$(remains)" ]'
        remains
    }
    remains() {
        ls -A "$TMPDIR"
        grep zarrfs-run /proc/self/mountinfo || true
        ps -e -o pid=,comm=,args= | awk '$2 != "bash" && $2 != "ps" && $2 != "awk"'
    }
    two_bytes() { zarrfs cat sample.zarr/air_temperature --length 2 | od -An -tu1; }
"#;

/// Runs a bash script as root, in a directory with a copy of the sample store that belongs to
/// `user`. Returns its output, or `None` if this machine has no root for the test. The mounts and
/// processes of the script end with it.
#[track_caller]
pub fn output_of(user: User, script: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() || !is_installed("setpriv") {
        announce("skipped: needs root and setpriv");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    copy_tree(
        &test_data("sample.zarr"),
        &directory.path().join("sample.zarr"),
    );
    let setup = r#"
        # this namespace must not keep the mounts of other tests
        timeout -s KILL 5 umount -i -a -l -t fuse.zarrfs || true
        mount -t tmpfs tmpfs /run
        mkdir /run/test
        mount --bind "$D" /run/test
        export D=/run/test
        cd "$D"
        mkdir dev tmp
        [ -z "$AS" ] || chown -R nobody .
        mount -t tmpfs tmpfs dev
        mknod -m 666 dev/fuse c 10 229
        mount --bind dev/fuse /dev/fuse
        touch zarrfs
        mount --bind "$ZARRFS" zarrfs
        helper=$(command -v fusermount3) && mount --bind /dev/null "$helper"
        export TMPDIR=$D/tmp
    "#;
    let output = with_timeout(600, "unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-euc"])
        .arg(format!("{setup}\n{FUNCTIONS}\n{script}"))
        .env("D", directory.path())
        .env("ZARRFS", ZARRFS)
        .env(
            "AS",
            match user {
                User::Root => "",
                User::Nobody => "setpriv --reuid nobody --regid nogroup --clear-groups",
            },
        )
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let said = said.concat();
    assert!(output.status.success(), "{user:?}: {said}");
    Some(said)
}

/// Asserts that a script prints these lines, for root and for an ordinary user.
#[track_caller]
fn assert_lines(script: &str, expected: &[&str]) {
    for user in USERS {
        if let Some(said) = output_of(user, script) {
            assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{user:?}");
        }
    }
}

#[test]
fn a_command_reads_and_writes_a_store() {
    assert_lines(
        r#"
        run sample.zarr -- cat {}/lat/data.raw | cmp - <(zarrfs cat sample.zarr/lat)
        run sample.zarr -- sh -c 'printf "\002\001" 1<>"$ZARRFS_MOUNT/air_temperature/data.raw"'
        two_bytes
        run --read-only sample.zarr -- sh -c 'printf x 1<>{}/air_temperature/data.raw' 2>&1 |
            grep -o 'Read-only file system'
        shown() { sed -E "s:$TMPDIR/zarrfs-run-[0-9a-f]{16}:M:g"; }
        run sample.zarr -- echo a{}b '{}' { } | shown
        run -I % sample.zarr -- echo %/x {} | shown
        # no file of a store is a program
        code run sample.zarr -- {}/.zgroup 2>&1 | shown
        run -I '' sample.zarr -- echo {}
        # a mount in the namespace of another
        run sample.zarr -- "$D/zarrfs" run sample.zarr -- cat {}/lat/data.raw | wc -c
        left
        "#,
        &[
            "   2   1",
            "Read-only file system",
            "aMb M { }",
            "M/x {}",
            "error: M/.zgroup: Permission denied",
            "code 126",
            "{}",
            "148",
        ],
    );
}

/// The command has the user, groups, directory, descriptors and signals of the caller, and a
/// namespace that no other process sees.
#[test]
fn a_command_runs_in_the_place_of_its_caller() {
    assert_lines(
        r#"
        # what the caller starts without zarrfs is the reference
        same() {
            run sample.zarr -- "$@" | sort >through
            $AS "$@" | sort | cmp - through
        }
        same sh -c 'id -u; id -g; umask; pwd; ulimit -n'
        same ls /proc/self/fd 7</dev/null
        same grep -E 'SigBlk|SigIgn|CapEff|Groups' /proc/self/status
        (trap '' HUP; same grep SigIgn /proc/self/status)
        run sample.zarr -- env | grep -v -e '^ZARRFS_MOUNT=' -e '^_=' | sort >through
        $AS env | grep -v '^_=' | sort | cmp - through
        [ "$(run sample.zarr -- stat -c '%u %g' {}/lat)" = "$($AS sh -c 'echo $(id -u) $(id -g)')" ]
        $RUN sample.zarr -- sh -c ': >seen; while [ ! -e go ]; do sleep 0.05; done; grep -c zarrfs-run /proc/self/mountinfo' &
        wait_for '[ -e seen ]'
        grep -c zarrfs-run /proc/self/mountinfo || true
        ls -A "$TMPDIR"/*
        touch go
        wait $!
        left
        "#,
        &["0", "1"],
    );
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    assert_lines(
        r#"
        run sample.zarr -- true
        for end in 'exit 7' 'kill -9 $$' 'kill -15 $$'; do
            code run sample.zarr -- sh -c "$end"
        done
        # a caller that ignores SIGCHLD
        code env --ignore-signal=CHLD $AS "$D/zarrfs" run sample.zarr -- sh -c 'exit 5'
        left
        "#,
        &["code 7", "code 137", "code 143", "code 5"],
    );
}

#[test]
fn bad_command_lines_are_refused_and_leave_nothing() {
    assert_lines(
        r#"
        touch file
        mkdir empty
        code run sample.zarr -- nothing/here
        code run sample.zarr -- ./file
        code run sample.zarr -- ./empty
        # as a shell, although a directory of PATH can't be searched
        mkdir -m 0 closed
        PATH=$D/closed:$PATH code run sample.zarr -- no-such-program
        touch unfit
        PATH=$D/closed:$D:$PATH code run sample.zarr -- unfit
        code run sample.zarr
        code run sample.zarr --
        code run sample.zarr mnt -- true
        code run sample.zarr true
        code run nothing.zarr -- true
        code run empty -- true
        code run --umask 9 sample.zarr -- true 2>&1 | head -n 1
        for option in --foreground --auto-mountpoint --idle-timeout=1s --replace-stale -oro; do
            run $option sample.zarr -- true 2>&1 | head -n 1
        done
        TMPDIR=$D/sample.zarr code run sample.zarr -- true 2>&1 | sed 's:zarrfs-run-[0-9a-f]*:M:'
        ls -A sample.zarr | grep run || true
        left
        "#,
        &[
            "error: nothing/here: no such program",
            "code 127",
            "error: ./file: Permission denied",
            "code 126",
            "error: ./empty: Permission denied",
            "code 126",
            "error: no-such-program: no such program",
            "code 127",
            "error: unfit: Permission denied",
            "code 126",
            "error: no COMMAND; write it after --: zarrfs run STORE -- COMMAND",
            "code 2",
            "error: no COMMAND; write it after --: zarrfs run STORE -- COMMAND",
            "code 2",
            "error: mnt: run makes the mountpoint, and takes the command after --: zarrfs run STORE -- COMMAND",
            "code 2",
            "error: true: run makes the mountpoint, and takes the command after --: zarrfs run STORE -- COMMAND",
            "code 2",
            "error: nothing.zarr: no such store",
            "code 3",
            "error: empty: not a Zarr store: it has no zarr.json, .zgroup, .zarray, .zmetadata or meta",
            "code 4",
            "error: invalid value '9' for '--umask <OCTAL>': not an octal mode, such as 022",
            "error: unexpected argument '--foreground' found",
            "error: unexpected argument '--auto-mountpoint' found",
            "error: unexpected argument '--idle-timeout' found",
            "error: unexpected argument '--replace-stale' found",
            "error: unexpected argument '-o' found",
            "error: mountpoint /run/test/sample.zarr/M: inside the store; choose another; run makes it in TMPDIR",
            "code 5",
        ],
    );
}

/// The command decides how it ends, and what it writes then is stored.
#[test]
fn signals_are_passed_on() {
    assert_lines(
        r#"
        cat >job <<'END'
            for name in USR1 XCPU PWR VTALRM; do trap "echo $name" $name; done
            trap 'echo term; printf "\003\001" 1<>"$ZARRFS_MOUNT/air_temperature/data.raw"; exit 5' TERM
            : >seen
            while :; do sleep 0.05; done
END
        $RUN sample.zarr -- sh job >said &
        wait_for '[ -e seen ]'
        for name in USR1 XCPU PWR VTALRM; do
            kill -$name $!
            wait_for "grep -q $name said"
        done
        # as a batch system does
        kill -TERM $(pgrep -x zarrfs)
        code wait $!
        cat said
        two_bytes
        left
        "#,
        &[
            "code 5", "USR1", "XCPU", "PWR", "VTALRM", "term", "   3   1",
        ],
    );
}

/// Ctrl-C reaches the command once, from the terminal, and does not end zarrfs before it.
#[test]
fn an_interrupt_of_the_terminal_is_for_the_command() {
    if !is_installed("script") {
        return;
    }
    assert_lines(
        r#"
        cat >job <<'END'
            trap 'echo interrupt >>said' INT
            : >seen
            while [ ! -e said ]; do sleep 0.05; done
            sleep 0.5
            printf "\004\001" 1<>"$ZARRFS_MOUNT/air_temperature/data.raw"
            exit 6
END
        mkfifo keys
        chmod 666 keys
        # a shell has its programs in the background ignore the signal, and sh -c may wait for the program
        code env --default-signal=INT script -qec "exec $RUN sample.zarr -- sh job" /dev/null <keys >typed &
        exec 4>keys
        wait_for '[ -e seen ]'
        printf '\003' >&4
        wait $!
        exec 4>&-
        tr -d '\r' <typed | sed 's/^^C//'
        cat said
        two_bytes
        left
        "#,
        &["code 6", "interrupt", "   4   1"],
    );
}

/// Whichever process is killed, nothing is left; and what the mount has taken is stored unless the
/// daemon is killed.
#[test]
fn killed_processes_leave_nothing() {
    assert_lines(
        r#"
        cat >job <<'END'
            exec 3<>"$ZARRFS_MOUNT/air_temperature/data.raw"
            printf "$1" >&3
            cat "$ZARRFS_MOUNT/.zarrfs/stats.json" >stats
            echo $$ >pid
            : >seen
            exec sleep 600
END
        start() {
            rm -f seen
            $RUN sample.zarr -- sh job "$1" 2>said &
            wait_for '[ -e seen ]'
        }

        start '\005\001'
        kill -9 $(cat pid)
        code wait $!
        two_bytes
        left

        start '\006\001'
        # the shell says nothing of it
        disown $!
        kill -9 $!
        left
        two_bytes

        # the command has started others
        $RUN sample.zarr -- sh -c 'sleep 600 & setsid sleep 600 & (cd {}; : >"$0/seen2"; sleep 600); true' "$D" 2>said &
        wait_for '[ -e seen2 ]'
        disown $!
        kill -9 $!
        left

        start '\007\001'
        # the daemon, and the process that would start another one
        pid_of() { grep -o "\"$1\": *\"*[0-9]*" stats | grep -o '[0-9]*'; }
        kill -STOP $(pid_of holder_pid)
        kill -9 $(pid_of pid) $(pid_of holder_pid)
        code wait $!
        cat said
        left
        "#,
        &[
            "code 137",
            "   5   1",
            "   6   1",
            "code 143",
            "error: the daemon was killed (signal 9): what was not stored is lost",
        ],
    );
}

/// A daemon in its start notices that its caller was killed in several threads at once.
#[test]
fn processes_that_are_killed_in_their_start_leave_nothing() {
    assert_lines(
        r#"
        mkfifo never
        exec 9<>never
        for delay in $(seq -w 0 2 98) $(seq -w 0 2 98); do
            $RUN sample.zarr -- sleep 600 2>/dev/null &
            disown $!
            read -t "0.0$delay" -u 9 || true
            kill -9 $!
        done
        left
        "#,
        &[],
    );
}

#[test]
fn what_cannot_be_stored_is_an_error() {
    assert_lines(
        r#"
        mkdir full
        mount -t tmpfs -o size=2M,mode=777 tmpfs full
        cp -rp sample.zarr full
        dd if=/dev/zero of=full/filler status=none bs=64K 2>/dev/null || true
        code run full/sample.zarr -- sh -c 'head -c 200000 /dev/urandom 1<>{}/air_temperature/data.raw; exit 0' 2>said
        grep -o 'not stored, and lost' said
        code run full/sample.zarr -- sh -c 'head -c 200000 /dev/urandom 1<>{}/air_temperature/data.raw; exit 9' 2>said
        left
        "#,
        &["code 1", "not stored, and lost", "code 9"],
    );
}

/// A program that the command has started in the background keeps the mount while it has files
/// open.
#[test]
fn a_program_in_the_background_finishes_its_writes() {
    assert_lines(
        r#"
        cat >job <<'END'
            (
                exec 3<>"$ZARRFS_MOUNT/air_temperature/data.raw"
                : >opened
                while [ ! -e go ]; do sleep 0.05; done
                printf '\010\001' >&3
            ) &
            while [ ! -e opened ]; do sleep 0.05; done
            exit 4
END
        $RUN sample.zarr -- sh job 2>said &
        wait_for 'grep -qs "is in use" said'
        touch go
        code wait $!
        two_bytes
        left

        rm go opened said
        $RUN sample.zarr -- sh job 2>said &
        wait_for 'grep -qs "is in use" said'
        kill $!
        code wait $!
        touch go
        left
        "#,
        &["code 4", "   8   1", "code 4"],
    );
}

/// A signal while the store is opened ends zarrfs.
#[test]
fn a_signal_ends_a_slow_start() {
    // takes connections, and answers nothing
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let script = r#"
        $RUN http://127.0.0.1:PORT/ -- true &
        sleep 1
        kill $!
        code wait $!
        left
    "#;
    assert_lines(&script.replace("PORT", &port.to_string()), &["code 143"]);
}

#[test]
fn root_runs_a_command_in_a_chroot() {
    let script = r#"
        mkdir root
        for name in bin lib lib64 usr; do
            [ ! -L /$name ] || cp -P /$name root
            [ -L /$name ] || [ ! -d /$name ] || { mkdir root/$name; mount --rbind /$name root/$name; }
        done
        for name in dev proc run; do mkdir root/$name; mount --rbind /$name root/$name; done
        mkdir root/tmp
        export TMPDIR=/tmp
        mount --make-rshared /
        chroot root /bin/sh -c 'cd /run/test; exec ./zarrfs run sample.zarr -- sh -c "pwd; stat -c %s {}/lat/data.raw; ls -d /run/test"'
        grep -c zarrfs-run /proc/self/mountinfo || true
        ls -A root/tmp
    "#;
    if let Some(said) = output_of(User::Root, script) {
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            ["/run/test", "148", "/run/test", "0"]
        );
    }
}

/// One line says what to do where a user may make no namespace, or not open /dev/fuse.
#[test]
fn a_machine_that_forbids_it_is_an_error() {
    let script = r#"
        unshare --user --map-root-user sh -c '
            echo 0 >/proc/sys/user/max_user_namespaces
            exec setpriv --bounding-set=-all --inh-caps=-all ./zarrfs run sample.zarr -- true' 2>said || echo $?
        wc -l <said
        grep -o 'an administrator allows them: sysctl user.max_user_namespaces=15000' said
        chmod 600 dev/fuse
        code run sample.zarr -- true 2>said
        wc -l <said
        grep -o '/dev/fuse: this user may not open it' said
        left
    "#;
    if let Some(said) = output_of(User::Nobody, script) {
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "6",
                "1",
                "an administrator allows them: sysctl user.max_user_namespaces=15000",
                "code 6",
                "1",
                "/dev/fuse: this user may not open it"
            ]
        );
    }
}
