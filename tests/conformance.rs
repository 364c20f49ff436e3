//! Every array of the reference stores and of the generated matrix, read through a real mount and compared with what
//! zarr-python reads: digests of `data.raw`, of chunk files, refusals. Zip and v3 stores are not read yet.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use support::{Mount, digest, provided, say};
use zarrfs::json::Value;

#[derive(Default)]
struct Table {
    arrays: usize,
    equal: usize,
    refused: usize,
    chunk_files: usize,
    failed: Vec<String>,
}

#[test]
fn the_reference_stores() {
    if let Some(folder) = provided("ZARRFS_REFERENCE") {
        compare(&folder, "reference");
    }
}

#[test]
fn the_matrix() {
    if let Some(folder) = provided("ZARRFS_MATRIX") {
        compare(&folder, "matrix");
    }
}

fn compare(folder: &Path, what: &str) {
    let oracle = zarrfs::json::parse(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap();
    let mut stores: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for array in oracle["arrays"].as_array().unwrap() {
        stores.entry(array["store"].as_str().unwrap()).or_default().push(array);
    }
    let (mut table, mut left_out) = (Table::default(), 0);
    let unpacked = tempfile::tempdir().unwrap();
    for (store, arrays) in stores {
        let mut path = folder.join(store);
        if !path.exists() && folder.join(format!("{store}.tar")).exists() {
            // awkward names travel in an archive
            let status = std::process::Command::new("tar")
                .arg("-C")
                .arg(unpacked.path())
                .arg("-xf")
                .arg(folder.join(format!("{store}.tar")))
                .status();
            assert!(status.unwrap().success());
            path = unpacked.path().join(Path::new(store).file_name().unwrap());
        }
        if !path.is_dir() || arrays.iter().all(|a| a["zarr_format"] == 3) {
            left_out += arrays.len();
            continue;
        }
        let mount = Mount::new(&path, &[]);
        for array in arrays {
            let name = array["array"].as_str().unwrap();
            let directory = if name.is_empty() { mount.path().to_path_buf() } else { mount.join(name) };
            table.arrays += 1;
            if let Err(why) = check(&directory, array, &mut table) {
                table.failed.push(format!("{store}/{name}: {why}"));
            }
        }
    }
    say(&format!("conformance, {what} stores"));
    say("| arrays | equal | refused as expected | failed | chunk files equal | left out (zip, v3) |");
    say("|---|---|---|---|---|---|");
    let failed = table.failed.len();
    let Table { arrays, equal, refused, chunk_files, .. } = table;
    say(&format!("| {arrays} | {equal} | {refused} | {failed} | {chunk_files} | {left_out} |"));
    assert!(failed == 0, "{}", table.failed.join("\n"));
    assert!(arrays > 100, "the oracle is too small to mean something");
}

fn check(directory: &Path, array: &Value, table: &mut Table) -> Result<(), String> {
    let flat = directory.join("data.raw");
    if !directory.join(".zarray").exists() {
        return Err("its .zarray does not show".into());
    }
    let expected = array["expect"].as_str().unwrap_or("equal");
    if expected == "refuse" {
        return match digest(&flat) {
            Ok(_) => Err("read, where a refusal is expected".into()),
            Err(_) => {
                table.refused += 1;
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
                table.refused += 1;
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
    for (key, chunk) in array["chunk_sha256"].as_object().into_iter().flatten() {
        let path = directory.join(key.replace('/', "."));
        match (chunk["raw"].as_str(), digest(&path)) {
            (None, Err(e)) if e.raw_os_error() == Some(libc::ENOENT) => {}
            (None, _) => return Err(format!("chunk {key}: there, but not in the store")),
            (Some(raw), Ok((_, sha256))) if raw == sha256 => table.chunk_files += 1,
            (Some(_), got) => return Err(format!("chunk {key}: {got:?}")),
        }
    }
    table.equal += 1;
    Ok(())
}
