//! Mounts that another program has made: bash opens /dev/fuse, mount(8) mounts it without a helper,
//! and zarrfs serves the inherited descriptor as a user without capabilities, without fusermount3.
//! Each script runs in its own namespaces, and checks that no process is left.

use crate::mounting::{Sandbox, is_root};
use crate::support::{ZARRFS, failure, is_installed, is_mounted, text, with_timeout};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

/// What the scripts share. The directory is bound to a place that every user can reach.
const PRELUDE: &str = r#"
    mkdir /run/sandbox
    mount --bind "$D" /run/sandbox
    D=/run/sandbox
    cd "$D"
    mkdir bin
    touch bin/zarrfs
    mount --bind "$ZARRFS" bin/zarrfs
    chown -R nobody sample.zarr mnt

    # open_mount [OPTIONS]: opens /dev/fuse as descriptor 3, and mounts it
    open_mount() {
        exec 3<>/dev/fuse
        mount -i -t fuse.zarrfs -o "fd=3,rootmode=40000,user_id=65534,group_id=65534${1:-}" climate mnt
    }
    # as USER PROGRAM ARGUMENT...: runs a program without capabilities; becomes it
    as() {
        user=$1
        shift
        exec setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all --ambient-caps=-all \
            --bounding-set=-all --no-new-privs "$@"
    }
    # zarrfs ARGUMENT...: as a user who finds no other program
    zarrfs() { (as 65534 /usr/bin/env PATH=/nowhere "$D/bin/zarrfs" "$@"); }
    # nobody PROGRAM ARGUMENT...: for at most two minutes, and without the descriptor
    nobody() { (as 65534 timeout -s KILL 120 "$@" 3>&-); }
    # keep: closes the descriptor if zarrfs can't end the connection while it is open here
    keep() {
        number=$(awk '$1 == "fuse_connection:" { print $2 }' /proc/self/fdinfo/3)
        if [ -z "$number" ] || [ ! -e "/sys/fs/fuse/connections/$number/abort" ]; then exec 3>&-; fi
    }
    # daemons: the processes of zarrfs and their guards
    daemons() { pgrep -x 'zarrfs(-guard)?' || true; }
    # ended: waits until they have ended
    ended() {
        for _ in $(seq 1000); do
            if [ -z "$(daemons)" ]; then echo ended; return; fi
            sleep 0.1
        done
        ps -ef
        return 1
    }
"#;

/// Runs a script after [`PRELUDE`], and returns the lines that it prints. Returns `None`, and says
/// that the test is skipped, if a program is missing or this process is not of root.
fn script(text: &str) -> Option<Vec<String>> {
    if !is_root() || !is_installed("setpriv") || !is_installed("pgrep") {
        return None;
    }
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = sandbox.system(&format!("{PRELUDE}\n{text}"));
    Some(said.lines().map(str::to_string).collect())
}

#[test]
fn an_inherited_mount_is_served_without_privileges_until_its_owner_unmounts_it() {
    let served = r#"
        # the process that holds the mount, and the daemon
        for process in $(pgrep -x zarrfs); do cat "/proc/$process/status"; done |
            grep -E '^Cap(Prm|Eff|Bnd)' | uniq -f 1 | wc -l
        nobody cat mnt/lat/data.raw | wc -c
        printf '\002\001' | nobody dd of=mnt/air_temperature/data.raw conv=notrunc status=none
        zarrfs stats mnt | grep -o '^store  '
        findmnt --noheadings --output SOURCE mnt
    "#;
    let stored = r#"
        ended
        findmnt mnt || echo gone
        zarrfs cat sample.zarr/air_temperature --length 2 | od -An -tu1
    "#;
    for unmount in ["umount -i mnt", "umount mnt", "\"$ZARRFS\" umount mnt"] {
        // the caller may close its descriptor or keep it
        for kept in ["", "exec 3>&-"] {
            let text = format!(
                "open_mount ,default_permissions\nzarrfs mount sample.zarr /dev/fd/3\n{kept}\n{served}\n{unmount}\n{stored}"
            );
            let Some(said) = script(&text) else { return };
            let expected = [
                "1", "148", "store  ", "climate", "ended", "gone", "   2   1",
            ];
            assert_eq!(said, expected, "{unmount} {kept}");
        }
    }
}

/// Whatever the type of the mount, the number of the descriptor and its flags.
#[test]
fn an_inherited_mount_may_have_another_type_and_descriptor() {
    if !is_installed("perl") {
        return;
    }
    let Some(said) = script(
        r#"
        exec 17<>/dev/fuse
        mount -i -t fuse -o fd=17,rootmode=40000,user_id=65534,group_id=65534 none mnt
        # the flag is one of the open file, which all processes share
        perl -MFcntl -e 'open(F, "+<&=", 17) or die; fcntl(F, F_SETFL, O_RDWR | O_NONBLOCK) or die'
        is_nonblocking() { echo $(( 8#$(awk '$1 == "flags:" { print $2 }' /proc/$$/fdinfo/17) & 8#4000 )); }
        is_nonblocking
        as 65534 "$D/bin/zarrfs" mount --foreground sample.zarr /proc/self/fd/17 &
        nobody cat mnt/lat/data.raw | wc -c
        nobody grep -c . mnt/.zarrfs/stats.json
        # a thread that never waits would take all the time of a processor
        is_nonblocking
        umount -i mnt
        wait $! && echo done
        ended
        "#,
    ) else {
        return;
    };
    assert_eq!(said, ["2048", "148", "1", "0", "done", "ended"]);
}

#[test]
fn a_signal_ends_the_daemon_and_leaves_the_mount_to_its_owner() {
    let Some(said) = script(
        r#"
        for signal in TERM INT; do
            open_mount ,default_permissions
            as 65534 "$D/bin/zarrfs" mount --foreground sample.zarr /dev/fd/3 &
            daemon=$!
            keep
            # a file that stays open; to close a copy of it would store the chunk
            (as 65534 sh -c 'exec 1<>mnt/air_temperature/data.raw; printf "$0"; exec sleep 500' "$signal" 3>&-) &
            holder=$!
            # bash says nothing of its end
            disown $holder
            until nobody grep -Eq '"dirty_chunks": ?1' mnt/.zarrfs/stats.json; do sleep 0.05; done
            kill -$signal $daemon
            wait $daemon && echo "ended by $signal"
            zarrfs cat sample.zarr/air_temperature --length ${#signal}
            echo
            findmnt --noheadings --output FSTYPE mnt
            nobody cat mnt/lat/data.raw 2>&1 | grep -o 'not connected'
            ended
            kill $holder
            umount -i -l mnt
            exec 3>&-
        done
        "#,
    ) else {
        return;
    };
    let ended = |signal: &str| {
        let by = format!("ended by {signal}");
        [by.as_str(), signal, "fuse.zarrfs", "not connected", "ended"].map(str::to_string)
    };
    assert_eq!(said, [ended("TERM"), ended("INT")].concat());
}

/// Also if the calling program keeps the descriptor: the guard ends the connection, which otherwise
/// would let programs wait for ever.
#[test]
fn programs_get_an_error_after_the_daemon_of_an_inherited_mount_was_killed() {
    let Some(said) = script(
        r#"
        for kept in yes no; do
            open_mount ,default_permissions
            zarrfs mount sample.zarr /dev/fd/3
            if [ $kept = yes ]; then keep; else exec 3>&-; fi
            printf '\002\001' | nobody dd of=mnt/air_temperature/data.raw conv=notrunc status=none
            # one may end by itself when the other has ended
            kill -9 $(pgrep -x zarrfs) 2>/dev/null || true
            ended
            nobody cat mnt/lat/data.raw 2>&1 | grep -o -E 'not connected|connection abort' | head -n 1
            findmnt --noheadings --output FSTYPE mnt
            zarrfs cat sample.zarr/air_temperature --length 2 | od -An -tu1
            if [ $kept = yes ]; then
                zarrfs mount sample.zarr /dev/fd/3 2>&1 | cut -d: -f1-2 || true
            fi
            umount -i mnt
            exec 3>&-
        done
        "#,
    ) else {
        return;
    };
    let after = ["ended", "not connected", "fuse.zarrfs", "   2   1"];
    let refused = ["error: mountpoint /dev/fd/3"];
    assert_eq!(said, [&after[..], &refused[..], &after[..]].concat());
}

/// A mount that is refused can be served afterwards.
#[test]
fn options_of_mounting_are_refused_with_an_inherited_mount() {
    let Some(said) = script(
        r#"
        open_mount
        for options in --allow-other --noexec --sync --auto-mountpoint --replace-stale --idle-timeout=1m \
            -oallow_other "--foreground --sync"; do
            zarrfs mount $options sample.zarr /dev/fd/3 || echo $?
        done 2>&1
        sleep 0 | zarrfs mount --until-eof sample.zarr /dev/fd/3 2>&1 || echo $?
        # a store that does not exist
        zarrfs mount no.zarr /dev/fd/3 2>&1 || echo $?
        ended
        zarrfs mount -o ro,nosuid,async sample.zarr /dev/fd/3
        nobody cat mnt/lat/data.raw | wc -c
        nobody sh -c 'echo >mnt/lat/.zattrs' 2>&1 | grep -o denied
        umount -i mnt
        ended
        "#,
    ) else {
        return;
    };
    let mut expected = Vec::new();
    for option in [
        "--allow-other",
        "--noexec",
        "--sync",
        "--auto-mountpoint",
        "--replace-stale",
        "--idle-timeout",
        "--allow-other",
        "--sync",
        "--until-eof",
    ] {
        let why = "which another program mounts with options of its own, and unmounts";
        expected.push(format!("error: {option}: not with /dev/fd/3, {why}"));
        expected.push("2".to_string());
    }
    let (refused, rest) = said.split_at(expected.len().min(said.len()));
    assert_eq!(refused, expected);
    assert!(
        rest[0].starts_with("error: ") && rest[0].contains("no.zarr"),
        "{rest:?}"
    );
    assert_eq!(rest[1..], ["3", "ended", "148", "denied", "ended"]);
}

#[test]
fn a_descriptor_that_is_no_mounted_fuse_device_is_refused() {
    let Some(said) = script(
        r#"
        for how in --foreground --read-only; do
            for number in 999 99999999999; do
                zarrfs mount $how sample.zarr /dev/fd/$number || echo $?
            done
            zarrfs mount $how sample.zarr /dev/fd/0 <sample.zarr/.zgroup || echo $?
            zarrfs mount $how sample.zarr /dev/fd/3 3<>/dev/null || echo $?
            zarrfs mount $how sample.zarr /dev/fd/3 3<"$D" || echo $?
            zarrfs mount $how sample.zarr /dev/fd/3 3<>/dev/fuse || echo $?
            zarrfs mount --foreground sample.zarr /dev/fd/0 <>/dev/fuse || echo $?
            open_mount
            umount -i mnt
            zarrfs mount $how sample.zarr /dev/fd/3 || echo $?
            exec 3>&-
        done 2>&1
        ended
        findmnt mnt || echo gone
        "#,
    ) else {
        return;
    };
    let call = "the calling program must open /dev/fuse, mount it, and pass it on";
    let refusals = [
        format!("999: no such open descriptor; {call}"),
        format!("99999999999: no such open descriptor; {call}"),
        format!("0: not a FUSE device; {call}"),
        format!("3: not a FUSE device; {call}"),
        format!("3: not a FUSE device; {call}"),
        "3: not mounted; mount it before (mount(2) with fd=N)".to_string(),
        "0: a standard stream; pass the FUSE device on as descriptor 3 or higher".to_string(),
        "3: its mount has ended".to_string(),
    ];
    let once = refusals
        .iter()
        .flat_map(|why| [format!("error: mountpoint /dev/fd/{why}"), "5".to_string()]);
    let mut expected: Vec<String> = once.clone().chain(once).collect();
    expected.extend(["ended", "gone"].map(str::to_string));
    assert_eq!(said, expected);
}

/// The daemon that serves the connection loses no request, also if it has not taken one yet.
#[test]
fn a_connection_that_is_served_is_refused_and_left_alone() {
    let Some(said) = script(
        r#"
        open_mount ,default_permissions
        zarrfs mount sample.zarr /dev/fd/3
        daemon=$(pgrep -x zarrfs)
        zarrfs mount sample.zarr /dev/fd/3 2>&1 || echo $?
        nobody cat mnt/lat/data.raw | wc -c
        kill -STOP $daemon
        # this request waits
        nobody cat mnt/lon/data.raw | wc -c >counted &
        reader=$!
        sleep 0.5
        for how in --foreground --read-only; do
            timeout -s KILL 200 bash -c "$(declare -f as zarrfs); zarrfs mount $how sample.zarr /dev/fd/3" 2>&1 || echo $?
        done | sed "s:$D/mnt:/dev/fd/3:"
        kill -CONT $daemon
        wait $reader
        cat counted
        [ "$daemon" = "$(pgrep -x zarrfs)" ] && echo same
        umount -i mnt
        ended
        "#,
    ) else {
        return;
    };
    let refused = "error: mountpoint /dev/fd/3: another program serves this connection, or has served it; \
                   open /dev/fuse anew, and mount that";
    let expected = [
        refused, "5", "148", refused, "5", refused, "5", "212", "same", "ended",
    ];
    assert_eq!(said, expected);
}

/// "No file of the mount grants another user more than all of the stored files it is made of",
/// whatever options the calling program has mounted with.
#[test]
fn modes_are_checked_without_the_option_default_permissions() {
    let Some(said) = script(
        r#"
        chmod 600 sample.zarr/lat/.zattrs
        chmod 640 sample.zarr/lon/.zattrs
        open_mount ,allow_other
        zarrfs mount sample.zarr /dev/fd/3
        other() { (as "$1" sh -c "$2" 3>&- 2>&1) | grep -o -e denied -e '^[0-9]*$' -e _FillValue -e units | head -n 1; }
        other 1000 'wc -c <mnt/lat/data.raw'
        other 1000 'cat mnt/lat/.zattrs'
        other 1000 'echo >mnt/lat/.zattrs'
        other 1000 'mkdir mnt/new'
        other 1000 'cat mnt/lon/.zattrs'
        other 65534 'cat mnt/lon/.zattrs'
        umount -i mnt
        ended
        "#,
    ) else {
        return;
    };
    assert_eq!(
        said,
        [
            "148", "denied", "denied", "denied", "denied", "units", "ended"
        ]
    );
}

/// No thread of the daemon may enter the mount that it serves.
#[test]
fn a_store_in_the_inherited_mount_is_refused() {
    let Some(said) = script(
        r#"
        open_mount
        # before Linux 6.16 zarrfs can't know the mountpoint
        if ! grep -q fuse_connection: /proc/self/fdinfo/3; then echo skipped; exit; fi
        ln -s mnt link
        for store in mnt mnt/sample.zarr "$D/link/x.zip"; do
            timeout -s KILL 200 bash -c "$(declare -f as zarrfs); zarrfs mount $store /dev/fd/3" 2>&1 || echo $?
        done
        timeout -s KILL 200 bash -c "$(declare -f as zarrfs); zarrfs mount --spill-dir mnt sample.zarr /dev/fd/3" 2>&1 || echo $?
        ended
        umount -i mnt
        "#,
    ) else {
        return;
    };
    if said == ["skipped"] {
        crate::support::announce("skipped: this kernel does not tell the mount of a descriptor");
        return;
    }
    for (refused, what) in said
        .chunks(2)
        .zip(["store", "store", "store", "--spill-dir"])
    {
        assert!(
            refused[0].starts_with(&format!("error: {what} "))
                && refused[0].contains("leads through the mountpoint"),
            "{said:?}"
        );
        assert_eq!(refused[1], "5", "{said:?}");
    }
    assert_eq!((said.len(), said.last().unwrap().as_str()), (9, "ended"));
}

/// mount.fuse3 mounts, drops all capabilities, and passes the descriptor and all options on.
#[test]
fn mount_fuse3_drops_privileges() {
    if !is_installed("mount.fuse3") && !Path::new("/sbin/mount.fuse3").exists() {
        return;
    }
    let Some(said) = script(
        r#"
        # mount(8) gives its helpers a PATH of the system
        mount -t tmpfs tmpfs /usr/local/bin
        ln -s "$D/bin/zarrfs" /usr/local/bin/zarrfs
        options=drop_privileges,setuid=nobody,ro,allow_other,noexec,nofail,cache_size=64M,fsname=climate
        echo "zarrfs#$D/sample.zarr $D/mnt fuse3 $options 0 0" >fstab
        mount -T fstab "$D/mnt"
        findmnt --noheadings --raw --output SOURCE,FSTYPE mnt
        findmnt --noheadings --raw --output OPTIONS mnt | grep -o -e ^ro -e noexec -e allow_other -e user_id=65534
        for process in $(pgrep -x zarrfs); do
            grep -E '^(Uid|CapEff|NoNewPrivs)' "/proc/$process/status" | tr '\t' ' ' >"of-$process"
        done
        sort -u of-* | sort -r
        cat mnt/lat/data.raw | wc -c
        umount mnt
        ended
        # an option that zarrfs does not know
        mount -t fuse3 "zarrfs#$D/sample.zarr" "$D/mnt" -o drop_privileges,setuid=nobody,bogus 2>&1 || echo $?
        ended
        "#,
    ) else {
        return;
    };
    let expected = [
        "climate fuse.zarrfs",
        "ro",
        "noexec",
        "user_id=65534",
        "allow_other",
        "Uid: 65534 65534 65534 65534",
        "NoNewPrivs: 1",
        "CapEff: 0000000000000000",
        "148",
        "ended",
        "error: -o bogus: unknown option",
        "1",
        "ended",
    ];
    assert_eq!(said, expected);
}

/// Returns a script of a ConfigMap in packaging/kubernetes-unprivileged.yaml.
fn packaged_script(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes-unprivileged.yaml");
    let text = fs::read_to_string(file).unwrap();
    let start = format!("  {name}: |");
    let lines = text.lines().skip_while(|line| *line != start).skip(1);
    let script: Vec<&str> = lines.map_while(|line| line.strip_prefix("    ")).collect();
    assert!(!script.is_empty(), "{name}");
    let script = script.join("\n");
    script
        .replace("/etc/mounter", "/run/scripts")
        .replace(" /data", " /run/data")
}

/// As in packaging/kubernetes-unprivileged.yaml, with directories in the place of volumes. A daemon
/// that was killed and starts again gets a new mount.
#[test]
fn a_privileged_container_mounts_for_one_without_privileges() {
    if !is_installed("socat") || !is_installed("fusermount3") {
        return;
    }
    let (listen, mount) = (packaged_script("listen"), packaged_script("mount"));
    let Some(said) = script(&format!(
        r#"
        mkdir /run/data /run/mounter /run/scripts
        cat >/run/scripts/listen <<'END'
{listen}
END
        cat >/run/scripts/mount <<'END'
{mount}
END
        sh /run/scripts/listen &
        mounter=$!
        for _ in 1 2; do
            for _ in $(seq 1000); do [ -S /run/mounter/socket ] && break; sleep 0.1; done
            as 65534 "$D/bin/zarrfs" mount --foreground --read-only sample.zarr /run/mounter/socket 2>>log &
            daemon=$!
            for _ in $(seq 1000); do
                (as 65534 cat /run/data/climate/.zarrfs/stats) >/dev/null 2>&1 && break
                sleep 0.1
            done
            (as 1000 cat /run/data/climate/lat/data.raw) | wc -c
            # one may end by itself when the other has ended
            kill -9 $(pgrep -x zarrfs) 2>/dev/null || true
            {{ wait $daemon || echo $?; }} 2>/dev/null
        done
        kill -TERM $mounter
        wait $mounter && echo stopped
        ended
        findmnt /run/data/climate || echo gone
        "#
    )) else {
        return;
    };
    assert_eq!(
        said,
        ["148", "137", "148", "137", "stopped", "ended", "gone"]
    );
}

/// Runs zarrfs on the store of a sandbox and its file `socket`, where `answer` gets one connection.
fn mount_by_socket(sandbox: &Sandbox, answer: impl FnOnce(OwnedFd) + Send) -> Output {
    let socket = sandbox.path().join("socket");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || answer(listener.accept().unwrap().0.into()));
        with_timeout(300, ZARRFS)
            .args(["mount", "sample.zarr", "socket"])
            .current_dir(sandbox.path())
            .output()
            .unwrap()
    })
}

/// Also of an ordinary user, whose mount fusermount3 makes and unmounts.
#[test]
fn a_socket_gives_the_descriptor_of_fusermount3() {
    if !is_installed("fusermount3") || !Path::new("/dev/fuse").exists() {
        return;
    }
    let sandbox = Sandbox::new();
    let mnt = sandbox.path().join("mnt");
    let output = mount_by_socket(&sandbox, |connection| {
        let mounted = Command::new("fusermount3")
            .args(["-o", "subtype=zarrfs,fsname=climate", "--", text(&mnt)])
            .env("_FUSE_COMMFD", "0")
            .stdin(connection)
            .status();
        assert!(mounted.unwrap().success());
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(fs::read(mnt.join("lat/data.raw")).unwrap().len(), 148);
    let umount = with_timeout(300, "fusermount3")
        .arg("-u")
        .arg(&mnt)
        .status();
    assert!(umount.unwrap().success() && !is_mounted(&mnt));
}

#[test]
fn a_socket_that_gives_no_descriptor_is_refused() {
    let sandbox = Sandbox::new();
    let closed = mount_by_socket(&sandbox, drop);
    let why =
        "mountpoint socket: the program at this socket sent no descriptor; its messages say why";
    assert_eq!(failure(&closed), (5, format!("error: {why}")));
    // nothing listens any more
    let nobody = with_timeout(300, ZARRFS)
        .args(["mount", "sample.zarr", "socket"])
        .current_dir(sandbox.path())
        .output()
        .unwrap();
    let (code, said) = failure(&nobody);
    assert!(
        code == 5 && said.contains("mountpoint socket: Connection refused"),
        "{said}"
    );
}
