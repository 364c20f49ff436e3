//! `zarrfs open`, and the files that let a desktop run it. A program in place of `xdg-open` records
//! the folder that it is asked to show.

use crate::support::{
    self, ZARRFS, announce, copy_tree, errno, failure, is_installed, is_mounted, test_data, text,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A session of a desktop: its runtime directory, and programs that record their arguments.
struct DesktopSession {
    folder: tempfile::TempDir,
}

impl DesktopSession {
    fn new() -> DesktopSession {
        let folder = tempfile::tempdir().unwrap();
        for name in ["run", "programs"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let session = DesktopSession { folder };
        session.program("xdg-open", 0);
        session.program("notify-send", 0);
        session
    }

    fn join(&self, path: &str) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join(path)
    }

    /// Writes a program that records its arguments, a line each, and ends with an exit code.
    fn program(&self, name: &str, code: u8) {
        let path = self.join("programs").join(name);
        let record = self.join(&format!("{name}.said"));
        let script = format!(
            "#!/bin/sh\nprintf '%s\\n' \"$@\" >>'{}'\nexit {code}\n",
            text(&record)
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the arguments of all calls of a program so far.
    fn said(&self, name: &str) -> Vec<String> {
        let said = fs::read_to_string(self.join(&format!("{name}.said"))).unwrap_or_default();
        said.lines().map(str::to_string).collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(ZARRFS);
        command
            .arg("open")
            .args(args)
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", text(&self.join("programs"))))
            .env("XDG_RUNTIME_DIR", self.join("run"))
            .env_remove("WAYLAND_DISPLAY")
            .env("DISPLAY", ":0");
        command
    }

    fn open(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Opens a store and returns the folder that the command prints.
    #[track_caller]
    fn opened(&self, args: &[&str]) -> PathBuf {
        let output = self.open(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().into()
    }
}

impl Drop for DesktopSession {
    fn drop(&mut self) {
        let directories = fs::read_dir(self.folder.path().join("run/zarrfs"));
        for directory in directories.into_iter().flatten().flatten() {
            support::unmount(directory.path());
        }
    }
}

#[test]
fn a_store_is_mounted_once_and_shown_each_time() {
    let session = DesktopSession::new();
    copy_tree(&test_data("sample.zarr"), &session.join("sample.zarr"));
    let folder = session.join("run/zarrfs/sample");
    assert_eq!(session.opened(&["sample.zarr"]), folder);
    assert_eq!(session.said("xdg-open"), [text(&folder)]);
    assert_eq!(
        fs::metadata(folder.join("lat/data.raw")).unwrap().len(),
        148
    );
    assert!(folder.join("air_temperature/preview.png").exists());
    let written = fs::write(folder.join("new"), "");
    assert_eq!(errno(written), "EROFS");
    // another spelling of the same store, as the file manager gives it
    let whole = session.join("sample.zarr");
    assert_eq!(session.opened(&[text(&whole)]), folder);
    assert_eq!(session.said("xdg-open"), [text(&folder); 2]);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let count = mounts.lines().filter(|line| line.contains(text(&folder)));
    assert_eq!(count.count(), 1);
    // another store of that name; both mountpoints end with their mounts
    copy_tree(&whole, &session.join("other/sample.zarr"));
    let second = session.opened(&["-o", "rw", "other/sample.zarr"]);
    assert_eq!(second, session.join("run/zarrfs/sample-2"));
    fs::write(second.join("new"), "").unwrap();
    assert!(session.join("other/sample.zarr/new").exists());
    for path in [&folder, &second] {
        support::unmount(path);
        assert!(!path.exists() && !is_mounted(path));
    }
    assert!(session.said("notify-send").is_empty());
}

#[test]
fn archives_are_opened() {
    let session = DesktopSession::new();
    let archive = session.join("a <b> & c.zarr.zip");
    support::run(
        ZARRFS,
        &["pack", text(&test_data("sample.zarr")), text(&archive)],
        session.folder.path(),
    );
    let folder = session.opened(&[text(&archive)]);
    assert_eq!(folder, session.join("run/zarrfs/a <b> & c"));
    assert!(folder.join("lat/data.raw").exists());
}

#[test]
fn two_double_clicks_mount_once() {
    let session = DesktopSession::new();
    copy_tree(&test_data("sample.zarr"), &session.join("sample.zarr"));
    let both = [(); 2].map(|()| {
        let mut command = session.command(&["sample.zarr"]);
        command.stdout(Stdio::null()).spawn().unwrap()
    });
    for mut process in both {
        assert!(process.wait().unwrap().success());
    }
    let folder = session.join("run/zarrfs/sample");
    assert_eq!(session.said("xdg-open"), [text(&folder); 2]);
    assert!(!session.join("run/zarrfs/sample-2").exists());
}

#[test]
fn errors_are_one_line_and_a_notification() {
    let session = DesktopSession::new();
    let (code, said) = failure(&session.open(&["<nothing>.zarr"]));
    assert_eq!((code, said.lines().count()), (3, 1), "{said}");
    assert!(
        said.starts_with("error: ") && said.contains("<nothing>.zarr"),
        "{said}"
    );
    let shown = session.said("notify-send").join("\n");
    assert!(shown.contains("can't open <nothing>.zarr"), "{shown}");
    assert!(shown.contains("&lt;nothing>.zarr"), "{shown}");
    assert!(session.said("xdg-open").is_empty());
    // nothing is left
    let left = fs::read_dir(session.join("run/zarrfs")).unwrap();
    assert_eq!(left.count(), 0);
    fs::remove_file(session.join("notify-send.said")).unwrap();
    let output = session
        .command(&["nothing.zarr"])
        .env_remove("DISPLAY")
        .output()
        .unwrap();
    assert_eq!(failure(&output).0, 3);
    assert!(session.said("notify-send").is_empty());
    fs::write(session.join("text.zip"), "no archive").unwrap();
    assert_eq!(failure(&session.open(&["text.zip"])).0, 4);
    for directory in ["", "run"] {
        let output = session
            .command(&["nothing.zarr"])
            .env("XDG_RUNTIME_DIR", directory)
            .output()
            .unwrap();
        let (code, said) = failure(&output);
        assert!(
            code == 5 && said.contains("XDG_RUNTIME_DIR"),
            "{code} {said}"
        );
    }
}

#[test]
fn a_folder_that_cannot_be_shown_stays_mounted() {
    let session = DesktopSession::new();
    copy_tree(&test_data("sample.zarr"), &session.join("sample.zarr"));
    session.program("xdg-open", 3);
    let output = session.open(&["sample.zarr"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("mounted, but not shown: xdg-open has failed"),
        "{said}"
    );
    let folder = session.join("run/zarrfs/sample");
    assert!(is_mounted(&folder));
    // if this program is the one for folders, it would be called without end
    let (code, said) = failure(&session.open(&[text(&folder)]));
    assert!(
        code == 2 && said.contains("choose another program"),
        "{code} {said}"
    );
}

/// Checks the files for desktops with the programs of freedesktop.org, where they are installed.
#[test]
fn files_for_desktops_are_valid() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/desktop");
    for name in ["zarrfs.desktop", "zarrfs-folder.desktop"] {
        let written = fs::read_to_string(files.join(name)).unwrap();
        assert!(written.contains("\nExec=zarrfs open %f\n"), "{name}");
        if is_installed("desktop-file-validate") {
            let file = files.join(name);
            support::run("desktop-file-validate", &[text(&file)], &files);
        } else {
            announce("skipped: desktop-file-validate is not installed");
        }
    }
    if !is_installed("update-mime-database") || !is_installed("gio") {
        announce("skipped: shared-mime-info and libglib2.0-bin are not installed");
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let packages = data.path().join("mime/packages");
    fs::create_dir_all(&packages).unwrap();
    fs::copy(files.join("zarrfs-mime.xml"), packages.join("zarrfs.xml")).unwrap();
    let database = data.path().join("mime");
    support::run("update-mime-database", &[text(&database)], data.path());
    for name in ["a.zarr.zip", "b.ozx"] {
        fs::write(data.path().join(name), "PK\x03\x04").unwrap();
        let output = Command::new("gio")
            .args(["info", "-a", "standard::content-type", name])
            .current_dir(data.path())
            .env("XDG_DATA_HOME", data.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains(": application/x-zarr+zip"),
            "{name}: {output:?}"
        );
    }
}
