//! Comparison of every array in a folder of stores, read through a mount, with zarr-python. The
//! file `oracle.json` in the folder holds digests of the bytes that zarr-python reads.

use super::{announce, digest};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zarrfs_base::json::Value;

/// The stores of a folder by their relative paths, each with zarr-python's results for its arrays.
pub struct Oracle {
    folder: PathBuf,
    pub stores: BTreeMap<String, Vec<Value>>,
}

/// Counts of the arrays that were compared with zarr-python.
#[derive(Default)]
pub struct Comparison {
    pub arrays: usize,
    pub equal: usize,
    pub refused: usize,
    pub chunk_files: usize,
    pub failed: Vec<String>,
}

impl Oracle {
    /// Reads `oracle.json` in a folder, and `oracle-v3.json` if there is one.
    pub fn read(folder: &Path) -> Oracle {
        let mut stores: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for text in ["oracle.json", "oracle-v3.json"]
            .iter()
            .filter_map(|name| std::fs::read(folder.join(name)).ok())
        {
            let mut document = zarrfs_base::json::parse(&text).unwrap();
            for array in document["arrays"].as_array_mut().unwrap() {
                stores
                    .entry(array["store"].as_str().unwrap().to_string())
                    .or_default()
                    .push(array.take());
            }
        }
        assert!(!stores.is_empty(), "no oracle in {}", folder.display());
        Oracle {
            folder: folder.to_path_buf(),
            stores,
        }
    }

    /// Returns the path of a store. Unpacks it into `spare` if the folder holds it as a tar
    /// archive, since a repository cannot hold some file names.
    pub fn path(&self, store: &str, spare: &Path) -> PathBuf {
        let path = self.folder.join(store);
        let archive = self.folder.join(format!("{store}.tar"));
        if path.exists() || !archive.exists() {
            return path;
        }
        let status = std::process::Command::new("tar")
            .arg("-C")
            .arg(spare)
            .arg("-xf")
            .arg(archive)
            .status();
        assert!(status.unwrap().success());
        spare.join(Path::new(store).file_name().unwrap())
    }
}

/// Returns whether the oracle has a usable digest of an array, or requires its refusal. zarr-python
/// 3 cannot read all arrays, and its digests of some big-endian arrays are of little-endian bytes.
pub fn is_known(array: &Value) -> bool {
    let is_swapped =
        array["numpy_dtype"] == "<f4" && array["codecs"][0]["configuration"]["endian"] == "big";
    !(array["zarr_format"] == 3 && (array["error"].is_string() || is_swapped))
}

impl Comparison {
    /// Compares the arrays of a store with the mount at `mount`, and their chunk files as well if
    /// `chunks` is set.
    pub fn compare(&mut self, store: &str, arrays: &[Value], mount: &Path, chunks: bool) {
        for array in arrays {
            let name = array["array"].as_str().unwrap();
            let directory = if name.is_empty() {
                mount.to_path_buf()
            } else {
                mount.join(name)
            };
            self.arrays += 1;
            // zarr-python 3 has no digests of decoded chunks
            let chunks = chunks && array["reader"] != "zarr 3.1.6";
            if let Err(why) = self.check(&directory, array, chunks) {
                self.failed.push(format!("{store}/{name}: {why}"));
            }
        }
    }

    fn check(&mut self, directory: &Path, array: &Value, chunks: bool) -> Result<(), String> {
        let flat = directory.join("data.raw");
        let document = if array["zarr_format"] == 3 {
            "zarr.json"
        } else {
            ".zarray"
        };
        if !directory.join(document).exists() {
            return Err(format!("its {document} is not shown"));
        }
        let expected = array["expect"].as_str().unwrap_or("equal");
        if expected == "refuse" {
            if array["zarr_format"] == 3 && flat.symlink_metadata().is_ok() {
                return Err("data.raw is there, where a refusal is expected".into());
            }
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
                // both outcomes are right, and no digest is known
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
        // arrays of objects have only chunk files to compare
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

    /// Prints the counts. Fails if any array differs, or if fewer than `least` arrays were
    /// compared.
    #[track_caller]
    pub fn finish(self, what: &str, left_out: usize, least: usize) {
        announce(&format!("conformance, {what}"));
        announce(
            "| arrays | equal | refused as expected | failed | chunk files equal | left out |",
        );
        announce("|---|---|---|---|---|---|");
        let failed = self.failed.len();
        let Comparison {
            arrays,
            equal,
            refused,
            chunk_files,
            ..
        } = self;
        announce(&format!(
            "| {arrays} | {equal} | {refused} | {failed} | {chunk_files} | {left_out} |"
        ));
        assert!(failed == 0, "{}", self.failed.join("\n"));
        assert!(arrays >= least, "the oracle is too small to mean something");
    }
}

/// Copies arrays of the store at `from`, and the documents of the groups above them.
pub fn stage(from: &Path, arrays: &[Value], documents: &[&str], to: &Path) {
    for array in arrays {
        let name = Path::new(array["array"].as_str().unwrap());
        super::copy_tree(&from.join(name), &to.join(name));
        for group in name.ancestors().skip(1) {
            for document in documents {
                let from = from.join(group).join(document);
                if from.is_file() {
                    std::fs::copy(from, to.join(group).join(document)).unwrap();
                }
            }
        }
    }
}
