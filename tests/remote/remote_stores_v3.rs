//! Arrays of Zarr v3 in archives and on HTTP, S3 and Azure servers, on real mounts: those of the
//! generated matrix, and those of the reference stores. The bytes of each are compared with digests
//! of the values that were written, as `conformance.rs` does with mounts of the directories.
//! `remote_stores.rs` tests v1 and v2.

use crate::support::digests::{Comparison, Oracle, is_known, stage};
use crate::support::faulty_server::FaultyServer;
use crate::support::servers::{self, RemoteStore, Server};
use crate::support::{Mount, announce, env_number, env_path};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zarrfs_base::json::Value;

/// The smallest number of arrays for a meaningful comparison.
const LEAST: usize = 100;

/// The arrays of the stores that are compared. Directories (`conformance.rs`), archives and a
/// bucket of the tests' own server are read whole. The other servers would take minutes each: moto
/// takes 90 s for the upload alone.
#[derive(Clone, Copy)]
enum Selection {
    /// All arrays.
    All,
    /// The first array of each store, the ninth, and so on; with ZARRFS_REMOTE_ALL all arrays.
    EveryEighth,
}

impl Selection {
    fn step(self) -> usize {
        match self {
            Selection::EveryEighth if env_number("ZARRFS_REMOTE_ALL", 0) == 0 => 8,
            _ => 1,
        }
    }
}

/// A directory store and its arrays that are compared.
struct StoreV3 {
    /// The writer of a matrix, or `reference`.
    writer: String,
    folder: PathBuf,
    /// The path below the folder.
    name: String,
    path: PathBuf,
    arrays: Vec<Value>,
}

/// Returns the stores of v3 in all folders that have an oracle.
fn stores(selection: Selection) -> Vec<StoreV3> {
    let mut stores = Vec::new();
    for variable in ["ZARRFS_MATRIX3", "ZARRFS_REFERENCE"] {
        let Some(folder) = env_path(variable) else {
            continue;
        };
        for (name, mut arrays) in Oracle::read(&folder).stores {
            let path = folder.join(&name);
            arrays.retain(|array| array["zarr_format"] == 3 && is_known(array));
            let arrays: Vec<Value> = arrays.into_iter().step_by(selection.step()).collect();
            if path.is_dir() && !arrays.is_empty() {
                let of_matrix = name
                    .strip_suffix(".zarr")
                    .filter(|_| variable == "ZARRFS_MATRIX3");
                let writer = of_matrix.unwrap_or("reference").into();
                stores.push(StoreV3 {
                    writer,
                    folder: folder.clone(),
                    name,
                    path,
                    arrays,
                });
            }
        }
    }
    stores
}

/// Compares the arrays and chunk files of all stores, each in the mount that `mount` returns for
/// the index of the store.
fn compare(what: &str, stores: &[StoreV3], mount: &mut dyn FnMut(usize) -> Mount) {
    if stores.is_empty() {
        return;
    }
    let mut writers: BTreeMap<&str, Comparison> = BTreeMap::new();
    for (number, store) in stores.iter().enumerate() {
        let table = writers.entry(&store.writer).or_default();
        table.compare(&store.name, &store.arrays, mount(number).path(), true);
    }
    announce(&format!("conformance, v3, {what}"));
    announce("| writer | arrays | equal | refused as expected | failed | chunk files equal |");
    announce("|---|---|---|---|---|---|");
    for (writer, table) in &writers {
        let Comparison {
            arrays,
            equal,
            refused,
            chunk_files,
            failed,
        } = table;
        announce(&format!(
            "| {writer} | {arrays} | {equal} | {refused} | {} | {chunk_files} |",
            failed.len()
        ));
    }
    let failed: Vec<&str> = writers
        .values()
        .flat_map(|table| &table.failed)
        .map(String::as_str)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // without the matrix there are fewer arrays
    let least = if std::env::var_os("ZARRFS_MATRIX3").is_some() {
        LEAST
    } else {
        1
    };
    assert!(
        writers.values().map(|table| table.arrays).sum::<usize>() >= least,
        "too few arrays to mean something"
    );
}

#[test]
fn archives_hold_the_written_values() {
    let folder = tempfile::tempdir().unwrap();
    let server = servers::nginx(folder.path(), "");
    for (stored, how, selection) in [
        (true, "stored", Selection::All),
        (false, "deflated", Selection::EveryEighth),
    ] {
        let stores = stores(selection);
        let archive = |number: usize| folder.path().join(format!("{how}{number}.zip"));
        let pairs: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(number, store)| (store.path.as_path(), archive(number)))
            .collect();
        servers::zip_all(&pairs, stored);
        compare(&format!("archives, {how}"), &stores, &mut |number| {
            Mount::new(&archive(number), &[])
        });
        if let Some(server) = server.as_ref().filter(|_| !stored) {
            compare(
                &format!("archives over HTTP, {how}"),
                &stores,
                &mut |number| server.store(&format!("{how}{number}.zip")).mount(&[]),
            );
        }
    }
}

#[test]
fn stores_on_nginx_hold_the_written_values() {
    compare_over_http("HTTP by nginx", |root| servers::nginx(root, ""));
}

#[test]
fn stores_on_pythons_http_server_hold_the_written_values() {
    compare_over_http("HTTP by Python's http.server", servers::python_http);
}

fn compare_over_http(what: &str, start: impl Fn(&Path) -> Option<Server>) {
    let mut stores = stores(Selection::EveryEighth);
    let served = tempfile::tempdir().unwrap();
    let Some(server) = start(served.path()) else {
        return;
    };
    // where keys cannot be listed, a path without a document is not a store
    stores.retain(|store| store.path.join("zarr.json").exists());
    for (number, store) in stores.iter().enumerate() {
        std::os::unix::fs::symlink(&store.path, served.path().join(number.to_string())).unwrap();
    }
    compare(what, &stores, &mut |number| {
        server.store(&number.to_string()).mount(&[])
    });
}

/// The folders of stores are the buckets.
#[test]
fn stores_in_a_bucket_hold_the_written_values() {
    let stores = stores(Selection::All);
    let mut running = Vec::new();
    let environment = vec![
        ("AWS_ACCESS_KEY_ID", "tests".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
    ];
    compare("S3 by the tests' own server", &stores, &mut |number| {
        let StoreV3 { folder, name, .. } = &stores[number];
        let server = FaultyServer::new(folder.parent().unwrap());
        let url = format!(
            "s3://{}/{name}",
            folder.file_name().unwrap().to_str().unwrap()
        );
        let args = [
            "--endpoint-url",
            server.url("").trim_end_matches('/'),
            "--region",
            "us-east-1",
        ]
        .map(String::from);
        let mount = RemoteStore {
            url,
            args: args.to_vec(),
            environment: environment.clone(),
        }
        .mount(&[]);
        running.push(server);
        mount
    });
}

#[test]
fn stores_on_moto_hold_the_written_values() {
    compare_over_buckets("S3 by moto", servers::moto);
}

#[test]
fn stores_on_localstack_hold_the_written_values() {
    compare_over_buckets("S3 by LocalStack", servers::localstack);
}

#[test]
fn stores_on_azurite_hold_the_written_values() {
    compare_over_buckets("Azure by azurite", servers::azurite);
}

fn compare_over_buckets(what: &str, start: impl Fn() -> Option<Server>) {
    let stores = stores(Selection::EveryEighth);
    let Some(server) = start() else { return };
    let staged = tempfile::tempdir().unwrap();
    for (number, store) in stores.iter().enumerate() {
        let to = staged.path().join(number.to_string());
        stage(&store.path, &store.arrays, &["zarr.json"], &to);
    }
    server.upload(staged.path(), "stores/all");
    compare(what, &stores, &mut |number| {
        server.store(&format!("stores/all/{number}")).mount(&[])
    });
}
