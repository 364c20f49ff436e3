//! The matrix of docs/privileges.md: in each place where zarrfs runs, programs read and write
//! through a mount, and the end or a kill of each process leaves nothing behind.

use crate::running::{User, output_of};
use crate::support::is_installed;

/// `with_mount` mounts, runs a shell script with the mountpoint in `M`, and unmounts.
/// `with_killed_caller` kills the process that has mounted, and prints the number of bytes that
/// are readable then.
const MOUNT: &str = r#"
    mkdir mnt
    [ -z "$AS" ] || chown nobody mnt
    mount_here() { zarrfs mount sample.zarr mnt; }
    unmount_here() { zarrfs umount mnt; }
    with_mount() {
        mount_here
        M=$D/mnt $AS sh -c "$1"
        unmount_here
    }
    with_killed_caller() {
        (mount_here; : >seen; exec sleep 600 >/dev/null 2>&1) &
        wait_for '[ -e seen ]'
        disown $!
        kill -9 $!
        $AS cat mnt/lat/data.raw | wc -c
        unmount_here
    }
"#;

/// The caller opens and mounts /dev/fuse; zarrfs has no capability.
const INHERITED: &str = r#"
    AS="$AS --inh-caps=-all --ambient-caps=-all --bounding-set=-all --no-new-privs"
    mount_here() {
        exec 3<>/dev/fuse
        mount -i -t fuse.zarrfs -o fd=3,rootmode=40000,user_id=65534,group_id=65534,default_permissions climate mnt
        zarrfs mount sample.zarr /dev/fd/3
        exec 3>&-
    }
    unmount_here() {
        umount -i mnt
        # the last write is stored when the daemon has ended
        wait_for '! pgrep -x zarrfs >/dev/null'
    }
"#;

const RUN: &str = r#"
    with_mount() { $RUN sample.zarr -- sh -c "M=\$ZARRFS_MOUNT; $1"; }
    with_killed_caller() {
        $RUN sample.zarr -- sh -c ': >seen; exec sleep 600 >/dev/null 2>&1' &
        wait_for '[ -e seen ]'
        disown $!
        kill -9 $!
    }
"#;

/// Reads, writes, kills the daemon while a program reads, and kills the caller.
const STEPS: &str = r#"
    zarrfs cat sample.zarr/lat >lat
    with_mount 'cat "$M/lat/data.raw"' | cmp - lat
    with_mount 'printf "\002\001" 1<>"$M/air_temperature/data.raw"'
    two_bytes
    left
    code with_mount '
        trap "" TERM
        # the daemon, and the process that would start another one
        pid_of() { sed -n "s/.*\"$1\": *\"*\([0-9]*\).*/\1/p" "$M/.zarrfs/stats.json"; }
        daemon=$(pid_of pid)
        holder=$(pid_of holder_pid)
        kill -STOP $holder
        kill -9 $daemon $holder
        for _ in $(seq 1000); do
            if ! cat "$M/lat/data.raw" >/dev/null 2>&1; then echo "reading fails"; break; fi
            sleep 0.1
        done' 2>said
    left
    with_killed_caller
    left
"#;

#[track_caller]
fn assert_place(user: User, place: &[&str], served: &[&str]) {
    let script = [place.concat(), STEPS.to_string()].concat();
    let Some(said) = output_of(user, &script) else {
        return;
    };
    let code = match served {
        [] => "code 1",
        _ => "code 0",
    };
    let expected = [&["   2   1", "reading fails", code], served].concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
}

#[test]
fn root_mounts() {
    assert_place(User::Root, &[MOUNT], &["148"]);
}

#[test]
fn a_user_mounts_with_fusermount3() {
    if is_installed("fusermount3") {
        // without the helper, the other places are tested
        let found = r#"umount "$(command -v fusermount3)""#;
        assert_place(User::Nobody, &[found, MOUNT], &["148"]);
    }
}

#[test]
fn nobody_serves_an_inherited_descriptor() {
    assert_place(User::Nobody, &[MOUNT, INHERITED], &["148"]);
}

#[test]
fn root_and_a_user_without_fusermount3_run_a_command() {
    for user in [User::Root, User::Nobody] {
        // containers have no control files of FUSE
        for hiding in ["", "umount -l /sys/fs/fuse/connections\n"] {
            assert_place(user, &[hiding, RUN], &[]);
        }
    }
}
