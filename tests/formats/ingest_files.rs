//! Files that become arrays or groups: a script of `python/` writes them, and compares them with
//! what a store has and a mount shows. This module does not know their format.

use super::fuzz_corpus::{MEMORY, checks, peak_memory};
use crate::support::{
    self, Mount, env_number, env_path, failure, run_python, servers, tree, zarrfs,
};
use std::fs;
use std::path::{Path, PathBuf};

pub const GROUP_V2: &str = r#"{"zarr_format": 2}"#;
const GROUP_V3: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// A script that writes files of one format.
pub struct Script {
    pub name: &'static str,
    /// The variables with the Python that runs the script, and with those that read all stores,
    /// and stores of v2.
    pub pythons: [&'static str; 3],
    /// The minimum number of files.
    pub files: usize,
    /// Returns the name in a mount of a file that becomes a node, and `None` for any other file.
    pub target: fn(&str) -> Option<String>,
}

/// The files that a script has written.
pub struct Written<'a> {
    script: &'a Script,
    pub python: PathBuf,
    folder: tempfile::TempDir,
}

impl Script {
    /// Writes the files; `None` without the Python for that.
    pub fn write(&self) -> Option<Written<'_>> {
        let python = env_path(self.pythons[0])?;
        let written = Written {
            script: self,
            python,
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(written.files()).unwrap();
        written.run(&[Path::new("make"), &written.files()]);
        Some(written)
    }

    /// "A file is what it was": copies the files into a mount with `options`, and compares what it
    /// shows and what the store has. `shown` are more arguments for the comparison.
    pub fn assert_ingested(&self, is_v3: bool, options: &[&str], shown: &[&str]) {
        let Some(written) = self.write() else {
            return;
        };
        let (files, targets) = (written.files(), written.targets());
        let store = written.folder.path().join("store");
        let (document, text) = if is_v3 {
            ("zarr.json", GROUP_V3)
        } else {
            (".zgroup", GROUP_V2)
        };
        support::write_file(store.join(document), text);
        let mount = Mount::new(&store, options);
        for (name, target) in &targets {
            let copied = fs::copy(files.join(name), mount.join(target));
            copied.unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        mount.assert_no_problem();
        let mut words = vec![Path::new("shown"), &files, mount.path()];
        words.extend(shown.iter().map(Path::new));
        assert_eq!(written.run(&words).trim().parse(), Ok(targets.len()));
        drop(mount);
        let [_, all, of_v2] = self.pythons.map(env_path);
        for reader in [all, of_v2.filter(|_| !is_v3)].into_iter().flatten() {
            let compare = [Path::new("compare"), &files, &store];
            let said = run_python(&reader, self.name, &compare);
            assert_eq!(said.trim().parse(), Ok(targets.len()));
        }
        assert_eq!(support::unfinished_files(&store), [""; 0]);
    }

    /// A bucket gets what a directory gets: of each `step`-th file.
    pub fn assert_ingested_in_bucket(&self, step: usize) {
        let (Some(written), Some(server)) = (self.write(), servers::moto()) else {
            return;
        };
        let folder = written.folder.path();
        let local = folder.join("local/s.zarr");
        support::write_file(local.join("zarr.json"), GROUP_V3);
        server.upload(&folder.join("local"), "bucket");
        let options = ["--ingest", "--ingest-options=shards=auto"];
        let remote = server.store("bucket/s.zarr").mount(&options);
        let mount = Mount::new(&local, &options);
        for (name, target) in written.targets().iter().step_by(step) {
            for path in [remote.path(), mount.path()] {
                fs::copy(written.files().join(name), path.join(target)).unwrap();
            }
        }
        drop((remote, mount));
        let downloaded = folder.join("remote");
        server.download("bucket/s.zarr", &downloaded);
        assert_eq!(tree::files(&downloaded), tree::files(&local));
    }

    /// No byte of a file makes the reader panic, or take memory without bound. With `at_ends`, most
    /// bytes that are damaged lie near the begin or the end.
    pub fn assert_damage_is_harmless(&self, at_ends: bool) {
        let Some(python) = env_path(self.pythons[0]) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        run_python(&python, self.name, &[Path::new("sample"), folder.path()]);
        let seed = env_number("ZARRFS_TEST_SEED", std::process::id().into());
        println!("ZARRFS_TEST_SEED={seed}");
        let mut random = support::random(seed);
        for name in support::listed(folder.path()) {
            let bytes = fs::read(folder.path().join(&name)).unwrap();
            checks::ingest(&bytes);
            for _ in 0..env_number("ZARRFS_TEST_MUTATIONS", 1500) {
                let mut damaged = bytes.clone();
                for _ in 0..=random(4) {
                    let len = damaged.len();
                    let at = match random(3) {
                        1 if at_ends => random(len.min(600)),
                        2 if at_ends => len - 1 - random(len.min(600)),
                        _ => random(len),
                    };
                    damaged[at] = match random(3) {
                        0 => 0xff,
                        1 => damaged[at] ^ (1 << random(8)),
                        _ => random(256) as u8,
                    };
                }
                if random(20) == 0 {
                    damaged.truncate(random(bytes.len()));
                }
                let result = std::panic::catch_unwind(|| checks::ingest(&damaged));
                assert!(result.is_ok(), "{name}, ZARRFS_TEST_SEED={seed}");
            }
        }
        assert!(peak_memory() < MEMORY, "{} MiB", peak_memory() >> 20);
    }
}

impl Written<'_> {
    /// Runs the script, and returns what it prints.
    fn run(&self, words: &[&Path]) -> String {
        run_python(&self.python, self.script.name, words)
    }

    fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// Returns the folder with the files that are refused.
    pub fn refused(&self) -> PathBuf {
        self.files().join("refused")
    }

    /// Returns the names of the files that become nodes, and their names in a mount.
    fn targets(&self) -> Vec<(String, String)> {
        let names = support::listed(&self.files()).into_iter();
        let targets: Vec<_> = names
            .filter_map(|name| (self.script.target)(&name).map(|target| (name, target)))
            .collect();
        assert!(targets.len() >= self.script.files, "{targets:?}");
        targets
    }

    /// Puts each file that is refused, and compares why it is. Returns the store, which is missing.
    pub fn assert_refused(&self) -> PathBuf {
        let store = self.folder.path().join("s.zarr");
        let target = store.join("a");
        let mut count = 0;
        for name in support::listed(&self.refused()) {
            let Ok(reason) = fs::read_to_string(self.refused().join(format!("{name}.txt"))) else {
                continue;
            };
            let file = self.refused().join(&name);
            let output = zarrfs(&["put", target.to_str().unwrap(), file.to_str().unwrap()]);
            let (code, said) = failure(&output);
            assert_eq!((code, said.lines().count()), (1, 1), "{name}: {said}");
            assert!(said.contains(&reason), "{name}: {said}");
            assert!(!store.exists(), "{name}");
            count += 1;
        }
        assert!(count > 15, "{count} files");
        store
    }
}
