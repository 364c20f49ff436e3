//! Promises to operators of a mount: errors as JSON, an unmount that ends and names the data that
//! is not stored, a log of outages, and statistics that do not keep an idle mount. Outages are
//! faults of the test server in `support/faulty_server.rs`, whose files and requests are then
//! compared with the writes of the test.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::faulty_server::{Fault, FaultyServer};
use crate::support::{
    Mount, ZARRFS, answered, is_installed, is_mounted, test_data, wait_for, with_timeout, zarrfs,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// Returns the verbs whose help has an option.
fn verbs_with(option: &str) -> Vec<String> {
    let help = String::from_utf8(zarrfs(&["--help"]).stdout).unwrap();
    let list = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names
        .map(|line| line.split_whitespace().next().unwrap().to_string())
        .filter(|name| name != "help");
    let has = |verb: &String| {
        String::from_utf8(zarrfs(&[verb, "--help"]).stdout)
            .unwrap()
            .contains(option)
    };
    names.filter(has).collect()
}

/// Returns the JSON object that a failed command printed, and checks that standard error has the
/// same message.
#[track_caller]
fn error_object(output: &Output) -> Value {
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(printed.lines().count(), 1, "{printed} {said}");
    let object: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        object["exit_code"].as_i64(),
        output.status.code().map(i64::from),
        "{printed}"
    );
    let message = object["error"].as_str().unwrap();
    assert!(
        !message.is_empty() && said.contains(message.lines().next().unwrap()),
        "{printed} {said}"
    );
    object
}

#[test]
fn every_verb_with_json_prints_its_error_as_an_object() {
    let verbs = verbs_with("--json");
    for verb in [
        "info",
        "ls",
        "check",
        "header",
        "consolidate",
        "migrate",
        "stats",
    ] {
        assert!(
            verbs.iter().any(|v| v == verb),
            "{verb} has no --json: {verbs:?}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no.zarr");
    fs::write(folder.path().join("file"), "no store").unwrap();
    let missing = missing.to_str().unwrap();
    let file = folder.path().join("file");
    for verb in &verbs {
        let object = error_object(&zarrfs(&[verb, "--json", missing]));
        assert!(
            object["error"].as_str().unwrap().contains("no.zarr"),
            "{verb}: {object}"
        );
        assert_ne!(object["exit_code"], json!(0), "{verb}");
        error_object(&zarrfs(&[verb, file.to_str().unwrap(), "--json"]));
        let refused = error_object(&zarrfs(&[verb, "--json", "--nonsense", missing]));
        assert_eq!(refused["exit_code"], json!(2), "{verb}");
        assert!(
            refused["error"].as_str().unwrap().contains("--nonsense"),
            "{verb}: {refused}"
        );
        assert!(
            zarrfs(&[verb, missing]).stdout.is_empty(),
            "{verb}: without --json"
        );
    }
    // findings are a report, not an error object
    let store = folder.path().join("store.zarr");
    let array = TestArray::with_chunks(store.join("a"), &[8], &[4], support::array::zlib());
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    fs::write(array.file(&[0]), "damaged").unwrap();
    let output = zarrfs(&["check", "--deep", "--json", store.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        output.status.code() == Some(1)
            && report["error"].is_null()
            && report["errors"] == json!(1),
        "{report}"
    );
}

/// A directory that cannot be listed is an entry with an error, and the output stays one JSON
/// value.
#[test]
fn ls_with_json_has_an_entry_for_a_directory_that_cannot_be_listed() {
    let is_root = rustix::process::getuid().is_root();
    if is_root && !is_installed("setpriv") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for group in ["", "closed", "open"] {
        fs::create_dir_all(folder.path().join(group)).unwrap();
        fs::write(
            folder.path().join(group).join(".zgroup"),
            r#"{"zarr_format": 2}"#,
        )
        .unwrap();
    }
    fs::set_permissions(
        folder.path().join("closed"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    // root can list every directory, unless it drops these capabilities
    let mut command = with_timeout(300, if is_root { "setpriv" } else { ZARRFS });
    if is_root {
        command.args(["--bounding-set", "-dac_override,-dac_read_search", ZARRFS]);
    }
    let output = command
        .args(["ls", "-R", "--json"])
        .arg(folder.path())
        .output()
        .unwrap();
    fs::set_permissions(
        folder.path().join("closed"),
        fs::Permissions::from_mode(0o700),
    )
    .unwrap();
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let failed: Vec<&Value> = list
        .iter()
        .filter(|object| !object["error"].is_null())
        .collect();
    assert_eq!(failed.len(), 1, "{list:?}");
    assert!(
        failed[0]["path"] == json!("/closed")
            && failed[0]["error"].as_str().unwrap().contains("denied"),
        "{failed:?}"
    );
    assert!(
        list.iter()
            .any(|object| object["path"] == json!("/open/.zgroup")),
        "{list:?}"
    );
    assert_eq!(support::failure(&output).0, 1);
}

/// Creates a bucket with the array `a`: items of one byte in chunks of `chunk`.
fn bucket(items: usize, chunk: usize) -> (tempfile::TempDir, FaultyServer) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("bucket");
    TestArray::with_chunks(root.join("a"), &[items], &[chunk], json!({}));
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let server = FaultyServer::new(folder.path());
    (folder, server)
}

fn mount_bucket(server: &FaultyServer, args: &[&str]) -> Mount {
    let mut command = with_timeout(120, ZARRFS);
    command.args(["mount", "--anon", "--region", "us-east-1", "--endpoint-url"]);
    command.arg(server.url("").trim_end_matches('/')).args(args);
    Mount::with_command(command, "s3://bucket".as_ref())
}

fn umount(path: &Path) -> (Output, Duration) {
    let begun = Instant::now();
    let output = answered(|| {
        with_timeout(180, ZARRFS)
            .arg("umount")
            .arg(path)
            .output()
            .unwrap()
    });
    (output, begun.elapsed())
}

/// An unmount tries to store for `--timeout`. Then it fails, names the data that is not stored, and
/// the mount stays.
#[test]
fn an_unmount_during_an_outage_ends_and_names_the_data_that_is_not_stored() {
    // many more chunks than are stored at a time, so that an attempt for each would take many
    // timeouts
    const CHUNKS: usize = 500;
    let (folder, server) = bucket(CHUNKS * 100, 100);
    let log = folder.path().join("log");
    let mount = mount_bucket(
        &server,
        &["--timeout", "3s", "--log-file", log.to_str().unwrap()],
    );
    let new = pattern(9, CHUNKS * 100);
    let file = support::open_for_writing(&mount.join("a/data.raw"));
    std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
    let earlier = fs::read_to_string(&log).unwrap().len();
    let lines = || {
        let log = fs::read_to_string(&log).unwrap().split_off(earlier);
        let mut lines: Vec<String> = log.lines().map(str::to_string).collect();
        lines.retain(|line| {
            line.contains("WARN") && (line.contains("fails for") || line.contains("answers again"))
        });
        lines
    };
    server.set_all(Fault::Status(503));
    // close the file before a program starts that may inherit it for a moment, since closing that
    // copy would store the chunks
    let before = server.requests().len();
    let closing = std::thread::spawn(move || support::close(file));
    wait_for("the file to be closed", || server.requests().len() > before);
    for _ in 0..2 {
        let (output, took) = umount(mount.path());
        let said = support::failure(&output).1;
        assert_eq!(output.status.code(), Some(1), "{said}");
        let named = format!("not stored: /a ({CHUNKS} chunks, {} bytes)", CHUNKS * 100);
        assert!(
            said.contains("still mounted") && said.contains(&named),
            "{said}"
        );
        // the last attempt may have ended before the server answered
        assert!(said.contains("503") || said.contains("no data"), "{said}");
        // trying every chunk in turn would take 40 s on an idle machine
        assert!((2..30).contains(&took.as_secs()), "{took:?}");
        assert!(is_mounted(mount.path()));
    }
    assert_eq!(mount.counter("dirty_chunks"), CHUNKS as u64);
    assert_eq!(mount.counter("dirty_bytes"), CHUNKS as u64 * 100);
    let said = lines();
    assert!(
        said.len() == 1
            && ["fails for", "503 ×", "--timeout"]
                .iter()
                .all(|words| said[0].contains(*words)),
        "{said:?}"
    );
    server.heal();
    assert!(closing.join().unwrap().is_err());
    let (output, _) = umount(mount.path());
    assert!(output.status.success(), "{output:?}");
    mount.assume_unmounted();
    for chunk in 0..CHUNKS {
        let stored = fs::read(folder.path().join(format!("bucket/a/{chunk}"))).unwrap();
        assert_eq!(stored, new[chunk * 100..][..100], "{chunk}");
    }
    // a busy machine may add outages of its own
    let said = lines();
    let is_outage = |pair: &[String]| match pair {
        [first, last] => first.contains("fails for") && last.contains("answers again"),
        _ => false,
    };
    assert!(
        said.len() > 1 && said.chunks(2).all(is_outage) && said[1].contains("503 ×"),
        "{said:?}"
    );
}

/// An unmount also tries for `--timeout` if the server refuses: the permission may be granted
/// meanwhile.
#[test]
fn an_unmount_retries_until_the_server_grants_permission() {
    let (folder, server) = bucket(1000, 1000);
    let mount = mount_bucket(&server, &["--timeout", "60s"]);
    let new = pattern(3, 1000);
    let file = support::open_for_writing(&mount.join("a/data.raw"));
    std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
    server.set("bucket/a/0", Fault::Status(403));
    assert_eq!(support::errno(support::close(file)), "EACCES");
    let puts = || server.count("PUT", "bucket/a/0");
    let before = puts();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| umount(mount.path()).0);
        wait_for("the store is asked again", || puts() >= before + 2);
        server.heal();
        let output = unmounting.join().unwrap();
        assert!(output.status.success(), "{output:?}");
    });
    mount.assume_unmounted();
    assert_eq!(fs::read(folder.path().join("bucket/a/0")).unwrap(), new);
}

#[test]
fn an_unmount_after_an_outage_stores_everything() {
    let (folder, server) = bucket(5000, 1000);
    // the close gives up after the retries, and not after a time in which the mount must answer
    let mount = mount_bucket(&server, &["--timeout", "1m", "--retries", "2"]);
    let new = pattern(3, 5000);
    let file = support::open_for_writing(&mount.join("a/data.raw"));
    std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
    server.set_all(Fault::Status(503));
    assert!(support::close(file).is_err());
    assert_eq!(mount.counter("dirty_chunks"), 5);
    server.heal();
    let (output, _) = umount(mount.path());
    assert!(output.status.success(), "{output:?}");
    mount.assume_unmounted();
    let stored: Vec<u8> = (0..5)
        .flat_map(|n| fs::read(folder.path().join(format!("bucket/a/{n}"))).unwrap())
        .collect();
    assert_eq!(stored, new);
}

/// "`df`, `stat` of the mountpoint, `zarrfs stats` and scraping do not count as use."
#[test]
fn statistics_and_checks_of_health_do_not_keep_an_idle_mount() {
    // returns whether the mount stays for `limit`, and the longest time without a check
    let watched = |limit: Duration, check: &dyn Fn(&Path)| {
        let mut checked = Instant::now();
        let mut longest = Duration::ZERO;
        let mount = Mount::new(
            &test_data("sample.zarr"),
            &["--read-only", "--idle-timeout", "4s", "--listen", "0"],
        );
        let begun = Instant::now();
        while is_mounted(mount.path()) && begun.elapsed() < limit {
            let now = Instant::now();
            check(mount.path());
            longest = longest.max(checked.elapsed());
            checked = now;
            std::thread::sleep(Duration::from_millis(50));
        }
        let stays = is_mounted(mount.path());
        if !stays {
            mount.assume_unmounted();
        }
        (stays, longest.max(checked.elapsed()))
    };
    let statistics = |mountpoint: &Path| {
        let path = mountpoint.to_str().unwrap();
        for name in ["stats", "stats.json", "metrics"] {
            let _ = fs::read(mountpoint.join(".zarrfs").join(name));
        }
        let _ = fs::read_dir(mountpoint.join(".zarrfs")).map(|names| names.count());
        let _ = rustix::fs::statvfs(mountpoint);
        let _ = fs::metadata(mountpoint);
        for command in [["df", path], ["mountpoint", path], ["stat", path]] {
            let _ = with_timeout(10, command[0]).arg(command[1]).output();
        }
        zarrfs(&["stats", path]);
        zarrfs(&["stats", "--prometheus", path]);
    };
    assert!(!watched(Duration::from_secs(120), &statistics).0);
    let listing = |mountpoint: &Path| drop(fs::read_dir(mountpoint).map(|names| names.count()));
    let is_kept = (0..5).any(|_| {
        let (stays, longest) = watched(Duration::from_secs(14), &listing);
        // a busy machine may have left the mount unused
        assert!(
            stays || longest >= Duration::from_secs(4),
            "a listing is use"
        );
        stays
    });
    assert!(is_kept);
}
