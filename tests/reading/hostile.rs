//! Every case of the hostile corpus on a real mount, beside a healthy array that must stay
//! readable. The manifest `cases.json`, which tests/python/hostile.py writes, states the bytes or
//! the error of each case. Then `info` and `cat` on the whole corpus. No byte of the corpus may
//! change.

use crate::support;
use crate::support::tree::{self, snapshot};
use crate::support::{Mount, ZARRFS, announce, digest, errno, test_data};
use rustix::fs::SeekFrom;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use zarrfs_base::json::{self, Value};
use zarrfs_store::Key;

/// Maximum time for one store, from mount to unmount. A store that takes longer makes zarrfs hang.
const PATIENCE: Duration = Duration::from_secs(800);

/// Memory in bytes by which a daemon may grow after the mount: the cache bound and 64 MiB.
const MEMORY: u64 = (32 + 64) << 20;

/// Option that sets the cache bound.
const CACHE: [&str; 2] = ["--cache-size", "32M"];

/// Maximum size in bytes of a file that is read in full. Of larger ones, tests read the ranges in
/// the manifest's `reads`.
const READABLE: u64 = 64 << 20;

/// Maximum number of names in a mount, far more than the corpus has.
const MAX_NAMES: usize = 50_000;

type Check = Result<(), String>;

/// The corpus on disk, which is deleted when this value is dropped.
struct Corpus {
    home: PathBuf,
    manifest: Value,
}

#[derive(Default)]
struct Row {
    cases: usize,
    names: usize,
    memory: u64,
    slowest: Duration,
    failed: Vec<String>,
}

#[test]
fn hostile_stores_do_no_harm() {
    let corpus = Corpus::make();
    let before = snapshot(&corpus.stores()).unwrap();
    let mut failed = Vec::new();
    println!(
        "hostile stores\n| store | cases | as expected | failed | names listed | memory, MiB | slowest, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut sum = 0;
    for (store, cases) in corpus.cases() {
        let path = corpus.stores().join(&store);
        let healthy = corpus.manifest["healthy"].clone();
        let row = run_with_limit(&corpus, &store, move || {
            check_store(&path, &cases, &healthy)
        });
        let Row {
            cases,
            names,
            memory,
            slowest,
            ..
        } = row;
        let good = cases - row.failed.len().min(cases);
        let bad = row.failed.len();
        let memory = memory >> 20;
        let slowest = slowest.as_millis();
        println!("| {store} | {cases} | {good} | {bad} | {names} | {memory} | {slowest} |");
        sum += cases;
        failed.extend(row.failed.iter().map(|why| format!("{store}: {why}")));
    }
    for (store, cases) in corpus.cases() {
        let path = corpus.stores().join(&store);
        failed.extend(run_with_limit(&corpus, &store, move || {
            check_commands(&path, &cases)
        }));
    }
    let after = snapshot(&corpus.stores()).unwrap();
    failed.extend(
        tree::differences(&before, &after)
            .into_iter()
            .map(|path| format!("{path}: changed")),
    );
    announce(&format!(
        "hostile corpus: {sum} cases, {} failed; {} files and directories of the corpus unchanged",
        failed.len(),
        after.len()
    ));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(sum > 300, "the corpus is too small to mean something");
}

impl Corpus {
    /// Creates the whole corpus, or without Python the part that the repository holds.
    fn make() -> Corpus {
        let home = tempfile::tempdir().unwrap().keep();
        let mut corpus = Corpus {
            home,
            manifest: Value::Null,
        };
        let python = std::env::var_os("ZARRFS_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let script = test_data("../python/hostile.py");
        match Command::new(python)
            .arg(script)
            .arg(corpus.stores())
            .output()
        {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                println!("no python: only the cases that the repository holds");
                support::copy_tree(&test_data("hostile"), &corpus.stores());
            }
            output => {
                let output = output.unwrap();
                assert!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
        corpus.manifest =
            json::parse(&std::fs::read(corpus.stores().join("cases.json")).unwrap()).unwrap();
        corpus
    }

    fn stores(&self) -> PathBuf {
        self.home.join("hostile")
    }

    fn cases(&self) -> BTreeMap<String, Vec<Value>> {
        let mut stores: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for case in self.manifest["cases"].as_array().unwrap() {
            stores
                .entry(case["store"].as_str().unwrap().to_string())
                .or_default()
                .push(case.clone());
        }
        stores
    }
}

impl Drop for Corpus {
    fn drop(&mut self) {
        // some paths are longer than PATH_MAX, and deeper than the number of file descriptors
        let _ = Command::new("rm").arg("-rf").arg(&self.home).status();
    }
}

/// Runs `work` in a thread. If it hangs, kills its daemons and aborts this process: a thread that
/// waits for a mount cannot be stopped.
fn run_with_limit<T: Send + 'static>(
    corpus: &Corpus,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let result = work();
        let _ = done.send(());
        result
    });
    if let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(PATIENCE) {
        eprintln!("hostile: {what}: no end after {} s", PATIENCE.as_secs());
        kill_and_detach(&corpus.home);
        std::process::abort();
    }
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Kills every zarrfs that has the corpus in its command line, and detaches its mount.
fn kill_and_detach(home: &Path) {
    let text = home.to_str().unwrap();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let ours = std::fs::read_link(process.path().join("exe"))
            .is_ok_and(|exe| exe == Path::new(ZARRFS));
        if ours && String::from_utf8_lossy(&command).contains(text) {
            let _ = Command::new("kill")
                .arg("-9")
                .arg(process.file_name())
                .status();
        }
    }
    for line in std::fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .filter(|l| l.starts_with(text))
    {
        let mountpoint = line.split(' ').nth(1).unwrap();
        let _ = Command::new(ZARRFS)
            .args(["umount", "--lazy", mountpoint])
            .status();
        let _ = std::fs::remove_dir(mountpoint);
        let _ = std::fs::remove_dir(Path::new(mountpoint).parent().unwrap());
    }
    let _ = Command::new("rm").arg("-rf").arg(home).status();
}

/// Checks all cases of a store on one mount.
fn check_store(store: &Path, cases: &[Value], healthy: &Value) -> Row {
    let mut row = Row {
        cases: cases.len(),
        ..Row::default()
    };
    let mount = Mount::new(store, &CACHE);
    let before = mount.peak_memory();
    let alone = cases.iter().any(|c| c["alone"] == true);
    let check_healthy = |row: &mut Row, when: &str| {
        if !alone && let Err(why) = check_flat(&mount.join("healthy"), healthy) {
            row.failed
                .push(format!("the healthy neighbour, {when}: {why}"));
        }
    };
    check_healthy(&mut row, "first");
    for case in cases {
        let start = Instant::now();
        if let Err(why) = check(&mount, store, case) {
            row.failed
                .push(format!("{}: {why}", case["name"].as_str().unwrap()));
        }
        row.slowest = row.slowest.max(start.elapsed());
    }
    match list_all(&mount) {
        Ok(names) => row.names = names,
        Err(why) => row.failed.push(why),
    }
    check_healthy(&mut row, "last");
    row.failed.extend(missing_reasons(&mount, cases));
    row.memory = mount.peak_memory().saturating_sub(before);
    if row.memory > MEMORY {
        row.failed
            .push(format!("memory grew by {} MiB", row.memory >> 20));
    }
    row
}

/// Lists and stats all files. Names that cannot be looked up are allowed, but not a listing without
/// an end.
fn list_all(mount: &Mount) -> Result<usize, String> {
    let mut names = 0;
    tree::visit(mount.path(), &mut |_| {
        names += 1;
        names < MAX_NAMES
    })
    .map_err(|e| format!("listing everything: {e}"))?;
    if names < MAX_NAMES {
        Ok(names)
    } else {
        Err(format!("listing everything: more than {names} names"))
    }
}

/// Returns the refused arrays whose reason is missing in the statistics.
fn missing_reasons(mount: &Mount, cases: &[Value]) -> Vec<String> {
    let stats = mount.stats();
    let problems: Vec<&str> = stats
        .lines()
        .filter_map(|l| l.strip_prefix("problem "))
        .collect();
    let mut missing = Vec::new();
    for case in cases {
        let refused = !["works", "either"].contains(&case["expected"].as_str().unwrap());
        let key = Key::normalize(case["array"].as_str().unwrap()).unwrap();
        let name = if key.is_root() {
            "/".to_string()
        } else {
            format!("{key}/")
        };
        let told = problems
            .iter()
            .any(|p| p.contains(&name) || p.contains(&format!("{key}: ")));
        if refused && ["array", "chunk"].contains(&case["kind"].as_str().unwrap()) && !told {
            missing.push(format!("{}: .zarrfs/stats has no reason", case["name"]));
        }
    }
    missing
}

fn check(mount: &Mount, store: &Path, case: &Value) -> Check {
    let text = |field: &str| case[field].as_str().unwrap();
    let directory = if text("array").is_empty() {
        mount.path().to_path_buf()
    } else {
        mount.join(text("array"))
    };
    let expected = text("expected");
    match text("kind") {
        "lookup" => allowed("the lookup", &errno(directory.symlink_metadata()), expected),
        "group" => match listed_names(&directory) {
            Err(e) if expected == "works" => Err(format!("can't be listed: {e}")),
            _ => Ok(()),
        },
        "array" if expected == "works" => check_works(&directory, case),
        "array" if expected == "either" => check_either(&directory, case),
        "array" => check_refused(&directory, case),
        _ => check_bad_chunk(&directory, case),
    }?;
    check_names(mount, &directory, store, case)
}

/// Checks that the result `got` of an operation on a file is one that `expected` allows.
fn allowed(what: &str, got: &str, expected: &str) -> Check {
    let good = match expected {
        "refuse" => ["EIO", "EOPNOTSUPP"].contains(&got),
        "error" => got != "ok",
        "either" => true,
        errno => got == errno,
    };
    if good {
        Ok(())
    } else {
        Err(format!("{what}: {got}, expected {expected}"))
    }
}

fn check_works(directory: &Path, case: &Value) -> Check {
    if case["object"] == true {
        if listed_names(directory)
            .map_err(|e| e.to_string())?
            .contains("data.raw")
            || directory.join("data.raw").exists()
        {
            return Err("objects have no flat bytes, but data.raw is there".into());
        }
    } else {
        check_flat(directory, case)?;
    }
    let mut buffer = Vec::with_capacity(1 << 16);
    rustix::fs::listxattr(directory, rustix::buffer::spare_capacity(&mut buffer))
        .map_err(|e| format!("xattrs: {e}"))?;
    if !String::from_utf8_lossy(&buffer).contains("user.zarr.shape\0") {
        return Err("no user.zarr.shape".into());
    }
    let Some(chunk) = case["chunk"].as_str() else {
        return Ok(());
    };
    match (
        digest(&directory.join(chunk)),
        case["chunk_sha256"].as_str(),
    ) {
        (Err(e), _) => Err(format!("chunk {chunk}: {e}")),
        (Ok((_, got)), Some(sha256)) if got != sha256 => {
            Err(format!("chunk {chunk}: sha256 {got}"))
        }
        _ => Ok(()),
    }
}

/// Checks that `data.raw` is listed and has the size and the bytes of the manifest.
fn check_flat(directory: &Path, case: &Value) -> Check {
    let flat = directory.join("data.raw");
    let size = flat.metadata().map_err(|e| format!("data.raw: {e}"))?.len();
    if case["size"].as_u64().is_some_and(|s| s != size) {
        return Err(format!("data.raw: {size} bytes"));
    }
    if !listed_names(directory)
        .map_err(|e| format!("can't be listed: {e}"))?
        .contains("data.raw")
    {
        return Err("data.raw is not listed".into());
    }
    if size <= READABLE && case["kind"] != "chunk" {
        let (length, sha256) = digest(&flat).map_err(|e| format!("data.raw: {e}"))?;
        if length != size || case["sha256"].as_str().is_some_and(|s| s != sha256) {
            return Err(format!("data.raw: {length} bytes read, sha256 {sha256}"));
        }
    }
    let file = File::open(&flat).map_err(|e| format!("data.raw: {e}"))?;
    for read in case["reads"].as_array().into_iter().flatten() {
        let mut bytes = vec![0; read[1].as_u64().unwrap() as usize];
        file.read_exact_at(&mut bytes, read[0].as_u64().unwrap())
            .map_err(|e| format!("read {read}: {e}"))?;
        if read[2] != support::hex(&bytes) {
            return Err(format!("read {read}: got {}", support::hex(&bytes)));
        }
    }
    match case["data"].as_u64() {
        Some(at) => match rustix::fs::seek(&file, SeekFrom::Data(0)) {
            Ok(found) if found != at => Err(format!("SEEK_DATA finds {found}")),
            found => found.map(|_| ()).map_err(|e| format!("SEEK_DATA: {e}")),
        },
        None => Ok(()),
    }
}

fn check_either(directory: &Path, case: &Value) -> Check {
    let Ok(names) = listed_names(directory) else {
        return Ok(());
    };
    match digest(&directory.join("data.raw")) {
        Ok(_) => check_flat(directory, case),
        // a refused array has no readable chunks, except for one of objects
        Err(_) if case["object"] == true => Ok(()),
        Err(_) => match File::open(directory.join(case["chunk"].as_str().unwrap())) {
            Ok(_) if !names.contains("data.raw") => {
                Err("a chunk opens, but there is no data.raw".into())
            }
            _ => Ok(()),
        },
    }
}

/// Checks that the directory and its metadata are shown, but nothing that needs decoding.
fn check_refused(directory: &Path, case: &Value) -> Check {
    let expected = case["expected"].as_str().unwrap();
    let chunk = case["chunk"].as_str().unwrap();
    let listed = listed_names(directory).map_err(|e| format!("can't be listed: {e}"))?;
    let flat = errno(digest(&directory.join("data.raw")));
    if listed.contains("data.raw") {
        if expected != "refuse" {
            return Err("data.raw is listed".into());
        }
        allowed("data.raw", &flat, expected)?;
        return allowed(
            "the chunk",
            &errno(digest(&directory.join(chunk))),
            expected,
        );
    }
    // where the document cannot be read, it is not known that there is no such file
    let document = errno(std::fs::read(directory.join(".zarray")).map(|_| String::new()));
    let of_data = if ["EACCES", "ELOOP"].contains(&document.as_str()) {
        &document
    } else {
        "ENOENT"
    };
    allowed("data.raw, not listed", &flat, of_data)?;
    allowed(
        "opening the chunk",
        &errno(File::open(directory.join(chunk))),
        expected,
    )?;
    if !listed.contains(chunk) {
        return Err("the chunk is not listed".into());
    }
    match std::fs::read(directory.join(".zarray")) {
        Ok(_) if listed.contains(".zarray") => Ok(()),
        Ok(_) => Err(".zarray reads, but is not listed".into()),
        Err(_) if case["unreadable"] == true => Ok(()),
        Err(e) => Err(format!(".zarray: {e}")),
    }
}

/// Checks that all of the array but one chunk can be read.
fn check_bad_chunk(directory: &Path, case: &Value) -> Check {
    let expected = case["expected"].as_str().unwrap();
    let chunk = case["chunk"].as_str().unwrap();
    check_flat(directory, case)?;
    if let Some(good) = case["good_chunk"].as_str() {
        let bytes = std::fs::read(directory.join(good))
            .map_err(|e| format!("the good chunk {good}: {e}"))?;
        if case["good_hex"]
            .as_str()
            .is_some_and(|hex| hex != support::hex(&bytes))
        {
            return Err(format!(
                "the good chunk {good} holds {}",
                support::hex(&bytes)
            ));
        }
    }
    let flat = digest(&directory.join("data.raw"));
    if expected == "either" {
        return match flat {
            Ok((_, sha256)) if case["sha256"].as_str().is_some_and(|s| s != sha256) => {
                Err("data.raw differs".into())
            }
            _ => Ok(()),
        };
    }
    allowed("data.raw", &errno(flat), expected)?;
    allowed(
        "the chunk",
        &errno(digest(&directory.join(chunk))),
        expected,
    )
}

/// Checks that the names in `absent` and `group_absent` do not exist, that those in `outside` are
/// neither listed nor opened, and that those in `strange` do not exist or are plain files.
fn check_names(mount: &Mount, directory: &Path, store: &Path, case: &Value) -> Check {
    for (field, place) in [("absent", directory), ("group_absent", mount.path())] {
        let listed = if case[field].is_array() {
            listed_names(place).map_err(|e| e.to_string())?
        } else {
            BTreeSet::new()
        };
        for name in case[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            let found = errno(place.join(name).symlink_metadata());
            // the kernel itself resolves ".."
            if listed.contains(name) || name != ".." && found != "ENOENT" {
                return Err(format!("{name:?} is there, or not surely absent: {found}"));
            }
        }
    }
    for name in case["outside"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let opened = errno(std::fs::File::open(directory.join(name)));
        if listed_names(directory)
            .map_err(|e| e.to_string())?
            .contains(name)
            || opened != "ENOENT"
        {
            return Err(format!(
                "{name:?} is outside the grid, and listed or opened: {opened}"
            ));
        }
    }
    for name in case["strange"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        match std::fs::read(directory.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            got => {
                let stored = std::fs::read(store.join(case["array"].as_str().unwrap()).join(name));
                if got.as_ref().ok() != stored.as_ref().ok() {
                    return Err(format!("{name:?} is neither absent nor as stored: {got:?}"));
                }
            }
        }
    }
    Ok(())
}

fn listed_names(directory: &Path) -> IoResult<BTreeSet<String>> {
    std::fs::read_dir(directory)?
        .map(|e| Ok(e?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Runs `info` and `cat` on a store and its arrays. Returns descriptions of wrong results.
fn check_commands(store: &Path, cases: &[Value]) -> Vec<String> {
    let mut failed = Vec::new();
    for args in [&["info"][..], &["info", "--json"]] {
        let output = zarrfs(args, store);
        let text = String::from_utf8_lossy(&output.stdout);
        match check_ending(&output) {
            Err(why) => failed.push(format!("{}: {args:?}: {why}", store.display())),
            // what has no place in a mount is an exit code
            Ok(()) if String::from_utf8_lossy(&output.stderr).contains("left out") => {}
            // what cannot be read is shown and is an error
            Ok(_) if !output.status.success() && !text.contains("unreadable") => {
                failed.push(format!(
                    "{args:?}: {}",
                    String::from_utf8_lossy(&output.stderr)
                ));
            }
            Ok(()) if args.len() > 1 && serde_json::from_str::<Value>(&text).is_err() => {
                failed.push(format!("{}: {args:?} did not print JSON", store.display()));
            }
            Ok(()) => {}
        }
    }
    for case in cases
        .iter()
        .filter(|c| c["kind"] == "array" || c["kind"] == "chunk")
    {
        let output = zarrfs(
            &["cat", "--length", "1M"],
            &store.join(case["array"].as_str().unwrap()),
        );
        let expected = case["expected"].as_str().unwrap();
        let code = output.status.code();
        let wrong = match expected {
            "works" => (code != Some(0)) != (case["object"] == true),
            "either" => false,
            _ => code == Some(0),
        };
        if let Err(why) = check_ending(&output) {
            failed.push(format!("{}: cat: {why}", case["name"]));
        } else if wrong {
            let text = String::from_utf8_lossy(&output.stderr);
            failed.push(format!(
                "{}: cat ended with {code:?}, expected {expected}: {text}",
                case["name"]
            ));
        }
    }
    failed
}

fn zarrfs(args: &[&str], path: &Path) -> Output {
    Command::new(ZARRFS).args(args).arg(path).output().unwrap()
}

/// Checks that a command ended silently with 0, or with a documented exit code and one line that
/// states the reason.
fn check_ending(output: &Output) -> Check {
    let told = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) if told.is_empty() => Ok(()),
        Some(1 | 3 | 4)
            if !told.is_empty() && told.lines().all(|line| line.starts_with("error: ")) =>
        {
            Ok(())
        }
        _ => Err(format!("{}, standard error: {told}", output.status)),
    }
}
