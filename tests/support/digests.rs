//! What zarr-python reads of every array of a folder of stores, as `oracle.json` beside them tells it, and the comparison
//! with what a mount shows.

use super::{digest, say};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zarrfs::util::json::Value;

/// The stores of a folder by their paths in it, each with its arrays.
pub struct Oracle {
    folder: PathBuf,
    pub stores: BTreeMap<String, Vec<Value>>,
}

/// What came of the arrays that were compared.
#[derive(Default)]
pub struct Table {
    pub arrays: usize,
    pub equal: usize,
    pub refused: usize,
    pub chunk_files: usize,
    pub failed: Vec<String>,
}

impl Oracle {
    pub fn read(folder: &Path) -> Oracle {
        let mut document = zarrfs::util::json::parse(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap();
        let mut stores: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for array in document["arrays"].as_array_mut().unwrap() {
            stores.entry(array["store"].as_str().unwrap().to_string()).or_default().push(array.take());
        }
        Oracle { folder: folder.to_path_buf(), stores }
    }

    /// Where a store is. Awkward names travel in an archive, which is unpacked below `spare`.
    pub fn path(&self, store: &str, spare: &Path) -> PathBuf {
        let path = self.folder.join(store);
        let archive = self.folder.join(format!("{store}.tar"));
        if path.exists() || !archive.exists() {
            return path;
        }
        let status = std::process::Command::new("tar").arg("-C").arg(spare).arg("-xf").arg(archive).status();
        assert!(status.unwrap().success());
        spare.join(Path::new(store).file_name().unwrap())
    }
}

impl Table {
    /// Compares the arrays of a store with what is mounted at `mount`; with `chunks` their chunk files, too.
    pub fn compare(&mut self, store: &str, arrays: &[Value], mount: &Path, chunks: bool) {
        for array in arrays {
            let name = array["array"].as_str().unwrap();
            let directory = if name.is_empty() { mount.to_path_buf() } else { mount.join(name) };
            self.arrays += 1;
            if let Err(why) = self.check(&directory, array, chunks) {
                self.failed.push(format!("{store}/{name}: {why}"));
            }
        }
    }

    fn check(&mut self, directory: &Path, array: &Value, chunks: bool) -> Result<(), String> {
        let flat = directory.join("data.raw");
        if !directory.join(".zarray").exists() {
            return Err("its .zarray does not show".into());
        }
        let expected = array["expect"].as_str().unwrap_or("equal");
        if expected == "refuse" {
            return match digest(&flat) {
                Ok(_) => Err("read, where a refusal is expected".into()),
                Err(_) => {
                    self.refused += 1;
                    Ok(())
                }
            };
        }
        if array["object"] == true {
            if flat.exists() {
                return Err("objects have no flat bytes, but data.raw is there".into());
            }
        } else {
            match digest(&flat) {
                // either is right, and no digest is known
                Ok(_) if expected == "either" && array["sha256"].is_null() => {}
                Err(_) if expected == "either" => {
                    self.refused += 1;
                    return Ok(());
                }
                Err(e) => return Err(format!("data.raw: {e}")),
                Ok((length, sha256)) => {
                    if Some(length) != array["nbytes"].as_u64() || array["sha256"] != sha256 {
                        return Err(format!("data.raw: {length} bytes, sha256 {sha256}"));
                    }
                }
            }
        }
        // where all arrays hold objects there is nothing else to compare
        if chunks || array["object"] == true {
            self.check_chunks(directory, array)?;
        }
        self.equal += 1;
        Ok(())
    }

    fn check_chunks(&mut self, directory: &Path, array: &Value) -> Result<(), String> {
        for (key, chunk) in array["chunk_sha256"].as_object().into_iter().flatten() {
            let path = directory.join(key.replace('/', "."));
            match (chunk["raw"].as_str(), digest(&path)) {
                (None, Err(e)) if e.raw_os_error() == Some(libc::ENOENT) => {}
                (None, _) => return Err(format!("chunk {key}: there, but not in the store")),
                (Some(raw), Ok((_, sha256))) if raw == sha256 => self.chunk_files += 1,
                (Some(_), got) => return Err(format!("chunk {key}: {got:?}")),
            }
        }
        Ok(())
    }

    /// Prints the table, and fails if any array did, or if there were too few to mean something.
    #[track_caller]
    pub fn finish(self, what: &str, left_out: usize, least: usize) {
        say(&format!("conformance, {what}"));
        say("| arrays | equal | refused as expected | failed | chunk files equal | left out |");
        say("|---|---|---|---|---|---|");
        let failed = self.failed.len();
        let Table { arrays, equal, refused, chunk_files, .. } = self;
        say(&format!("| {arrays} | {equal} | {refused} | {failed} | {chunk_files} | {left_out} |"));
        assert!(failed == 0, "{}", self.failed.join("\n"));
        assert!(arrays >= least, "the oracle is too small to mean something");
    }
}
