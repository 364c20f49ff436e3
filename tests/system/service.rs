//! The unit file of a mount as a service: it has none of the settings that hide a mount from the
//! system, by the manual systemd.exec(5). Where systemd can be run, a private one starts the
//! service, and another process reads the mount.

use crate::support::{ZARRFS, announce, copy_tree, is_installed, test_data, with_timeout};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Settings that hide a mount of the service or prevent mounting, with the reason.
const FORBIDDEN: [(&str, &[&str]); 4] = [
    // systemd.exec(5): these settings give the service its own mount namespace
    (
        "a mount namespace",
        &[
            "BindLogSockets",
            "BindPaths",
            "BindReadOnlyPaths",
            "DynamicUser",
            "ExecPaths",
            "ExtensionDirectories",
            "ExtensionImages",
            "InaccessiblePaths",
            "IPCNamespacePath",
            "LogNamespace",
            "MountAPIVFS",
            "MountFlags",
            "MountImages",
            "NetworkNamespacePath",
            "NoExecPaths",
            "PrivateBPF",
            "PrivateDevices",
            "PrivateIPC",
            "PrivateMounts",
            "PrivateNetwork",
            "PrivatePIDs",
            "PrivateTmp",
            "ProcSubset",
            "ProtectControlGroups",
            "ProtectHome",
            "ProtectKernelLogs",
            "ProtectKernelModules",
            "ProtectKernelTunables",
            "ProtectProc",
            "ProtectSystem",
            "ReadOnlyPaths",
            "ReadWritePaths",
            "RootDirectory",
            "RootHash",
            "RootImage",
            "TemporaryFileSystem",
        ],
    ),
    (
        "their former names",
        &[
            "InaccessibleDirectories",
            "ReadOnlyDirectories",
            "ReadWriteDirectories",
        ],
    ),
    (
        "a user namespace, in which nothing can be mounted for the system",
        &["PrivateUsers"],
    ),
    (
        "a filter of system calls that has openat2 fail",
        &["RestrictSUIDSGID"],
    ),
];

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging")
}

/// Returns the settings of a section of a unit file, in their order.
fn settings<'a>(unit: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    let header = format!("[{section}]");
    let lines = unit
        .lines()
        .skip_while(|line| *line != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .collect()
}

/// Returns the settings of a unit file that [`FORBIDDEN`] lists.
fn forbidden(unit: &str) -> Vec<String> {
    let found = settings(unit, "Service")
        .into_iter()
        .chain(settings(unit, "Mount"))
        .filter_map(|(name, value)| {
            let (what, _) = FORBIDDEN.iter().find(|(_, names)| names.contains(&name))?;
            Some(format!("{name}={value}: {what}"))
        });
    found.collect()
}

#[test]
fn no_setting_of_a_unit_hides_the_mount() {
    let mut units = 0;
    for entry in fs::read_dir(packaging()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| {
            ["service", "mount", "automount"]
                .iter()
                .any(|unit| end == *unit)
        }) {
            let found = forbidden(&fs::read_to_string(&path).unwrap());
            assert!(found.is_empty(), "{}: {found:?}", path.display());
            units += 1;
        }
    }
    assert_eq!(units, 3);
    let unit = fs::read_to_string(packaging().join("zarrfs@.service")).unwrap();
    let hiding = unit.replace(
        "NoNewPrivileges=yes",
        "PrivateTmp=yes\nProtectSystem=strict",
    );
    assert_eq!(forbidden(&hiding).len(), 2);
}

#[test]
fn the_service_is_hardened() {
    let unit = fs::read_to_string(packaging().join("zarrfs@.service")).unwrap();
    let settings: BTreeMap<_, _> = settings(&unit, "Service").into_iter().collect();
    for name in [
        "NoNewPrivileges",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "RestrictNamespaces",
        "RestrictRealtime",
    ] {
        assert_eq!(settings.get(name), Some(&"yes"), "{name}");
    }
    for name in [
        "CapabilityBoundingSet",
        "DeviceAllow",
        "RestrictAddressFamilies",
        "SystemCallFilter",
    ] {
        assert!(settings.contains_key(name), "{name}");
    }
    if !is_installed("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zarrfs@test.service");
    fs::write(&path, unit.replace("/usr/bin/zarrfs", ZARRFS)).unwrap();
    let path = path.to_str().unwrap();
    let analyzed = |args: &[&str]| {
        with_timeout(300, "systemd-analyze")
            .args(args)
            .arg(path)
            .output()
            .unwrap()
    };
    let output = analyzed(&["verify", "--man=no"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && !said.contains("Unknown"),
        "{said}"
    );
    let text = |output: Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let shown = text(analyzed(&["security", "--offline=true", "--no-pager"]));
    let level = shown
        .lines()
        .find_map(|line| line.split_once("exposure level for zarrfs@test.service: "));
    match level.and_then(|(_, level)| level.split(' ').next()?.parse::<f64>().ok()) {
        // a unit without any of these settings has 9.6
        Some(level) => assert!(level < 6.0, "{shown}"),
        None => announce("skipped: systemd-analyze has no --offline"),
    }
}

/// A script that starts the service in a new user manager, which sees the same mounts. It prints
/// the first latitude that `cat` reads in the mount, and whether the mountpoint is gone after the
/// stop.
const RUN: &str = r#"
set -u
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user
chmod 700 /run/user
groups=
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    [ -e $hierarchy/cgroup.procs ] && mkdir $hierarchy/$NAME 2>/dev/null || continue
    groups="$groups $hierarchy/$NAME"
    echo $$ >$hierarchy/$NAME/cgroup.procs
done
export XDG_RUNTIME_DIR=/run/user
$MANAGER --user --log-target=console >"$HOME/log" 2>&1 &
for _ in $(seq 600); do
    [ -S /run/user/systemd/private ] && break
    kill -0 $! 2>/dev/null || break
    sleep 0.1
done
if [ -S /run/user/systemd/private ]; then
    timeout 120 systemctl --user start zarrfs@test
    timeout 60 cat "$HOME/mnt/lat/data.raw" | od -An -tf4 -N 4
    timeout 120 systemctl --user stop zarrfs@test
    [ -e "$HOME/mnt" ] && echo left || echo gone
    timeout 60 systemctl --user exit
else
    echo none
fi
wait
for group in $groups; do
    echo $$ >"${group%/*}/cgroup.procs"
    for _ in $(seq 20); do
        find $group -depth -type d -exec rmdir {} \; 2>/dev/null
        [ -e $group ] || break
        sleep 0.1
    done
done
"#;

/// Runs the service with further settings, and returns the output of [`RUN`]. Returns `None` if
/// systemd cannot run here.
fn run_service(more: &str) -> Option<String> {
    let manager = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let (Some(manager), true) = (
        manager,
        rustix::process::getuid().is_root() && is_installed("unshare"),
    ) else {
        announce("skipped: running systemd takes root, systemd and unshare");
        return None;
    };
    let home = tempfile::tempdir().unwrap();
    let text = home.path().to_str().unwrap();
    copy_tree(&test_data("sample.zarr"), &home.path().join("sample.zarr"));
    let units = home.path().join(".config/systemd/user");
    fs::create_dir_all(&units).unwrap();
    let unit = fs::read_to_string(packaging().join("zarrfs@.service")).unwrap();
    let unit = unit
        .replace("/usr/bin/zarrfs", ZARRFS)
        .replace("/etc/zarrfs", text)
        .replace(" --log-journal", "");
    let own = format!("[Service]\nRestart=no\nStandardError=append:{text}/errors\n{more}\n");
    fs::write(
        units.join("zarrfs@.service"),
        unit.replace("[Service]\n", &own)
            .replace("\nRestart=on-failure", ""),
    )
    .unwrap();
    let settings = format!("STORE={text}/sample.zarr\nMOUNTPOINT={text}/mnt\nOPTIONS=ro\n");
    fs::write(home.path().join("test.conf"), settings).unwrap();
    let name = format!("zarrfs-test-{}", std::process::id());
    let mut command = with_timeout(600, "unshare");
    command.args(["--mount", "--propagation", "slave", "bash", "-c", RUN]);
    command
        .env("HOME", text)
        .env("NAME", name)
        .env("MANAGER", manager);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let read = |name: &str| fs::read_to_string(home.path().join(name)).unwrap_or_default();
    println!(
        "{}\n{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        read("errors"),
        read("log")
    );
    if printed == "none" {
        announce("skipped: systemd does not run here");
        return None;
    }
    Some(printed)
}

#[test]
fn another_process_reads_the_mount_of_the_service() {
    let Some(printed) = run_service("") else {
        return;
    };
    let words: Vec<&str> = printed.split_whitespace().collect();
    assert_eq!(words, ["75", "gone"], "{printed}");
    // the test detects a hidden mount: with this setting only the service sees it
    let hidden = run_service("PrivateMounts=yes").unwrap_or_default();
    assert!(!hidden.contains("75"), "{hidden}");
}
