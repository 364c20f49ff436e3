//! What `zarrfs --version` prints: the version, what the program was built of and for, its
//! features, and what the running kernel has for a sandbox.

use std::fmt::Write;

/// Returns what `zarrfs --version` prints. The first line is the name and the version.
pub fn text() -> String {
    let mut text = format!("zarrfs {}\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in [
        ("build", build()),
        ("features", features().to_string()),
        ("kernel", kernel()),
    ] {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    text
}

/// Returns the commit of the program, with a plus sign if its sources differ from it, and the
/// target.
pub fn build() -> String {
    let commit = match env!("ZARRFS_COMMIT") {
        "" => "unknown",
        commit => commit,
    };
    let kind = if cfg!(debug_assertions) {
        "development build"
    } else {
        "release build"
    };
    format!("commit {commit}, {}, {kind}", env!("ZARRFS_TARGET"))
}

/// Returns the optional parts of the program.
pub fn features() -> &'static str {
    if cfg!(feature = "remote") {
        "remote"
    } else {
        "none (built without remote)"
    }
}

/// Returns what the running kernel has for a sandbox.
pub fn kernel() -> String {
    let landlock = match landlock_version() {
        Some(version) => format!("Landlock {version}"),
        None => "no Landlock".to_string(),
    };
    let seccomp = if has_seccomp() {
        "seccomp"
    } else {
        "no seccomp"
    };
    format!("{landlock}, {seccomp}")
}

/// Returns the version of Landlock's interface; `None` if the kernel lacks it, or has it switched
/// off.
fn landlock_version() -> Option<i64> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory, and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0,
            VERSION,
        )
    };
    (version > 0).then_some(version)
}

/// Returns whether the kernel filters system calls.
fn has_seccomp() -> bool {
    // SAFETY: the call takes numbers alone, and changes nothing. Without seccomp it fails.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_version_and_each_other_one_has_a_value() {
        let text = text();
        let mut lines = text.lines();
        let version = format!("zarrfs {}", env!("CARGO_PKG_VERSION"));
        assert_eq!(lines.next(), Some(version.as_str()));
        let named: Vec<_> = lines.map(|line| line.split_once(' ').unwrap()).collect();
        let names: Vec<_> = named.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["build", "features", "kernel"]);
        assert!(named.iter().all(|(_, value)| !value.trim().is_empty()));
        let target = std::env::consts::ARCH;
        assert!(build().contains(target), "{}", build());
    }
}
