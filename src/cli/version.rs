//! What `zarrfs --version` prints: the version, what the program was built of and for, its
//! features, and what the running kernel has for the sandbox.

use std::fmt::Write;
use zarrfs_sandbox::SandboxSupport;

/// Returns what `zarrfs --version` prints. The first line is the name and the version.
pub fn text() -> String {
    let mut text = format!("zarrfs {}\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in [
        ("build", build()),
        ("features", features().to_string()),
        ("sandbox", SandboxSupport::of_kernel().description()),
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
        assert_eq!(names, ["build", "features", "sandbox"]);
        assert!(named.iter().all(|(_, value)| !value.trim().is_empty()));
        let target = std::env::consts::ARCH;
        assert!(build().contains(target), "{}", build());
    }
}
