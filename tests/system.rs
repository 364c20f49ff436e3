//! zarrfs as a tool of the system: mount(8) and fstab, users without privileges, mountpoints that are made, mounts that
//! are left behind or that nobody uses, the journal. What would change the machine is done in namespaces of its own.

mod support;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::daemon::Daemon;
use support::{Mount, ZARRFS, copy_tree, data, installed, is_mounted, limited, wait_for, zarrfs};

/// A copy of the sample store in a directory of its own, with an empty directory beside it.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        copy_tree(&data("sample.zarr"), &directory.path().join("sample.zarr"));
        fs::create_dir(directory.path().join("mnt")).unwrap();
        Place { directory }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_string()
    }

    /// Runs zarrfs in the directory.
    fn zarrfs(&self, args: &[&str]) -> Output {
        Command::new(ZARRFS).args(args).current_dir(self.directory.path()).output().unwrap()
    }

    /// Runs a script of bash as root of a system where zarrfs is installed, with this directory as $D; what it prints.
    /// Its mounts and processes end with it.
    fn system(&self, script: &str) -> String {
        let install = r#"
            mount -t tmpfs tmpfs /run
            mkdir "$D/sbin"
            for name in mount.zarrfs mount.fuse.zarrfs umount.fuse.zarrfs; do ln -s "$ZARRFS" "$D/sbin/$name"; done
            cp "$(realpath /sbin)"/mount.fuse* "$D/sbin" || true
            mount --bind "$D/sbin" "$(realpath /sbin)"
            cd "$D"
        "#;
        let output = limited(60, "unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc"])
            .arg(format!("{install}\n{script}"))
            .env("D", self.directory.path())
            .env("ZARRFS", ZARRFS)
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
        said
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // of a test that failed
        for mountpoint in mounts_below(self.directory.path()) {
            let _ = Command::new("umount").arg("-il").arg(mountpoint).status();
        }
    }
}

fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let found = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    found.filter(|mounted| mounted.starts_with(path)).collect()
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Exit code and what was said.
fn failure(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_line_of_fstab() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let said = place.system(
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
            ps -e -o comm | grep -c zarrfs || true
        done
        test -f a,b
        "#,
    );
    let store = place.text("sample.zarr");
    let mountpoint = place.text("mnt");
    let once = [
        format!("{store} fuse.zarrfs"),
        "12".into(),
        format!("{mountpoint}: already mounted"),
        "1".into(),
        "gone".into(),
        "0".into(),
    ];
    // mount pads short names
    let words = said.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ").replace(" : ", ": "));
    let words: Vec<String> = words.collect();
    assert_eq!(words, [once.clone(), once].concat());
    let stored = zarrfs(&["cat", &place.text("sample.zarr/air_temperature"), "--length", "2"]);
    assert_eq!(stored.stdout, [2, 1]);
}

#[test]
fn mount_fuse_finds_zarrfs_itself() {
    if !is_root() || !Path::new("/sbin/mount.fuse3").exists() {
        println!("skipped: mount.fuse3 is not installed; scripts/test installs it");
        return;
    }
    let place = Place::new();
    let said = place.system(
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
    assert!(lines[..2] == ["12", "32"] && lines[2].contains("no such store"), "{said}");
}

#[test]
fn umount_tells_what_could_not_be_stored() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let said = place.system(
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
    assert!(said.contains("still mounted") && said.lines().any(|line| line == "32"), "{said}");
    assert!(said.lines().any(|line| line == "200000"), "{said}");
}

#[test]
fn a_user_without_privileges() {
    if !is_root() || !installed("fusermount3") || !installed("setpriv") {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = place.system(
        r#"
        # where the user can reach it, wherever directories of tests lie
        mkdir /run/place
        mount --bind "$D" /run/place
        D=/run/place
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

        "$ZARRFS" mount -o allow_other sample.zarr mnt
        zarrfs umount mnt 2>&1 | grep -o 'zarrfs: mnt: fusermount3: '
        umount mnt

        zarrfs mount sample.zarr mnt -o noexec
        findmnt --noheadings --raw --output OPTIONS mnt | grep -o -e noexec -e user_id=65534
        printf '\002\001' | as_nobody dd of=mnt/air_temperature/data.raw conv=notrunc status=none
        zarrfs umount mnt
        zarrfs cat sample.zarr/air_temperature --length 2 | od -An -tu1

        zarrfs mount sample.zarr mnt
        kill -9 $(ps -e -o pid=,comm= | awk '$2 == "zarrfs" { print $1 }')
        zarrfs mount --replace-stale --idle-timeout 2s sample.zarr mnt
        as_nobody cat mnt/lat/data.raw | wc -c
        for _ in $(seq 100); do findmnt mnt >/dev/null || break; sleep 0.1; done
        findmnt mnt || echo idle

        echo "$D/sample.zarr $D/mnt fuse.zarrfs user,noauto 0 0" >fstab
        mount --bind fstab /etc/fstab
        as_nobody mount "$D/mnt"
        as_nobody cat mnt/lat/data.raw | wc -c
        as_nobody umount "$D/mnt"
        findmnt mnt || echo gone
        "#,
    );
    let expected = ["zarrfs: mnt: fusermount3: ", "noexec", "user_id=65534", "   2   1", "148", "idle", "148", "gone"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// As in a container without root: the user is root in a namespace of his own.
#[test]
fn root_of_a_namespace() {
    let place = Place::new();
    let script = r#"
        "$0" mount -o nofail,auto_mountpoint sample.zarr new/mnt
        stat -c %s new/mnt/lat/data.raw
        "$0" umount new/mnt
        ls
    "#;
    let output = limited(60, "unshare")
        .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-euc", script, ZARRFS])
        .current_dir(place.directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") || said.contains("/dev/fuse") {
        println!("skipped: {said}");
        return;
    }
    assert_done(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "148\nmnt\nsample.zarr\n");
}

/// Calls zarrfs by the name of a helper.
fn helper(place: &Place, name: &str, args: &[&str]) -> Output {
    let program = place.join(name);
    if !program.exists() {
        symlink(ZARRFS, &program).unwrap();
    }
    Command::new(program).args(args).current_dir(place.directory.path()).output().unwrap()
}

#[test]
fn the_helper_answers_as_mount_expects() {
    let place = Place::new();
    let mount = |args: &[&str]| helper(&place, "mount.zarrfs", &[&["sample.zarr", "mnt"], args].concat());
    for (args, code, text) in [
        (&["-o", "rw,bogus"][..], 1, "-o bogus: unknown option"),
        (&["-o", "uid=x"], 1, "-o uid=x: "),
        (&["-f", "-o", "uid=x"], 1, "-o uid=x: "),
        (&["-N", "/proc/1/ns/mnt"], 1, "nsenter"),
        (&["-o", "remount,ro"], 1, "unmount it, and mount again"),
        (&["--bogus"], 1, "--bogus"),
        (&["-o", "cache_dir=/dev/null/x,log_file=/dev/null/y"], 32, "/dev/null/y"),
    ] {
        let (exit, said) = failure(&mount(args));
        assert!(exit == code && said.contains(text), "{args:?}: {exit} {said}");
    }
    let (exit, said) = failure(&helper(&place, "mount.fuse.zarrfs", &["nothing.zarr", "mnt", "-o", "rw"]));
    assert!(exit == 32 && said.contains("no such store"), "{exit} {said}");
    assert_done(&mount(&["-f"]));
    assert!(!is_mounted(&place.join("mnt")));
    // it is mounted, also where that can't be said
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut verbose = Command::new(place.join("mount.zarrfs"));
    verbose.args(["sample.zarr", "mnt", "-v"]).current_dir(place.directory.path()).stdout(full);
    assert_done(&verbose.output().unwrap());
    assert_done(&helper(&place, "umount.fuse.zarrfs", &["mnt"]));
    let output = mount(&["-s", "-n", "-v", "-t", "fuse.zarrfs", "-o", "rw,bogus", "-r"]);
    assert_done(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "zarrfs: sample.zarr mounted on mnt\n");
    assert_eq!(support::errno(fs::write(place.join("mnt/lat/data.raw"), "x")), "EROFS");
    let (exit, said) = failure(&mount(&[]));
    assert!(exit == 32 && said.contains("mounted here already"), "{exit} {said}");
    let umount = |args: &[&str]| helper(&place, "umount.fuse.zarrfs", args);
    let file = fs::File::open(place.join("mnt/lat/data.raw")).unwrap();
    let (exit, said) = failure(&umount(&["mnt"]));
    assert!(exit == 32 && said.contains("in use"), "{exit} {said}");
    assert_done(&umount(&["mnt", "-l", "-n", "-v", "-r", "-t", "fuse.zarrfs"]));
    drop(file);
    assert!(!is_mounted(&place.join("mnt")));
}

/// The examples in `packaging/` and in `docs/operations.md` mount.
#[test]
fn the_examples_are_right() {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let fstab = read("packaging/fstab") + &read("docs/operations.md");
    let lines: Vec<Vec<&str>> = fstab.lines().map(|line| line.split_whitespace().collect()).collect();
    let lines: Vec<&Vec<&str>> = lines.iter().filter(|line| line.get(2) == Some(&"fuse.zarrfs")).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    let unit = read("packaging/mnt-climate.mount");
    let options = unit.lines().find_map(|line| line.strip_prefix("Options=")).unwrap();
    for options in lines.iter().map(|line| line[3]).chain([options]) {
        assert_done(&helper(&place, "mount.zarrfs", &["sample.zarr", "mnt", "-f", "-o", options]));
    }
    if !installed("systemd-analyze") {
        return;
    }
    let units = ["mnt-climate.mount", "mnt-climate.automount", "zarrfs@.service"];
    for unit in units {
        fs::write(place.join(unit), read(&format!("packaging/{unit}")).replace("/usr/bin/zarrfs", ZARRFS)).unwrap();
    }
    let paths = units.map(|unit| place.join(unit));
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(paths).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn a_forced_unmount_does_not_wait() {
    use rustix::process::{Signal, kill_process};
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&data("sample.zarr"), &[]);
    let file = fs::File::open(daemon.path().join("lat/data.raw")).unwrap();
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    assert_done(&zarrfs(&["umount", "--force", daemon.path().to_str().unwrap()]));
    assert!(!is_mounted(&daemon.path()));
    assert!(file.read_at(&mut [0; 8], 0).is_err());
    kill_process(daemon.pid(), Signal::CONT).unwrap();
}

/// "umount of what was written through a map, with nothing synced": the kernel brings it, and the daemon ends only when it
/// is stored.
#[test]
fn a_plain_umount_loses_nothing() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let mut daemon = Daemon::start(&place.join("sample.zarr"), &[]);
    let file = fs::OpenOptions::new().read(true).write(true).open(daemon.path().join("air_temperature/data.raw"));
    let file = file.unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: the map is this test's own, and its length is that of the file.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), 0).unwrap();
        drop(file);
        std::slice::from_raw_parts_mut(map.cast::<u8>(), len).fill(7);
        munmap(map, len).unwrap();
    }
    assert!(Command::new("umount").arg("-i").arg(daemon.path()).status().unwrap().success());
    assert!(daemon.wait().unwrap().success());
    let stored = zarrfs(&["cat", &place.text("sample.zarr/air_temperature")]).stdout;
    assert!(stored.len() == len && stored.iter().all(|&byte| byte == 7));
}

#[test]
fn synchronous_writes_are_stored_when_they_return() {
    let place = Place::new();
    let mount = Mount::new(&place.join("sample.zarr"), &["-o", "sync"]);
    let file = fs::OpenOptions::new().write(true).open(mount.join("air_temperature/data.raw")).unwrap();
    let stored = || zarrfs(&["cat", &place.text("sample.zarr/air_temperature"), "--length", "2"]).stdout;
    assert_eq!(stored(), [0xae, 0xff]);
    file.write_all_at(&[1, 2], 0).unwrap();
    assert_eq!(stored(), [1, 2]);
}

/// "--auto-mountpoint makes the mountpoint, and removes it after the unmount if it is empty."
#[test]
fn a_mountpoint_is_made_and_removed() {
    let place = Place::new();
    let output = place.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]);
    assert_done(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "./sample\n");
    assert!(place.join("sample/lat/data.raw").exists());
    let (code, said) = failure(&place.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]));
    assert!(code == 5 && said.contains("mounted here already"), "{code} {said}");
    assert_done(&place.zarrfs(&["umount", "sample"]));
    assert!(!place.join("sample").exists());
    // also below directories that are missing, and by -o
    assert_done(&place.zarrfs(&["mount", "-o", "auto_mountpoint", "sample.zarr", "a/b"]));
    assert_done(&place.zarrfs(&["umount", "a/b"]));
    assert!(!place.join("a").exists());
    // what was there before stays
    assert_done(&place.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr", "mnt"]));
    assert_done(&place.zarrfs(&["umount", "mnt"]));
    assert!(place.join("mnt").is_dir());
}

#[test]
fn no_mountpoint_is_made_for_nothing() {
    let place = Place::new();
    fs::create_dir(place.join("sample")).unwrap();
    fs::write(place.join("sample/file"), "").unwrap();
    fs::rename(place.join("sample.zarr"), place.join("bare")).unwrap();
    for (args, code, text) in [
        (&["bare"][..], 2, "--auto-mountpoint"),
        (&["--auto-mountpoint", "bare"], 5, "name a mountpoint"),
        (&["--auto-mountpoint", "bare", "bare/new/mnt"], 5, "lies inside the store"),
        (&["--auto-mountpoint", "nothing.zarr", "new/mnt"], 3, "no such store"),
        (&["--auto-mountpoint", "bare", "sample/file/mnt"], 5, "sample/file"),
        (&["--auto-mountpoint", "--readahead", "1M", "--log-file", "/dev/null/x", "bare", "new"], 1, "/dev/null/x"),
    ] {
        let (exit, said) = failure(&place.zarrfs(&[&["mount"], args].concat()));
        assert!(exit == code && said.contains(text), "{args:?}: {exit} {said}");
    }
    fs::rename(place.join("bare"), place.join("sample.zarr")).unwrap();
    let (code, said) = failure(&place.zarrfs(&["mount", "--auto-mountpoint", "sample.zarr"]));
    assert!(code == 5 && said.contains("no empty directory"), "{code} {said}");
    let mut names: Vec<_> = fs::read_dir(place.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["mnt", "sample", "sample.zarr"]);
    assert!(!place.join("sample.zarr/new").exists());
}

/// "--idle-timeout unmounts when no file is open and nothing was asked for so long."
#[test]
fn a_mount_that_nobody_uses_ends() {
    let place = Place::new();
    let timeout = Duration::from_millis(1500);
    let begun = Instant::now();
    assert_done(&place.zarrfs(&["mount", "--auto-mountpoint", "--idle-timeout", "1500ms", "sample.zarr", "new"]));
    let mountpoint = place.join("new");
    // somebody looks again and again
    while begun.elapsed() < timeout * 2 {
        assert!(mountpoint.join("lat/data.raw").exists());
        std::thread::sleep(timeout / 20);
    }
    let file = fs::File::open(mountpoint.join("lat/data.raw")).unwrap();
    std::thread::sleep(timeout * 2);
    assert!(is_mounted(&mountpoint), "a file is open");
    let mut visitor = Command::new("sleep").arg("60").current_dir(&mountpoint).spawn().unwrap();
    drop(file);
    std::thread::sleep(timeout * 2);
    assert!(is_mounted(&mountpoint), "somebody's working directory");
    visitor.kill().unwrap();
    visitor.wait().unwrap();
    let left = Instant::now();
    // to ask the mount itself would keep it
    wait_for("the unmount", || !is_mounted(&mountpoint));
    wait_for("the daemon's end", || !mountpoint.exists());
    assert!(left.elapsed() < timeout * 4, "{:?}", left.elapsed());
}

#[test]
fn an_idle_mount_has_stored_what_was_written() {
    let place = Place::new();
    assert_done(&place.zarrfs(&["mount", "--idle-timeout", "2s", "sample.zarr", "mnt"]));
    fs::write(place.join("mnt/air_temperature/data.raw"), vec![9; 62 * 37 * 53 * 2]).unwrap();
    wait_for("the unmount", || !is_mounted(&place.join("mnt")));
    let stored = zarrfs(&["cat", &place.text("sample.zarr/air_temperature")]).stdout;
    assert!(stored.len() == 62 * 37 * 53 * 2 && stored.iter().all(|&byte| byte == 9));
}

/// "--replace-stale removes what a daemon that is gone has left, exit code 7 without it."
#[test]
fn a_stale_mount_is_replaced() {
    let place = Place::new();
    let pid = |mountpoint: &Path| {
        let stats = fs::read_to_string(mountpoint.join(".zarrfs/stats")).unwrap();
        let pid = stats.lines().find_map(|line| line.strip_prefix("pid")).unwrap().trim().parse().unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    };
    let kill = || {
        let mountpoint = place.join("mnt");
        rustix::process::kill_process(pid(&mountpoint), rustix::process::Signal::KILL).unwrap();
        wait_for("the daemon's end", || rustix::fs::statfs(&mountpoint).is_err());
    };
    assert_done(&place.zarrfs(&["mount", "sample.zarr", "mnt"]));
    let (code, said) = failure(&place.zarrfs(&["mount", "--replace-stale", "sample.zarr", "mnt"]));
    assert!(code == 5 && said.contains("mounted here already"), "a mount that is alive stays: {code} {said}");
    kill();
    let (code, said) = failure(&place.zarrfs(&["mount", "sample.zarr", "mnt"]));
    assert!(code == 7 && said.contains("--replace-stale"), "{code} {said}");
    for options in [&["--replace-stale"][..], &["-o", "replace_stale,auto_mountpoint"]] {
        assert_done(&place.zarrfs(&[&["mount"], options, &["sample.zarr", "mnt"]].concat()));
        assert!(place.join("mnt/lat/data.raw").exists());
        assert_eq!(zarrfs::fuse::mounts_at(&place.join("mnt")).unwrap().len(), 1);
        kill();
    }
    assert_done(&place.zarrfs(&["umount", "mnt"]));
}

/// "--log-journal sends the log to the journal of systemd."
#[test]
fn the_journal_is_told() {
    let place = Place::new();
    fs::write(place.join("sample.zarr/air_temperature/0.0.0"), "damaged").unwrap();
    let socket = place.text("journal");
    let journal = format!("--log-journal={socket}");
    let (code, said) = failure(&place.zarrfs(&["mount", &journal, "sample.zarr", "mnt"]));
    assert!(code == 1 && said.contains("systemd-journald"), "{code} {said}");
    let listening = UnixDatagram::bind(&socket).unwrap();
    listening.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_done(&place.zarrfs(&["mount", "-o", &format!("log_journal={socket},log_level=info"), "sample.zarr", "mnt"]));
    assert_eq!(support::errno(fs::read(place.join("mnt/air_temperature/data.raw"))), "EIO");
    let mut entry = [0; 4096];
    let length = listening.recv(&mut entry).unwrap();
    let entry = String::from_utf8_lossy(&entry[..length]);
    let mountpoint = fs::canonicalize(place.directory.path()).unwrap().join("mnt");
    let fields = format!("PRIORITY=3\nSYSLOG_IDENTIFIER=zarrfs\nZARRFS_MOUNTPOINT={}\nMESSAGE=", mountpoint.display());
    assert!(entry.starts_with(&fields) && entry.ends_with('\n'), "{entry}");
    assert!(entry.contains("air_temperature") && entry.contains("0.0.0"), "{entry}");
    // a journal that is gone holds nobody up
    drop(listening);
    assert_done(&place.zarrfs(&["umount", "mnt"]));
    let both = place.zarrfs(&["mount", &journal, "--log-file", "x", "sample.zarr", "mnt"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_service_says_when_it_is_ready() {
    let place = Place::new();
    let listening = UnixDatagram::bind(place.join("notify")).unwrap();
    listening.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut service = Command::new(ZARRFS)
        .args(["mount", "--foreground", "sample.zarr", "mnt"])
        .current_dir(place.directory.path())
        .env("NOTIFY_SOCKET", place.join("notify"))
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let length = listening.recv(&mut said).unwrap();
    assert_eq!(&said[..length], b"READY=1\n");
    assert!(is_mounted(&place.join("mnt")));
    assert_done(&place.zarrfs(&["umount", "mnt"]));
    assert!(service.wait().unwrap().success());
}
