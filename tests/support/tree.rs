//! Traversal of directory trees by file descriptors, which handles paths longer than PATH_MAX and
//! follows no links.

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Result};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Largest size in bytes of files whose content a snapshot includes.
const MAX_CONTENT: u64 = 64 << 20;

/// One name of a tree. `stat` is an error if the name cannot be looked up.
pub struct Found<'a> {
    pub directory: &'a OwnedFd,
    pub name: &'a std::ffi::CStr,
    pub path: String,
    pub stat: std::result::Result<Stat, rustix::io::Errno>,
}

/// Calls `visit` for every name below `root` until it returns false. Skips directories that cannot
/// be opened.
pub fn visit(root: &Path, visit: &mut dyn FnMut(Found) -> bool) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = Rc::new(fs::open(root, flags, Mode::empty())?);
    // a directory stays open only while one of its subdirectories is still to be visited
    let mut stack = list(&top, "", visit)?;
    while let Some((directory, name, path)) = stack.pop() {
        if let Ok(below) = fs::openat(&*directory, name.as_c_str(), flags, Mode::empty()) {
            drop(directory);
            stack.extend(list(&Rc::new(below), &path, visit)?);
        }
    }
    Ok(())
}

type Pending = (Rc<OwnedFd>, std::ffi::CString, String);

fn list(
    directory: &Rc<OwnedFd>,
    path: &str,
    visit: &mut dyn FnMut(Found) -> bool,
) -> Result<Vec<Pending>> {
    let mut below = Vec::new();
    for entry in Dir::read_from(&**directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let path = format!("{path}/{}", name.to_bytes().escape_ascii());
        let stat = fs::statat(&**directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
            below.push((directory.clone(), name.to_owned(), path.clone()));
        }
        if !visit(Found {
            directory,
            name,
            path,
            stat,
        }) {
            return Ok(Vec::new());
        }
    }
    Ok(below)
}

/// Returns for every path below `root` its mode, inode, size, times and content digest.
pub fn snapshot(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    visit(root, &mut |found| {
        let content = content(&found).unwrap_or_else(|e| e.to_string());
        let line = found.stat.map(|s| {
            let changed = (s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
            format!(
                "{:o} {} {} {changed:?} {content}",
                s.st_mode, s.st_ino, s.st_size
            )
        });
        all.insert(found.path, line.unwrap_or_else(|e| e.to_string()));
        true
    })?;
    Ok(all)
}

fn content(found: &Found) -> Result<String> {
    let stat = found.stat?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || stat.st_size as u64 > MAX_CONTENT
    {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    let fd = fs::openat(
        found.directory,
        found.name,
        OFlags::RDONLY | OFlags::NOFOLLOW,
        Mode::empty(),
    )?;
    File::from(fd).read_to_end(&mut bytes)?;
    Ok(super::hex(&Sha256::digest(&bytes)))
}

/// Returns the paths that are in only one snapshot, or that differ.
pub fn differences(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<String> {
    let changed = before
        .iter()
        .filter(|(path, line)| after.get(*path) != Some(line));
    changed
        .map(|(path, _)| path)
        .chain(after.keys().filter(|p| !before.contains_key(*p)))
        .cloned()
        .collect()
}

/// Returns every file below a directory with its bytes. Paths are relative to the directory.
pub fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path())
            } else {
                let name = entry.path().strip_prefix(root).unwrap().to_path_buf();
                all.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}
