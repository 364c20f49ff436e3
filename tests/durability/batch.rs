//! "SIGKILL of all processes at once": the processes of a job, those of its mount among them, end at
//! one moment; what was synced is stored, no chunk is torn, and no program hangs at the mountpoint.
//! And the ranks of a parallel job: 16 processes that write disjoint ranges of one `data.raw` at
//! once lose no byte of each other.

use crate::support::array::{TestArray, pattern, zlib};
use crate::support::{
    Mount, ZARRFS, announce, env_path, errno, run_python, wait_for, with_timeout, zarrfs,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The variable by which processes of a job are found, where no cgroup can be made.
const MARK: &str = "ZARRFS_TEST_JOB";

/// A job: its processes are in a cgroup of their own, if this user may make one.
struct Job {
    cgroup: Option<PathBuf>,
    mark: String,
}

impl Job {
    fn new(name: &str) -> Job {
        let mark = format!("zarrfs-test-{}-{name}", std::process::id());
        let cgroup = make_cgroup(&mark);
        if cgroup.is_none() {
            announce("no cgroup of version 2 can be made here: SIGKILL is sent to each process");
        }
        Job { cgroup, mark }
    }

    /// Starts a command in the job.
    fn start(&self, script: &str, directory: &Path) -> Child {
        let enter = self.cgroup.as_ref().map_or(String::new(), |cgroup| {
            format!("echo $$ >'{}/cgroup.procs'\n", cgroup.display())
        });
        Command::new("bash")
            .args(["-euc", &(enter + script)])
            .current_dir(directory)
            .env(MARK, &self.mark)
            .env("ZARRFS", ZARRFS)
            .env("TMPDIR", directory)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Returns the numbers of the processes of the job that have not ended.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark);
        let all = fs::read_dir("/proc").unwrap();
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers
            .filter(|number: &i32| {
                // a zombie has no environment
                let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
                environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == mark.as_bytes())
            })
            .collect()
    }

    /// Kills all processes at once, as a batch system does, and waits for their end.
    fn kill(&self) {
        match &self.cgroup {
            Some(cgroup) => fs::write(cgroup.join("cgroup.kill"), "1").unwrap(),
            None => {
                // a stopped process starts no other one, and takes over no mount
                for signal in [libc::SIGSTOP, libc::SIGKILL] {
                    for process in self.processes() {
                        // SAFETY: kill(2) reads no memory of this process.
                        unsafe { libc::kill(process, signal) };
                    }
                }
            }
        }
        wait_for("the end of all processes of the job", || {
            self.processes().is_empty()
        });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
        if let Some(cgroup) = &self.cgroup {
            let _ = fs::remove_dir(cgroup);
        }
    }
}

/// Makes a cgroup that can be killed; `None` where this user may not.
fn make_cgroup(name: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let cgroup = Path::new(line.split(' ').nth(4)?).join(name);
    fs::create_dir(&cgroup).ok()?;
    if cgroup.join("cgroup.kill").exists() && cgroup.join("cgroup.procs").exists() {
        return Some(cgroup);
    }
    fs::remove_dir(&cgroup).unwrap();
    None
}

const SHAPE: [usize; 2] = [64, 4096];
const CHUNKS: [usize; 2] = [8, 512];

/// Bytes that are synced before the job is killed, and those that are only written. Neither ends
/// with a chunk.
const SYNCED: usize = 100_000;
const WRITTEN: usize = 150_000;

/// A store with an array, and the new bytes in a file beside it.
struct Work {
    folder: tempfile::TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Work {
    fn new() -> Work {
        let folder = tempfile::tempdir().unwrap();
        let made = TestArray::with_chunks(folder.path().join("store/a"), &SHAPE, &CHUNKS, zlib());
        fs::write(folder.path().join("store/.zgroup"), "{\"zarr_format\": 2}").unwrap();
        let new = pattern(2, made.flat.len());
        fs::write(folder.path().join("new"), &new).unwrap();
        Work {
            folder,
            old: made.flat,
            new,
        }
    }

    /// The commands of a job that writes, syncs, writes more, and waits with the file open.
    fn script(&self, data: &str) -> String {
        let more = WRITTEN - SYNCED;
        format!(
            "head -c {SYNCED} new | dd of={data} conv=notrunc,fsync bs=64K iflag=fullblock status=none
             exec 3<>{data}
             tail -c +{} new | head -c {more} | \
                 dd oflag=seek_bytes seek={SYNCED} bs=64K iflag=fullblock conv=notrunc status=none >&3
             : >ready
             sleep 600",
            SYNCED + 1
        )
    }

    /// Checks the store after the job: what was synced is there, each chunk is whole, and each byte
    /// is the old or the new one.
    #[track_caller]
    fn assert_stored(&self) {
        let store = self.folder.path().join("store");
        let report = zarrfs(&["check", "--deep", "--json", store.to_str().unwrap()]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!(report["errors"], 0, "{report}");
        let found = zarrfs(&["cat", store.join("a").to_str().unwrap()]).stdout;
        assert_eq!(found.len(), self.new.len());
        assert!(
            found[..SYNCED] == self.new[..SYNCED],
            "synced bytes are lost"
        );
        let is_either = (SYNCED..WRITTEN).all(|i| [self.old[i], self.new[i]].contains(&found[i]));
        assert!(is_either, "made-up bytes");
        assert!(
            found[WRITTEN..] == self.old[WRITTEN..],
            "other bytes changed"
        );
    }
}

#[test]
fn a_step_that_runs_zarrfs_is_killed_as_a_whole() {
    let work = Work::new();
    let folder = work.folder.path();
    let job = Job::new("run");
    let script = work.script("\"$ZARRFS_MOUNT\"/a/data.raw");
    fs::write(folder.join("step"), script).unwrap();
    let mut step = job.start("exec \"$ZARRFS\" run store -- bash -eu step", folder);
    wait_for("the writes", || folder.join("ready").exists());
    // zarrfs, the holder of the mount, its daemon and the command
    assert!(job.processes().len() >= 4, "{:?}", job.processes());
    job.kill();
    step.wait().unwrap();
    work.assert_stored();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
}

#[test]
fn a_mount_of_a_killed_job_is_an_error_and_no_hang() {
    let work = Work::new();
    let folder = work.folder.path();
    fs::create_dir(folder.join("mnt")).unwrap();
    let job = Job::new("mount");
    let script = format!(
        "\"$ZARRFS\" mount store mnt\n{}",
        work.script("mnt/a/data.raw")
    );
    let mut step = job.start(&script, folder);
    wait_for("the writes", || folder.join("ready").exists());
    job.kill();
    step.wait().unwrap();
    let mountpoint = folder.join("mnt");
    let looked = with_timeout(120, "stat").arg(&mountpoint).output().unwrap();
    let said = String::from_utf8_lossy(&looked.stderr);
    assert!(
        said.contains("not connected"),
        "{:?}: {said}",
        looked.status
    );
    let removed = zarrfs(&["umount", mountpoint.to_str().unwrap()]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(errno(fs::read_dir(mountpoint.join("a"))), "ENOENT");
    work.assert_stored();
}

/// Writes with 16 processes at once.
fn ranks_write(more: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let store = store.to_str().unwrap();
    run_python(&python, "ranks.py", &[&["create", store], more].concat());
    // a cache that cannot hold what is written
    let mount = Mount::new(Path::new(store), &["--cache-size", "1M"]);
    let data = mount.join("data.raw");
    run_python(&python, "ranks.py", &["write", data.to_str().unwrap()]);
    run_python(&python, "ranks.py", &["same", store]);
    mount.assert_no_problem();
    drop(mount);
    run_python(&python, "ranks.py", &["same", store]);
    let sound = zarrfs(&["check", "--deep", store]);
    assert!(sound.status.success(), "{sound:?}");
}

#[test]
fn ranks_write_disjoint_ranges_of_one_file() {
    ranks_write(&[]);
}

#[test]
fn ranks_write_disjoint_ranges_of_one_file_in_shards() {
    ranks_write(&["shards"]);
}
