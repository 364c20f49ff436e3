//! Tells the program what it was built of and for: `zarrfs --version` shows it.
//!
//! Invariant: two builds of one commit are equal, in any folder, and a build never fails for want
//! of git. A development build asks git nothing, since each commit would build the program again.

use std::path::Path;
use std::process::{Command, Stdio};

/// The commit of a source archive, which `git archive` writes here (`.gitattributes`).
const ARCHIVED: &str = "$Format:%H$";

/// What a program is built of.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "crates"];

/// Number of digits that name a commit.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=ZARRFS_TARGET={target}");
    let archived = Some(ARCHIVED).filter(|commit| !commit.starts_with('$'));
    let commit = match archived {
        Some(commit) => commit.get(..DIGITS).map(str::to_string),
        None if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") => of_git(),
        None => None,
    };
    println!(
        "cargo::rustc-env=ZARRFS_COMMIT={}",
        commit.unwrap_or_default()
    );
}

/// Returns the commit of the checkout, with a plus sign if the sources differ from it. Returns
/// `None` if these are no sources of git, or git can't read them.
fn of_git() -> Option<String> {
    // the sources may lie in a repository of another project
    if !git(&["rev-parse", "--show-prefix"])?.is_empty() {
        return None;
    }
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        // cargo would run this again each time for a file that does not exist
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let mut commit = git(&["rev-parse", "HEAD"])?.get(..DIGITS)?.to_string();
    let differs = git(&[
        &["--no-optional-locks", "status", "--porcelain", "--"],
        SOURCES.as_slice(),
    ]
    .concat())?;
    if !differs.is_empty() {
        commit.push('+');
    }
    Some(commit)
}

/// Runs git in the folder of the sources, where cargo starts this program, and returns what it
/// printed.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
}
