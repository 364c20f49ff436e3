//! Modification times that programs set. A program that copies files compares times, and copies a
//! file again whose time differs.

use super::permissions::{V2, V3};
use crate::support::{self, Mount, announce, is_installed};
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Creates a group.
fn group() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    store
}

fn modified(path: &Path) -> SystemTime {
    let stat = fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    stat.modified().unwrap()
}

fn set_modified(path: &Path, time: SystemTime) {
    let file = File::open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

#[test]
fn times_that_programs_set_are_shown_and_stored() {
    let store = group();
    let mount = Mount::new(store.path(), &[]);
    let nanoseconds = Duration::new(1_000_000_000, 123_456_789);
    let begun = fs::metadata(store.path()).unwrap().ctime();
    let times = [
        SystemTime::UNIX_EPOCH + nanoseconds,
        SystemTime::UNIX_EPOCH - nanoseconds,
        SystemTime::UNIX_EPOCH + nanoseconds * 5,
    ];
    for (array, document, text, stored) in [
        ("v2", ".zarray", V2, "v2/1/0"),
        ("v3", "zarr.json", V3, "v3/c/1/0"),
    ] {
        fs::create_dir(mount.join(array)).unwrap();
        let document = format!("{array}/{document}");
        let note = format!("{array}/note");
        for (name, text, other, stored) in [
            (
                &document,
                text,
                &text.replace(r#"fill_value": 0"#, r#"fill_value": 1"#),
                document.as_str(),
            ),
            (&format!("{array}/1.0"), "xy", &"ab".to_string(), stored),
            (&note, "text", &"more".to_string(), note.as_str()),
        ] {
            let path = mount.join(name);
            let check = |time: SystemTime, when: &str| {
                // programs that make backups notice a change although its time was set back
                assert!(
                    fs::metadata(&path).unwrap().ctime() >= begun,
                    "{name} {when}"
                );
                let shown = [path.clone(), store.path().join(stored)].map(|path| modified(&path));
                assert_eq!(shown, [time; 2], "{name} {when}");
            };
            let before = SystemTime::now();
            let mut file = File::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            for time in times {
                file.set_times(FileTimes::new().set_modified(time)).unwrap();
                check(time, "while it is open");
            }
            drop(file);
            check(times[2], "after its close");
            for time in times {
                set_modified(&path, time);
                check(time, "after its close");
            }
            support::run("touch", &["-m", name], mount.path());
            // the kernel's clock advances by ticks
            let tick = Duration::from_millis(20);
            assert!(modified(&path) + tick >= before, "{name}");
            set_modified(&path, times[0]);
            // bytes that are written later have their own time
            let mut file = File::create(&path).unwrap();
            file.write_all(other.as_bytes()).unwrap();
            drop(file);
            mount.stats();
            let shown = [path.clone(), store.path().join(stored)].map(|path| modified(&path));
            assert!(
                shown[0] + tick >= before && shown[0] == shown[1],
                "{name}: {shown:?}, {before:?}"
            );
        }
        set_modified(&mount.join(array), times[0]);
        let shown = [mount.path(), store.path()].map(|path| modified(&path.join(array)));
        assert_eq!(shown, [times[0]; 2], "{array}");
        // a file that is made of several has the time of the latest
        for name in ["data.raw", "data.npy"] {
            let path = mount.join(array).join(name);
            let before = modified(&path);
            set_modified(&path, times[0]);
            assert_eq!(modified(&path), before, "{array}/{name}");
            assert!(
                fs::metadata(&path).unwrap().ctime() >= begun,
                "{array}/{name}"
            );
        }
    }
}

/// Plain files, documents and chunks that were copied into a mount are not sent again.
#[test]
fn rsync_finds_copies_up_to_date() {
    if !is_installed("rsync") {
        return announce("skipped: needs rsync");
    }
    let source = tempfile::tempdir().unwrap();
    let path = |name: &str| source.path().join(name);
    fs::create_dir_all(path("g/a")).unwrap();
    let document = V2.replace(r#""/""#, r#"".""#);
    for (name, text) in [
        ("g/.zgroup", r#"{"zarr_format": 2}"#),
        ("g/note", "text"),
        ("g/a/.zarray", &document),
        ("g/a/0.0", "xy"),
        ("g/a/1.0", "yz"),
    ] {
        fs::write(path(name), text).unwrap();
    }
    for name in [
        "g/note",
        "g/.zgroup",
        "g/a/.zarray",
        "g/a/0.0",
        "g/a/1.0",
        "g/a",
        "g",
    ] {
        set_modified(
            &path(name),
            SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, 5),
        );
    }
    for copy in [
        "rsync -a \"$0\"/g .",
        "cp -a \"$0\"/g .",
        "cp -rp \"$0\"/g .",
        "tar -c -C \"$0\" g | tar -x",
    ] {
        let store = group();
        let mount = Mount::new(store.path(), &[]);
        let source = source.path().to_str().unwrap();
        let script = format!("{copy} && rsync -a --itemize-changes \"$0\"/g .");
        let sent = support::run("sh", &["-c", &script, source], mount.path());
        assert_eq!(sent, "", "{copy}");
    }
}

/// An overlay keeps modes and times of a file of the store below, and refuses a mode that it can't
/// show.
#[test]
fn an_overlay_shows_the_times_and_modes_that_are_set() {
    use std::os::unix::fs::PermissionsExt;
    let store = group();
    let changes = tempfile::tempdir().unwrap();
    let note = store.path().join("g/note");
    fs::create_dir(store.path().join("g")).unwrap();
    fs::write(&note, "text").unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set_mode(&note, 0o644).unwrap();
    let before = fs::metadata(&note).unwrap();
    let overlay = ["--overlay", changes.path().to_str().unwrap()];
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mount = Mount::new(store.path(), &overlay);
    let shown = mount.join("g/note");
    for mode in [0o755, 0o664, 0o444] {
        let e = set_mode(&shown, mode).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{mode:o}");
    }
    set_mode(&shown, 0o600).unwrap();
    set_modified(&shown, time);
    set_modified(&mount.join("g"), time);
    // rsync sets the attributes of the directory to which it copies, and the root keeps its own
    let root = fs::metadata(mount.path()).unwrap().permissions();
    set_mode(mount.path(), root.mode()).unwrap();
    set_modified(mount.path(), time);
    let e = set_mode(mount.path(), 0o711).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EPERM));
    drop(mount);
    let mount = Mount::new(store.path(), &overlay);
    let shown = fs::metadata(mount.join("g/note")).unwrap();
    assert_eq!(shown.permissions().mode() & 0o7777, 0o600);
    assert_eq!(
        [shown.modified().unwrap(), modified(&mount.join("g"))],
        [time; 2]
    );
    assert_eq!(fs::read(mount.join("g/note")).unwrap(), b"text");
    let after = fs::metadata(&note).unwrap();
    assert_eq!(
        (after.permissions(), after.modified().unwrap()),
        (before.permissions(), before.modified().unwrap())
    );
}
