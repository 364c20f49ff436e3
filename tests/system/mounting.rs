//! zarrfs as a system tool: mount(8) and fstab, unprivileged users, mountpoints that are created,
//! stale and idle mounts, the journal. The programs of the system are the reference. Tests that
//! would change the machine run in their own namespaces.

use crate::support;
use crate::support::daemon::Daemon;
use crate::support::shared_map::SharedMap;
use crate::support::{
    Mount, ZARRFS, answered, copy_tree, is_installed, is_mounted, test_data, wait_for,
    with_timeout, zarrfs,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with a copy of the sample store and an empty directory for a mount.
pub struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        let directory = tempfile::tempdir().unwrap();
        copy_tree(
            &test_data("sample.zarr"),
            &directory.path().join("sample.zarr"),
        );
        fs::create_dir(directory.path().join("mnt")).unwrap();
        Sandbox { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn join(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_string()
    }

    /// Runs zarrfs in the directory.
    fn zarrfs(&self, args: &[&str]) -> Output {
        Command::new(ZARRFS)
            .args(args)
            .current_dir(self.directory.path())
            .output()
            .unwrap()
    }

    /// Runs a bash script as root of a system where zarrfs is installed, with this directory as $D.
    /// Returns its output. The mounts and processes of the script end with it.
    pub fn system(&self, script: &str) -> String {
        let install = r#"
            mount -t tmpfs tmpfs /run
            mkdir "$D/sbin"
            for name in mount.zarrfs mount.fuse.zarrfs umount.fuse.zarrfs; do ln -s "$ZARRFS" "$D/sbin/$name"; done
            cp "$(realpath /sbin)"/mount.fuse* "$D/sbin" || true
            mount --bind "$D/sbin" "$(realpath /sbin)"
            cd "$D"
        "#;
        let output = with_timeout(600, "unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "-euc",
            ])
            .arg(format!("{install}\n{script}"))
            .env("D", self.directory.path())
            .env("ZARRFS", ZARRFS)
            .output()
            .unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{said}");
        said
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // a failing test may have left mounts
        for mountpoint in mounts_below(self.directory.path()) {
            let _ = Command::new("umount").arg("-il").arg(mountpoint).status();
        }
    }
}

fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let found = table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from);
    found.filter(|mounted| mounted.starts_with(path)).collect()
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Returns the exit code and the standard error of a command.
fn failure(output: &Output) -> (i32, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn assert_succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_line_of_fstab_mounts_a_store() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let said = sandbox.system(
        r#"
        options=nofail,_netdev,x-systemd.automount,comment=mine,cache_size=64M,uid=12,log_file=$D/a\\,b,allow_other
        for type in fuse.zarrfs zarrfs; do
            echo "$D/sample.zarr $D/mnt $type $options 0 0" >fstab
            mount -T fstab "$D/mnt"
            findmnt --noheadings --raw --output SOURCE,FSTYPE "$D/mnt"
            stat --format %u mnt/lat/data.raw
            umount "$D/mnt"
            mount -T fstab -a
            mount -T fstab -a -v
            findmnt --noheadings --raw --output TARGET "$D/mnt" | wc -l
            printf '\002\001' | dd of=mnt/air_temperature/data.raw conv=notrunc status=none
            umount mnt
            findmnt "$D/mnt" || echo gone
            for _ in $(seq 1000); do ps -e -o comm | grep -q zarrfs || break; sleep 0.1; done
            ps -e -o comm | grep -c zarrfs || true
        done
        test -f a,b
        "#,
    );
    let store = sandbox.text("sample.zarr");
    let mountpoint = sandbox.text("mnt");
    let once = [
        format!("{store} fuse.zarrfs"),
        "12".into(),
        format!("{mountpoint}: already mounted"),
        "1".into(),
        "gone".into(),
        "0".into(),
    ];
    // mount(8) pads short names
    let words = said.lines().map(|l| {
        l.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace(" : ", ": ")
    });
    let words: Vec<String> = words.collect();
    assert_eq!(words, [once.clone(), once].concat());
    let stored = zarrfs(&[
        "cat",
        &sandbox.text("sample.zarr/air_temperature"),
        "--length",
        "2",
    ]);
    assert_eq!(stored.stdout, [2, 1]);
}

#[test]
fn mount_fuse_finds_zarrfs() {
    if !is_root() || !Path::new("/sbin/mount.fuse3").exists() {
        println!("skipped: mount.fuse3 is not installed; scripts/test installs it");
        return;
    }
    let sandbox = Sandbox::new();
    let said = sandbox.system(
        r#"
        rm sbin/*.zarrfs
        mkdir bin
        ln -s "$ZARRFS" bin/zarrfs
        mount --bind bin /usr/local/bin
        mount -t fuse.zarrfs sample.zarr mnt -o uid=12,nosuid,ro
        stat --format %u mnt/lat/data.raw
        umount mnt
        mount -t fuse.zarrfs nothing mnt || echo $?
        "#,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[..2] == ["12", "32"] && lines[2].contains("no such store"),
        "{said}"
    );
}

#[test]
fn umount_reports_data_that_could_not_be_stored() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let said = sandbox.system(
        r#"
        mkdir full
        mount -t tmpfs -o size=2M tmpfs full
        cp -r sample.zarr full
        mount -t zarrfs full/sample.zarr mnt
        dd if=/dev/zero of=full/filler status=none bs=64K 2>&1 | grep -o 'No space' || true
        head -c 200000 /dev/urandom 1<>mnt/air_temperature/data.raw || echo told
        umount mnt || echo $?
        ls mnt >/dev/null
        rm full/filler
        umount mnt
        "$ZARRFS" cat full/sample.zarr/air_temperature --length 200000 | wc -c
        "#,
    );
    assert!(
        said.contains("still mounted") && said.lines().any(|line| line == "32"),
        "{said}"
    );
    assert!(said.lines().any(|line| line == "200000"), "{said}");
}

#[test]
fn an_unprivileged_user_can_mount_and_unmount() {
    if !is_root() || !is_installed("fusermount3") || !is_installed("setpriv") {
        return;
    }
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = sandbox.system(
        r#"
        # where the user can reach it, wherever directories of tests lie
        mkdir /run/sandbox
        mount --bind "$D" /run/sandbox
        D=/run/sandbox
        cd "$D"

        mkdir dev bin
        mount -t tmpfs tmpfs dev
        mknod -m 666 dev/fuse c 10 229
        mount --bind dev/fuse /dev/fuse
        touch bin/zarrfs
        mount --bind "$ZARRFS" bin/zarrfs
        ln -sf "$D/bin/zarrfs" sbin/mount.fuse.zarrfs
        ln -sf "$D/bin/zarrfs" sbin/umount.fuse.zarrfs
        chown -R nobody sample.zarr mnt
        as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
        zarrfs() { as_nobody "$D/bin/zarrfs" "$@"; }

        # a user sees that the mount of another one exists
        "$ZARRFS" mount sample.zarr mnt
        zarrfs stats | awk -v path="$D/mnt" '$1 == path { print $2, $3, $4, $5 }'
        "$ZARRFS" umount mnt

        "$ZARRFS" mount -o allow_other sample.zarr mnt
        zarrfs umount mnt 2>&1 | grep -o 'error: mnt: still mounted: '
        umount mnt

        zarrfs mount sample.zarr mnt -o noexec
        findmnt --noheadings --raw --output OPTIONS mnt | grep -o -e noexec -e user_id=65534
        printf '\002\001' | as_nobody dd of=mnt/air_temperature/data.raw conv=notrunc status=none
        # root may not read such a mount, but ask its daemon
        ls mnt 2>/dev/null || "$ZARRFS" stats mnt | grep -o '^store  '
        "$ZARRFS" stats | awk -v path="$D/mnt" '$1 == path { print $4, $5 }'
        "$ZARRFS" umount mnt
        findmnt mnt || echo gone
        zarrfs cat sample.zarr/air_temperature --length 2 | od -An -tu1

        zarrfs mount sample.zarr mnt
        # the daemon, and the process that would start another one; the end of one may end the other
        kill -9 $(ps -e -o pid=,comm= | awk '$2 == "zarrfs" { print $1 }') 2>/dev/null || true
        # on a busy machine, the mount may end before it is read
        for timeout in 2s 10s 60s; do
            zarrfs mount --replace-stale --idle-timeout $timeout sample.zarr mnt
            if as_nobody cat mnt/lat/data.raw 2>/dev/null | wc -c | grep 148; then break; fi
        done
        for _ in $(seq 1000); do findmnt mnt >/dev/null || break; sleep 0.1; done
        findmnt mnt || echo idle

        echo "$D/sample.zarr $D/mnt fuse.zarrfs user,noauto 0 0" >fstab
        mount --bind fstab /etc/fstab
        as_nobody mount "$D/mnt"
        as_nobody cat mnt/lat/data.raw | wc -c
        as_nobody umount "$D/mnt"
        findmnt mnt || echo gone
        "#,
    );
    let expected = [
        "/run/sandbox/sample.zarr - 0 denied",
        "error: mnt: still mounted: ",
        "noexec",
        "user_id=65534",
        "store  ",
        "65534 ok",
        "gone",
        "   2   1",
        "148",
        "idle",
        "148",
        "gone",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// Where mounts propagate, the daemon's mount appears below a bind mount, too.
#[test]
fn a_mountpoint_inside_the_store_by_a_bind_mount_is_refused() {
    if !is_root() {
        return;
    }
    let said = Sandbox::new().system(
        r#"
        mkdir -p shared/mnt sample.zarr/lat/bound
        mount --bind shared shared
        mount --make-shared shared
        mount --bind shared sample.zarr/lat/bound
        timeout -s KILL 300 "$ZARRFS" mount sample.zarr shared/mnt 2>&1 | grep -o 'inside the store' || true
        findmnt shared/mnt || findmnt sample.zarr/lat/bound/mnt || echo none
        "#,
    );
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        ["inside the store", "none"]
    );
}

/// Such a user, for example in an unprivileged container, can mount without fusermount3.
#[test]
fn root_of_a_namespace_can_mount() {
    let sandbox = Sandbox::new();
    let script = r#"
        "$0" mount -o nofail,auto_mountpoint sample.zarr new/mnt
        stat -c %s new/mnt/lat/data.raw
        "$0" umount new/mnt
        ls
    "#;
    let output = with_timeout(600, "unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-euc", script, ZARRFS])
        .current_dir(sandbox.directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") || said.contains("/dev/fuse") {
        println!("skipped: {said}");
        return;
    }
    assert_succeeded(&output);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "148\nmnt\nsample.zarr\n"
    );
}

/// Runs zarrfs under the name of a mount helper.
fn helper(sandbox: &Sandbox, name: &str, args: &[&str]) -> Output {
    let program = sandbox.join(name);
    if !program.exists() {
        symlink(ZARRFS, &program).unwrap();
    }
    Command::new(program)
        .args(args)
        .current_dir(sandbox.directory.path())
        .output()
        .unwrap()
}

#[test]
fn the_mount_helper_returns_the_exit_codes_of_mount() {
    let sandbox = Sandbox::new();
    let mount = |args: &[&str]| {
        helper(
            &sandbox,
            "mount.zarrfs",
            &[&["sample.zarr", "mnt"], args].concat(),
        )
    };
    for (args, code, text) in [
        (&["-o", "rw,bogus"][..], 1, "-o bogus: unknown option"),
        (&["-o", "uid=x"], 1, "-o uid=x: "),
        (&["-f", "-o", "uid=x"], 1, "-o uid=x: "),
        (&["-N", "/proc/1/ns/mnt"], 1, "nsenter"),
        (&["-o", "remount,ro"], 1, "unmount it, and mount again"),
        (&["--bogus"], 1, "--bogus"),
        (
            &["-o", "cache_dir=/dev/null/x,log_file=/dev/null/y"],
            32,
            "/dev/null/y",
        ),
    ] {
        let (exit, said) = failure(&mount(args));
        assert!(
            exit == code && said.contains(text),
            "{args:?}: {exit} {said}"
        );
    }
    let (exit, said) = failure(&helper(
        &sandbox,
        "mount.fuse.zarrfs",
        &["nothing.zarr", "mnt", "-o", "rw"],
    ));
    assert!(
        exit == 32 && said.contains("no such store"),
        "{exit} {said}"
    );
    assert_succeeded(&mount(&["-f"]));
    assert!(!is_mounted(&sandbox.join("mnt")));
    // the mount succeeds even if standard output is closed
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut verbose = Command::new(sandbox.join("mount.zarrfs"));
    verbose
        .args(["sample.zarr", "mnt", "-v"])
        .current_dir(sandbox.directory.path())
        .stdout(full);
    assert_succeeded(&verbose.output().unwrap());
    assert_succeeded(&answered(|| {
        helper(&sandbox, "umount.fuse.zarrfs", &["mnt"])
    }));
    let output = mount(&[
        "-s",
        "-n",
        "-v",
        "-t",
        "fuse.zarrfs",
        "-o",
        "rw,bogus",
        "-r",
    ]);
    assert_succeeded(&output);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "zarrfs: sample.zarr mounted on mnt\n"
    );
    assert_eq!(
        support::errno(fs::write(sandbox.join("mnt/lat/data.raw"), "x")),
        "EROFS"
    );
    let (exit, said) = failure(&mount(&[]));
    assert!(
        exit == 32 && said.contains("mounted here already"),
        "{exit} {said}"
    );
    let umount = |args: &[&str]| helper(&sandbox, "umount.fuse.zarrfs", args);
    let file = fs::File::open(sandbox.join("mnt/lat/data.raw")).unwrap();
    let (exit, said) = failure(&answered(|| umount(&["mnt"])));
    assert!(exit == 32 && said.contains("in use"), "{exit} {said}");
    assert_succeeded(&umount(&[
        "mnt",
        "-l",
        "-n",
        "-v",
        "-r",
        "-t",
        "fuse.zarrfs",
    ]));
    drop(file);
    assert!(!is_mounted(&sandbox.join("mnt")));
}

/// The examples in `packaging/` and in `docs/operations.md` mount.
#[test]
fn documented_examples_work() {
    let sandbox = Sandbox::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let fstab = read("packaging/fstab") + &read("docs/operations.md");
    let lines: Vec<Vec<&str>> = fstab
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let lines: Vec<&Vec<&str>> = lines
        .iter()
        .filter(|line| line.get(2) == Some(&"fuse.zarrfs"))
        .collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    let unit = read("packaging/mnt-climate.mount");
    let options = unit
        .lines()
        .find_map(|line| line.strip_prefix("Options="))
        .unwrap();
    for options in lines.iter().map(|line| line[3]).chain([options]) {
        assert_succeeded(&helper(
            &sandbox,
            "mount.zarrfs",
            &["sample.zarr", "mnt", "-f", "-o", options],
        ));
    }
    if !is_installed("systemd-analyze") {
        return;
    }
    let units = [
        "mnt-climate.mount",
        "mnt-climate.automount",
        "zarrfs@.service",
    ];
    for unit in units {
        fs::write(
            sandbox.join(unit),
            read(&format!("packaging/{unit}")).replace("/usr/bin/zarrfs", ZARRFS),
        )
        .unwrap();
    }
    let paths = units.map(|unit| sandbox.join(unit));
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(paths)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn a_forced_unmount_does_not_wait() {
    use rustix::process::{Signal, kill_process};
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&test_data("sample.zarr"), &[]);
    let file = fs::File::open(daemon.path().join("lat/data.raw")).unwrap();
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    assert_succeeded(&zarrfs(&[
        "umount",
        "--force",
        daemon.path().to_str().unwrap(),
    ]));
    assert!(!is_mounted(&daemon.path()));
    assert!(file.read_at(&mut [0; 8], 0).is_err());
    kill_process(daemon.pid(), Signal::CONT).unwrap();
}

/// umount(8) waits until bytes written through a map are stored, even without msync.
#[test]
fn a_plain_umount_loses_nothing() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut daemon = Daemon::start(&sandbox.join("sample.zarr"), &[]);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(daemon.path().join("air_temperature/data.raw"));
    let file = file.unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let map = SharedMap::new(&file);
    drop(file);
    map.write(0, &vec![7; len]);
    drop(map);
    assert!(
        Command::new("umount")
            .arg("-i")
            .arg(daemon.path())
            .status()
            .unwrap()
            .success()
    );
    assert!(daemon.wait().unwrap().success());
    let stored = zarrfs(&["cat", &sandbox.text("sample.zarr/air_temperature")]).stdout;
    assert!(stored.len() == len && stored.iter().all(|&byte| byte == 7));
}

#[test]
fn synchronous_writes_are_stored_when_they_return() {
    let sandbox = Sandbox::new();
    let mount = Mount::new(&sandbox.join("sample.zarr"), &["-o", "sync"]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(mount.join("air_temperature/data.raw"))
        .unwrap();
    let stored = || {
        zarrfs(&[
            "cat",
            &sandbox.text("sample.zarr/air_temperature"),
            "--length",
            "2",
        ])
        .stdout
    };
    assert_eq!(stored(), [0xae, 0xff]);
    file.write_all_at(&[1, 2], 0).unwrap();
    assert_eq!(stored(), [1, 2]);
}

/// A daemon that has taken over does not know the mountpoint that was made.
#[test]
fn a_made_mountpoint_is_removed_after_an_upgrade() {
    let sandbox = Sandbox::new();
    assert_succeeded(&sandbox.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]));
    let upgraded = sandbox.zarrfs(&["upgrade", "sample"]);
    let unmounted = sandbox.zarrfs(&["umount", "sample"]);
    let is_left = sandbox.path().join("sample").exists();
    assert_succeeded(&unmounted);
    assert!(!is_left, "{upgraded:?}");
}

/// `--auto-mountpoint`: "create the mountpoint, and remove it after the unmount if it is empty."
#[test]
fn a_mountpoint_is_created_and_removed() {
    let sandbox = Sandbox::new();
    let output = sandbox.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]);
    assert_succeeded(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "./sample\n");
    assert!(sandbox.join("sample/lat/data.raw").exists());
    let (code, said) = failure(&sandbox.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]));
    assert!(
        code == 5 && said.contains("mounted here already"),
        "{code} {said}"
    );
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "sample"])));
    assert!(!sandbox.join("sample").exists());
    // also below missing directories, and as an option of -o
    assert_succeeded(&sandbox.zarrfs(&["mount", "-o", "auto_mountpoint", "sample.zarr", "a/b"]));
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "a/b"])));
    assert!(!sandbox.join("a").exists());
    // an existing directory is kept
    assert_succeeded(&sandbox.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr", "mnt"]));
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "mnt"])));
    assert!(sandbox.join("mnt").is_dir());
}

#[test]
fn a_failed_mount_creates_no_mountpoint() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.join("sample")).unwrap();
    fs::write(sandbox.join("sample/file"), "").unwrap();
    fs::rename(sandbox.join("sample.zarr"), sandbox.join("bare")).unwrap();
    for (args, code, text) in [
        (&["bare"][..], 2, "--auto-mountpoint"),
        (&["--auto-mountpoint", "bare"], 5, "name a mountpoint"),
        (
            &["--auto-mountpoint", "bare", "bare/new/mnt"],
            5,
            "inside the store",
        ),
        (
            &["--auto-mountpoint", "nothing.zarr", "new/mnt"],
            3,
            "no such store",
        ),
        (
            &["--auto-mountpoint", "bare", "sample/file/mnt"],
            5,
            "sample/file",
        ),
        (
            &[
                "--auto-mountpoint",
                "--readahead",
                "1M",
                "--log-file",
                "/dev/null/x",
                "bare",
                "new",
            ],
            1,
            "/dev/null/x",
        ),
    ] {
        let (exit, said) = failure(&sandbox.zarrfs(&[&["mount"], args].concat()));
        assert!(
            exit == code && said.contains(text),
            "{args:?}: {exit} {said}"
        );
    }
    fs::rename(sandbox.join("bare"), sandbox.join("sample.zarr")).unwrap();
    let (code, said) = failure(&sandbox.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]));
    assert!(
        code == 5 && said.contains("no empty directory"),
        "{code} {said}"
    );
    let mut names: Vec<_> = fs::read_dir(sandbox.directory.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["mnt", "sample", "sample.zarr"]);
    assert!(!sandbox.join("sample.zarr/new").exists());
}

/// A mount of root sets the kernel's read-ahead to 256 KiB, or to the value of `--readahead`.
#[test]
fn a_mount_sets_the_read_ahead_of_the_kernel() {
    let s = Sandbox::new();
    for (options, kib) in [(&[][..], "256"), (&["--readahead", "1M"], "1024")] {
        let mount = Mount::new(&s.join("sample.zarr"), options);
        let device = fs::metadata(mount.path()).unwrap().dev();
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let may_set = fs::OpenOptions::new().write(true).open(&setting).is_ok();
        // an unprivileged mount keeps the kernel's default
        let expected = if may_set { kib } else { "128" };
        assert_eq!(
            fs::read_to_string(setting).unwrap().trim(),
            expected,
            "{options:?}"
        );
    }
}

/// `--idle-timeout`: "unmount after this time without open files and requests."
#[test]
fn an_idle_mount_is_unmounted() {
    let timeouts = [1500, 6000, 24_000].map(Duration::from_millis);
    assert!(timeouts.into_iter().any(is_unmounted_when_idle));
}

/// `--until-eof`: "everything is stored, and files that are still open end with their last use."
#[test]
fn a_mount_ends_with_standard_input() {
    for more in [&[][..], &["--no-outlive"], &["--foreground"]] {
        let sandbox = Sandbox::new();
        let mut child = Command::new(ZARRFS)
            .args(["mount", "--until-eof", "--auto-mountpoint"])
            .args(more)
            .args(["sample.zarr", "new"])
            .current_dir(sandbox.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mountpoint = sandbox.join("new");
        wait_for("the mount", || mountpoint.join("lat/data.raw").exists());
        input.write_all(b"ignored").unwrap();
        let file = support::open_for_writing(&mountpoint.join("lat/data.raw"));
        file.write_all_at(b"last", 0).unwrap();
        assert!(is_mounted(&mountpoint));
        drop(input);
        wait_for("the unmount", || !is_mounted(&mountpoint));
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"last", "the file is still open");
        drop(file);
        wait_for("the daemon's end", || !mountpoint.exists());
        assert!(child.wait().unwrap().success());
        let stored = sandbox.zarrfs(&["cat", "sample.zarr/lat", "--length", "4"]);
        assert_eq!(stored.stdout, b"last");
    }
}

#[test]
fn a_mount_needs_a_pipe_that_ends() {
    let sandbox = Sandbox::new();
    let refused = Command::new(ZARRFS)
        .args(["mount", "--until-eof", "sample.zarr", "mnt"])
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (code, message) = support::failure(&refused);
    assert_eq!(code, 2);
    assert!(
        message.contains("--until-eof: standard input is neither a pipe nor a socket"),
        "{message}"
    );
    assert!(!is_mounted(&sandbox.join("mnt")));
}

/// Uses a mount, leaves it, and asserts that it ends then. Returns false if this process got no
/// time to use the mount for the timeout, so that the mount may have ended before.
fn is_unmounted_when_idle(timeout: Duration) -> bool {
    let sandbox = Sandbox::new();
    let begun = Instant::now();
    assert_succeeded(&sandbox.zarrfs(&[
        "mount",
        "--auto-mountpoint",
        "--idle-timeout",
        &format!("{}ms", timeout.as_millis()),
        "sample.zarr",
        "new",
    ]));
    let mountpoint = sandbox.join("new");
    let mut used = begun;
    let mut uses = 0;
    // repeated use keeps the mount
    while begun.elapsed() < timeout * 2 {
        let now = Instant::now();
        let exists = mountpoint.join("lat/data.raw").exists();
        // the kernel may answer from its memory, but not for a new name
        uses += 1;
        let _ = mountpoint.join(format!("new-{uses}")).exists();
        if used.elapsed() >= timeout {
            return false;
        }
        assert!(exists);
        used = now;
        std::thread::sleep(timeout / 20);
    }
    let file = fs::File::open(mountpoint.join("lat/data.raw"));
    if used.elapsed() >= timeout {
        return false;
    }
    let file = file.unwrap();
    std::thread::sleep(timeout * 2);
    assert!(is_mounted(&mountpoint), "a file is open");
    let mut visitor = Command::new("sleep")
        .arg("600")
        .current_dir(&mountpoint)
        .spawn()
        .unwrap();
    drop(file);
    std::thread::sleep(timeout * 2);
    assert!(is_mounted(&mountpoint), "somebody's working directory");
    visitor.kill().unwrap();
    visitor.wait().unwrap();
    // listing the mount would count as use
    wait_for("the unmount", || !is_mounted(&mountpoint));
    wait_for("the daemon's end", || !mountpoint.exists());
    true
}

#[test]
fn an_idle_unmount_stores_all_writes() {
    let sandbox = Sandbox::new();
    let written = ["2s", "10s", "60s"].into_iter().any(|timeout| {
        let args = ["mount", "--idle-timeout", timeout, "sample.zarr", "mnt"];
        assert_succeeded(&sandbox.zarrfs(&args));
        let data = sandbox.join("mnt/air_temperature/data.raw");
        match fs::write(data, vec![9; 62 * 37 * 53 * 2]) {
            // on a busy machine, the mount may end before the write begins
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            written => {
                written.unwrap();
                true
            }
        }
    });
    assert!(written);
    wait_for("the unmount", || !is_mounted(&sandbox.join("mnt")));
    let stored = zarrfs(&["cat", &sandbox.text("sample.zarr/air_temperature")]).stdout;
    assert!(stored.len() == 62 * 37 * 53 * 2 && stored.iter().all(|&byte| byte == 9));
}

/// `--replace-stale`: "first remove a mount whose daemon has ended." Without it the exit code is 7.
#[test]
fn a_stale_mount_is_replaced() {
    let sandbox = Sandbox::new();
    let pid = |mountpoint: &Path| {
        let stats = fs::read_to_string(mountpoint.join(".zarrfs/stats")).unwrap();
        let pid = stats
            .lines()
            .find_map(|line| line.strip_prefix("pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    };
    let kill = || {
        let mountpoint = sandbox.join("mnt");
        rustix::process::kill_process(pid(&mountpoint), rustix::process::Signal::KILL).unwrap();
        wait_for("the daemon's end", || {
            rustix::fs::statfs(&mountpoint).is_err()
        });
    };
    assert_succeeded(&sandbox.zarrfs(&["mount", "--no-outlive", "sample.zarr", "mnt"]));
    let (code, said) = failure(&sandbox.zarrfs(&[
        "mount",
        "--replace-stale",
        "--no-outlive",
        "sample.zarr",
        "mnt",
    ]));
    assert!(
        code == 5 && said.contains("mounted here already"),
        "a mount that is alive stays: {code} {said}"
    );
    kill();
    let (code, said) = failure(&sandbox.zarrfs(&["mount", "--no-outlive", "sample.zarr", "mnt"]));
    assert!(
        code == 7 && said.contains("--replace-stale"),
        "{code} {said}"
    );
    for options in [
        &["--replace-stale"][..],
        &["-o", "replace_stale,auto_mountpoint"],
    ] {
        assert_succeeded(
            &sandbox
                .zarrfs(&[&["mount", "--no-outlive"], options, &["sample.zarr", "mnt"]].concat()),
        );
        assert!(sandbox.join("mnt/lat/data.raw").exists());
        assert_eq!(
            zarrfs::fuse::mounts_at(&sandbox.join("mnt")).unwrap().len(),
            1
        );
        kill();
    }
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "mnt"])));
}

/// `--log-journal` sends the log to the journal.
#[test]
fn the_log_is_sent_to_the_journal() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.join("sample.zarr/air_temperature/0.0.0"), "damaged").unwrap();
    // the daemon changes its directory, and this name is relative to the directory where it was
    // started
    let journal = "--log-journal=journal";
    let (code, said) = failure(&sandbox.zarrfs(&["mount", journal, "sample.zarr", "mnt"]));
    assert!(
        code == 1 && said.contains("systemd-journald"),
        "{code} {said}"
    );
    let listening = UnixDatagram::bind(sandbox.join("journal")).unwrap();
    listening
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    assert_succeeded(&sandbox.zarrfs(&[
        "mount",
        "-o",
        "log_journal=journal,log_level=info",
        "sample.zarr",
        "mnt",
    ]));
    assert_eq!(
        support::errno(fs::read(sandbox.join("mnt/air_temperature/data.raw"))),
        "EIO"
    );
    let mut entry = [0; 4096];
    let length = listening.recv(&mut entry).unwrap();
    let entry = String::from_utf8_lossy(&entry[..length]);
    let mountpoint = fs::canonicalize(sandbox.directory.path())
        .unwrap()
        .join("mnt");
    let fields = format!(
        "PRIORITY=3\nSYSLOG_IDENTIFIER=zarrfs\nZARRFS_MOUNTPOINT={}\nMESSAGE=",
        mountpoint.display()
    );
    assert!(
        entry.starts_with(&fields) && entry.ends_with('\n'),
        "{entry}"
    );
    assert!(
        entry.contains("air_temperature") && entry.contains("0.0.0"),
        "{entry}"
    );
    // the mount continues without a journal
    drop(listening);
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "mnt"])));
    let both = sandbox.zarrfs(&["mount", journal, "--log-file", "x", "sample.zarr", "mnt"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_service_reports_that_it_is_ready() {
    let sandbox = Sandbox::new();
    let listening = UnixDatagram::bind(sandbox.join("notify")).unwrap();
    listening
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let mut service = Command::new(ZARRFS)
        .args(["mount", "--foreground", "sample.zarr", "mnt"])
        .current_dir(sandbox.directory.path())
        .env("NOTIFY_SOCKET", sandbox.join("notify"))
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let length = listening.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"READY=1\n");
    assert!(is_mounted(&sandbox.join("mnt")));
    assert_succeeded(&answered(|| sandbox.zarrfs(&["umount", "mnt"])));
    assert!(service.wait().unwrap().success());
}
