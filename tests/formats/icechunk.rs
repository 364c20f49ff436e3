//! Icechunk repositories that the official packages have written: each array of each snapshot is
//! compared with what the packages read. Virtual chunks lie in a folder that stands for the places
//! in the references.

use crate::support::{
    Mount, announce, copy_tree, env_path, errno, failure, listed, names, run_python, test_data,
    text, wait_for, zarrfs,
};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use zarrfs::array::hierarchy::Hierarchy;
use zarrfs::cache::{Cache, SpillOptions};
use zarrfs::fs::tree::Tree;
use zarrfs::fs::{Fs, Options};
use zarrfs_base::error::Result;
use zarrfs_base::json::Value;
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::V1Order;
use zarrfs_icechunk::IcechunkStore;
use zarrfs_reference::TargetRoot;
use zarrfs_store::{
    ByteRange, DirectoryStore, Key, Listing, Readable, SnapshotRef, Stat, Store, TargetPlace,
    Version,
};

/// The files of virtual chunks as the web server shows them: with one entity tag and one date.
struct TaggedFiles(DirectoryStore);

impl TaggedFiles {
    fn tagged(stat: Stat) -> Stat {
        Stat {
            version: Version::Tag("\"zarrfs-fixture-1\"".to_string()),
            modified: SystemTime::UNIX_EPOCH + Duration::from_secs(1_748_736_000),
            ..stat
        }
    }
}

impl Readable for TaggedFiles {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let found = self.0.read(key, range, value)?;
        Ok(match range {
            ByteRange::Whole(_) => found,
            _ => found.map(Self::tagged),
        })
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok(self.0.stat(key)?.map(Self::tagged))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.0.list(prefix)
    }

    fn location(&self) -> String {
        self.0.location()
    }
}

impl Store for TaggedFiles {}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/icechunk")
}

/// Returns a file system with a snapshot of a repository.
fn open(repository: &str, id: &str) -> Fs {
    let targets = || DirectoryStore::open(&folder().join("virtual"));
    let files = TargetPlace::of_path(Path::new("/zarrfs-fixture/virtual")).unwrap();
    let web = TargetPlace::of_url("http://127.0.0.1:18965/virtual").unwrap();
    let roots = vec![
        TargetRoot::new(files, Box::new(move || Ok(Arc::new(targets()?)))),
        TargetRoot::new(web, Box::new(move || Ok(Arc::new(TaggedFiles(targets()?))))),
    ];
    let place = TargetPlace::of_path(&folder().join(repository)).unwrap();
    let below = Arc::new(DirectoryStore::open(&folder().join(repository)).unwrap());
    let wanted = SnapshotRef::parse(&format!("snapshot:{id}")).unwrap();
    let store = IcechunkStore::open(below, wanted, place, roots, None).unwrap();
    let stats = Arc::<Stats>::default();
    let cache = Arc::new(Cache::new(16 << 20, stats.clone()));
    let hierarchy = Hierarchy::new(Arc::new(store), V1Order::Zarr1, stats.clone());
    hierarchy.check().unwrap();
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let options = Options {
        read_only: true,
        resize: false,
        threads: 1,
        direct_io: false,
        spill,
    };
    Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap()
}

/// Reads a file of a group or array.
fn read(fs: &Fs, node: &str, name: &str) -> Result<Vec<u8>> {
    let names = node
        .split('/')
        .filter(|name| !name.is_empty())
        .chain([name]);
    let mut inode = 1;
    for name in names {
        inode = fs.lookup(inode, name)?.inode;
    }
    let handle = fs.open(inode, false, false)?.handle;
    let mut all = Vec::new();
    loop {
        let mut part = Vec::new();
        let read = fs.read(handle, all.len() as u64, 1 << 20, &mut part);
        if part.is_empty() || read.is_err() {
            fs.change().release(handle);
            return read.map(|()| all);
        }
        all.extend(part);
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn arrays_have_the_values_that_the_packages_read() {
    let digests = std::fs::read(folder().join("digests.json")).unwrap();
    let digests = zarrfs_base::json::parse(&digests).unwrap();
    let mut counts = [0; 3];
    let mut faults = Vec::new();
    for (repository, content) in digests.as_object().unwrap() {
        for (id, snapshot) in content["snapshots"].as_object().unwrap() {
            let fs = open(repository, id);
            for (path, array) in snapshot["arrays"].as_object().unwrap() {
                let name = format!("{repository} {id} {path}");
                let found = read(&fs, path, "data.raw");
                match (&array["sha256"], &array["error"], found) {
                    (Value::String(expected), _, Ok(mut bytes)) => {
                        // flat bytes have the order of the document
                        if path.ends_with("/big-endian") {
                            bytes.chunks_mut(4).for_each(|item| item.reverse());
                        }
                        counts[0] += 1;
                        if hex(&bytes) != *expected {
                            faults.push(format!(
                                "{name}: {} {} bytes",
                                array["dtype"],
                                bytes.len()
                            ));
                        }
                    }
                    (Value::Null, Value::String(_), Err(e)) => {
                        counts[1] += 1;
                        let expected = if path.ends_with("outside")
                            || path.ends_with("no-container")
                            || path.ends_with("dots")
                        {
                            libc::EACCES
                        } else {
                            libc::EIO
                        };
                        if e.errno() != expected {
                            faults.push(format!("{name}: {e}"));
                        }
                    }
                    (Value::Null, Value::Null, _) => counts[2] += 1,
                    (_, _, Ok(_)) => {
                        faults.push(format!("{name}: read, which the package refuses"))
                    }
                    (_, _, Err(e)) => faults.push(format!("{name}: {e}")),
                }
            }
        }
    }
    let [equal, refused, strings] = counts;
    announce(&format!(
        "{equal} arrays read as the packages do, {refused} refused as by them, {strings} of strings"
    ));
    assert!(
        faults.is_empty(),
        "{} faults: {}",
        faults.len(),
        faults.join("\n")
    );
    assert!(equal >= 250 && refused >= 30);
}

/// Returns the part of `digests.json` about a repository.
fn digests_of(repository: &str) -> Value {
    let digests = std::fs::read(folder().join("digests.json")).unwrap();
    zarrfs_base::json::parse(&digests).unwrap()[repository].take()
}

fn attribute(path: &Path, name: &str) -> Option<String> {
    let mut value = [0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut value).ok()?;
    Some(String::from_utf8(value[..len].to_vec()).unwrap())
}

#[test]
fn commands_read_the_snapshot_that_is_named() {
    for repository in ["v1-history", "v2-history"] {
        let digests = digests_of(repository);
        let path = folder().join(repository);
        let shown = text(&path);
        let output = zarrfs(&["info", shown]);
        let info = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{:?}", output.stderr);
        for (kind, names) in [("branch", "branches"), ("tag", "tags")] {
            for (name, id) in digests[names].as_object().unwrap() {
                let line = format!("{kind} {name}: {}\n", id.as_str().unwrap());
                assert!(info.contains(&line), "{line} in {info}");
            }
        }
        assert!(info.contains("  Rewrite the manifests\n"), "{info}");
        assert!(!info.contains("doomed"), "{info}");
        let v1 = digests["tags"]["v1"].as_str().unwrap();
        let temperature = format!("{shown}/temperature");
        let of_tag = zarrfs(&["cat", "--ref", "tag:v1", &temperature]).stdout;
        let expected = digests["snapshots"][v1]["arrays"]["/temperature"]["sha256"].as_str();
        assert_eq!(Some(hex(&of_tag).as_str()), expected);
        let time = digests["snapshots"][v1]["time"].as_str().unwrap();
        for same in [format!("snapshot:{v1}"), format!("asof:{time}")] {
            assert_eq!(
                zarrfs(&["cat", "--ref", &same, &temperature]).stdout,
                of_tag,
                "{same}"
            );
        }
        let ls = zarrfs(&["ls", "--ref", "branch:dev", shown]).stdout;
        assert!(String::from_utf8(ls).unwrap().contains("dev-only/"));
        assert!(
            zarrfs(&["check", "--ref", "tag:v1", shown])
                .status
                .success()
        );
        let (code, message) = failure(&zarrfs(&["ls", "--ref", "tag:doomed", shown]));
        assert!(
            code == 3 && message.contains("no tag doomed"),
            "{code} {message}"
        );
        let wrong = zarrfs(&["ls", "--ref", "main", shown]);
        assert_eq!(wrong.status.code(), Some(2));
    }
    let plain = test_data("sample.zarr");
    let (code, message) = failure(&zarrfs(&["ls", "--ref", "branch:main", text(&plain)]));
    assert!(code == 2 && message.contains("--ref"), "{code} {message}");
}

#[test]
fn a_mount_shows_all_versions_and_follows_a_branch() {
    let spare = tempfile::tempdir().unwrap();
    let repository = spare.path().join("repo");
    copy_tree(&folder().join("v1-history"), &repository);
    let digests = digests_of("v1-history");
    let id = |kind: &str, name: &str| digests[kind][name].as_str().unwrap().to_string();
    let digest = |id: &str, path: &str| {
        let array = &digests["snapshots"][id]["arrays"][path];
        array["sha256"].as_str().unwrap().to_string()
    };
    let all = Mount::new(&repository, &["--history"]);
    for (prefix, id) in [
        ("branch/main", id("branches", "main")),
        ("branch/dev", id("branches", "dev")),
        ("tag/v2.0 final", id("tags", "v2.0 final")),
    ] {
        for prefix in [prefix, &format!("snapshot/{id}")] {
            let data = std::fs::read(all.join(prefix).join("temperature/data.raw")).unwrap();
            assert_eq!(hex(&data), digest(&id, "/temperature"), "{prefix}");
        }
        let root = all.join(prefix);
        assert_eq!(attribute(&root, "user.icechunk.snapshot"), Some(id));
    }
    let snapshots = names(&all.join("snapshot"));
    for id in digests["snapshots"].as_object().unwrap().keys() {
        assert!(snapshots.contains(id), "{id} in {snapshots:?}");
    }
    assert!(!names(&all.join("tag")).contains("doomed"));
    assert_eq!(errno(std::fs::read_dir(all.join("tag/doomed"))), "ENOENT");

    let mount = Mount::new(&repository, &[]);
    let fixed = Mount::new(
        &repository,
        &["--ref", &format!("snapshot:{}", id("branches", "main"))],
    );
    assert_eq!(
        attribute(mount.path(), "user.icechunk.branch").as_deref(),
        Some("main")
    );
    assert_eq!(attribute(fixed.path(), "user.icechunk.branch"), None);
    let file = mount.join("temperature/data.raw");
    assert_eq!(
        hex(&std::fs::read(&file).unwrap()),
        digest(&id("branches", "main"), "/temperature")
    );
    let v1 = id("tags", "v1");
    std::fs::write(
        repository.join("refs/branch.main/ref.json"),
        format!(r#"{{"snapshot":"{v1}"}}"#),
    )
    .unwrap();
    assert_eq!(
        hex(&std::fs::read(&file).unwrap()),
        digest(&v1, "/temperature")
    );
    assert_eq!(
        attribute(mount.path(), "user.icechunk.snapshot"),
        Some(v1.clone())
    );
    let before = std::fs::read(fixed.join("temperature/data.raw")).unwrap();
    assert_eq!(
        hex(&before),
        digest(&id("branches", "main"), "/temperature")
    );
    assert_eq!(errno(std::fs::write(fixed.join("x"), "x")), "EROFS");
    for mount in [all, mount, fixed] {
        mount.assert_no_problem();
    }
}

/// A copy of a repository.
struct CopiedRepository {
    folder: tempfile::TempDir,
    /// The digests of its arrays.
    digests: Value,
    /// The path of an array that several snapshots have.
    array: &'static str,
}

impl CopiedRepository {
    fn new(fixture: &str, array: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let copy = CopiedRepository {
            digests: digests_of(fixture),
            folder,
            array,
        };
        copy_tree(&test_data("icechunk").join(fixture), &copy.path());
        copy
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("r.icechunk")
    }

    /// Returns the digest of the array in the first snapshot of the main branch.
    fn digest(&self) -> String {
        let main = self.digests["branches"]["main"].as_str().unwrap();
        self.digest_in(main).unwrap()
    }

    fn digest_in(&self, id: &str) -> Option<String> {
        let arrays = &self.digests["snapshots"][id]["arrays"];
        let digest = arrays[&format!("/{}", self.array)]["sha256"].as_str();
        digest.map(str::to_string)
    }

    /// Moves the main branch to a snapshot in which the array has other values, and returns their
    /// digest.
    fn move_main(&self) -> String {
        let is_other =
            |digest: &Option<String>| digest.as_ref().is_some_and(|d| *d != self.digest());
        let reference = self.path().join("refs/branch.main/ref.json");
        if reference.exists() {
            let snapshots = self.digests["snapshots"].as_object().unwrap().keys();
            let ids = snapshots.filter(|id| self.path().join("snapshots").join(id).exists());
            let mut found = ids.map(|id| (id, self.digest_in(id)));
            let (id, digest) = found.find(|(_, digest)| is_other(digest)).unwrap();
            std::fs::write(reference, format!(r#"{{"snapshot":"{id}"}}"#)).unwrap();
            return digest.unwrap();
        }
        // the packages keep the earlier files of a repository
        for earlier in listed(&self.path().join("overwritten")) {
            let earlier = self.path().join("overwritten").join(earlier);
            std::fs::copy(earlier, self.path().join("repo")).unwrap();
            let info = zarrfs(&["info", "--json", text(&self.path())]).stdout;
            let info = zarrfs_base::json::parse(&info).unwrap();
            let latest = info[0]["icechunk"]["snapshots"][0]["id"].as_str().unwrap();
            let digest = self.digest_in(latest);
            if is_other(&digest) {
                return digest.unwrap();
            }
        }
        panic!("the main branch never had other values");
    }
}

fn read_all(mut file: std::fs::File) -> Vec<u8> {
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut all).unwrap();
    all
}

/// The files of a layout follow the branch: another snapshot has other days. netCDF4 reads what the
/// packages have written.
#[test]
fn the_files_of_a_layout_are_those_of_the_snapshot() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let repository = CopiedRepository::new("v2-xarray", "temperature");
    let rule = "days/t_{time:%Y-%m-%d}.nc = /temperature";
    let mount = Mount::new(&repository.path(), &["--layout", rule]);
    let days = mount.join("days");
    let read = || {
        let digest = run_python(&python, "layout.py", &[Path::new("digest"), &days]);
        digest.trim().to_string()
    };
    let names = |count: usize| {
        let names = (1..=count).map(|day| format!("t_2024-01-0{day}.nc"));
        names.collect::<BTreeSet<_>>()
    };
    assert_eq!(listed(&days), names(5));
    assert_eq!(read(), repository.digest());
    let earlier = repository.move_main();
    wait_for("the earlier snapshot", || listed(&days) == names(3));
    assert_eq!(read(), earlier);
    mount.assert_no_problem();
}

/// "An open file stays in its snapshot", and so does all that is below an open directory; a path
/// from the top leads to the latest snapshot.
#[test]
fn what_was_found_stays_in_its_snapshot() {
    for (fixture, inside, array, options, prefix) in [
        ("v1-history", "r.icechunk", "temperature", &[][..], ""),
        ("v1-history", "r.icechunk/group", "group/a", &[], ""),
        ("v2-xarray", "r.icechunk", "temperature", &[], ""),
        (
            "v2-xarray",
            "r.icechunk",
            "temperature",
            &["--history"],
            "branch/main",
        ),
        ("v2-xarray", "", "temperature", &["--stores"], "r.icechunk"),
    ] {
        let repository = CopiedRepository::new(fixture, array);
        let (_, array) = array.rsplit_once('/').unwrap_or(("", array));
        let mount = Mount::new(&repository.folder.path().join(inside), options);
        let top = mount.join(prefix);
        let path = top.join(array).join("data.raw");
        let before = repository.digest();
        let open = std::fs::File::open(&path).unwrap();
        let directory = std::fs::File::open(top.join(array)).unwrap();
        let number = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let (inode, top_inode) = (number(&path), number(&top));
        let now = repository.move_main();
        // several programs open it at a time
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let read = std::fs::read(&path).unwrap();
                    assert_eq!(hex(&read), now, "{fixture} {options:?}");
                });
            }
        });
        assert_eq!(hex(&read_all(open)), before, "{fixture} {options:?}");
        let below = format!("/proc/self/fd/{}", directory.as_raw_fd());
        for _ in 0..3 {
            let flags = OFlags::RDONLY;
            let again = rustix::fs::openat(&directory, "data.raw", flags, Mode::empty()).unwrap();
            assert_eq!(
                hex(&read_all(again.into())),
                before,
                "{fixture} {options:?}"
            );
            assert!(listed(Path::new(&below)).contains("data.raw"));
            assert_eq!(hex(&std::fs::read(&path).unwrap()), now);
        }
        assert_ne!(number(&path), inode);
        assert_eq!(number(&top), top_inode);
        mount.assert_no_problem();
    }
}

/// After an expiry, garbage collection removes the files of snapshots that nothing names any more.
#[test]
fn what_was_collected_is_an_error_and_no_fill_value() {
    for (fixture, array) in [("v1-expired", "changed"), ("v2-xarray", "temperature")] {
        let repository = CopiedRepository::new(fixture, array);
        let mount = Mount::new(&repository.path(), &[]);
        let path = mount.join(array).join("data.raw");
        let before = std::fs::File::open(&path).unwrap();
        let (earlier, now) = (repository.digest(), repository.move_main());
        // everything that the array in the present snapshot does not need
        for folder in ["snapshots", "manifests", "chunks"] {
            let folder = repository.path().join(folder);
            let spare = repository.path().join("spare");
            for name in std::fs::read_dir(&folder).into_iter().flatten() {
                let name = name.unwrap().path();
                std::fs::rename(&name, &spare).unwrap();
                let array = format!("{}/{array}", text(&repository.path()));
                if hex(&zarrfs(&["cat", &array]).stdout) != now {
                    std::fs::rename(&spare, &name).unwrap();
                }
            }
        }
        // the manifest, with the chunks in it, may be in memory
        let mut all = vec![0; before.metadata().unwrap().len() as usize];
        match before.read_exact_at(&mut all, 0) {
            Ok(()) => assert_eq!((hex(&all), fixture), (earlier, "v2-xarray")),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO), "{fixture}"),
        }
        assert_eq!(hex(&std::fs::read(&path).unwrap()), now, "{fixture}");
    }
}
