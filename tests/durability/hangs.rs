//! A request that waits for a lock or for the store delays no request that needs neither. Tests
//! hold a lock or block calls to the store, and meanwhile use another array of the same mount,
//! whose bytes they know.
use crate::support::array::{TestArray, pattern};
use crate::support::daemon::Daemon;
use crate::support::stoppable::StoppableStore;
use crate::support::{ZARRFS, close, copy_tree, env_number, test_data, wait_for, zarrfs};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zarrfs::array::hierarchy::Hierarchy;
use zarrfs::cache::{Cache, SpillOptions};
use zarrfs::fs::tree::{Headers, Tree};
use zarrfs::fs::{Fs, Options};
use zarrfs::fuse::{MountRequest, Mountpoint, OutliveOptions, ServeOptions, serve};
use zarrfs_base::stats::Stats;
use zarrfs_export::Format;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::{DirectoryStore, Key};

/// Maximum time that the use of another array may take on a busy machine. Stopped calls stay
/// stopped for longer.
const PROBE: Duration = Duration::from_secs(100);

/// Number of concurrent requests, more than there are session threads and workers.
const MANY: usize = 40;

/// Creates a store of two arrays. Tests stop calls to the first and probe the second.
fn store(path: &Path) -> (TestArray, TestArray) {
    let more = || json!({"compressor": {"id": "zlib", "level": 1}});
    let array = |name: &str| TestArray::with_chunks(path.join(name), &[100_000], &[10_000], more());
    (array("stopped"), array("other"))
}

/// Uses an array as programs do: lists it, reads it, writes to it and creates a file beside it.
/// `round` makes the written bytes differ from the stored ones. `doing` names the current
/// operation.
fn use_array(directory: &Path, array: &mut TestArray, round: u64, doing: &Mutex<&'static str>) {
    let begin = |what| *doing.lock().unwrap() = what;
    begin("listing");
    assert!(
        fs::read_dir(directory)
            .unwrap()
            .any(|entry| entry.unwrap().file_name() == "data.raw")
    );
    begin("reading");
    assert_eq!(fs::read(directory.join("data.raw")).unwrap(), array.flat);
    begin("looking at a chunk");
    assert_eq!(fs::metadata(directory.join("3")).unwrap().len(), 10_000);
    begin("writing");
    let part = pattern(round + 2, 25_000);
    let file = File::options()
        .write(true)
        .open(directory.join("data.raw"))
        .unwrap();
    file.write_all_at(&part, 5_000).unwrap();
    begin("closing");
    close(file).unwrap();
    array.flat[5_000..30_000].copy_from_slice(&part);
    begin("making a file");
    let note = directory.join(format!("note-{round}"));
    fs::write(&note, "text").unwrap();
    assert_eq!(fs::read(&note).unwrap(), b"text");
    begin("removing a file");
    fs::remove_file(&note).unwrap();
    begin("writing attributes");
    fs::write(directory.join(".zattrs"), format!("{{\"round\": {round}}}")).unwrap();
}

/// Calls [`use_array`] in a thread. Returns the current operation as an error if it takes too long.
fn try_to_use(directory: PathBuf, array: TestArray, round: u64) -> Result<TestArray, &'static str> {
    let (done, wait) = channel();
    let doing = Arc::new(Mutex::new("nothing"));
    let told = doing.clone();
    std::thread::spawn(move || {
        let mut array = array;
        use_array(&directory, &mut array, round, &told);
        let _ = done.send(array);
    });
    wait.recv_timeout(PROBE).map_err(|_| *doing.lock().unwrap())
}

/// Calls [`use_array`]. Fails and kills the daemon if it takes too long.
fn probe(daemon: &mut Daemon, array: TestArray, round: u64, what: &str) -> TestArray {
    try_to_use(daemon.path().join("other"), array, round).unwrap_or_else(|doing| {
        daemon.kill();
        panic!("{what}: {doing} another array takes too long");
    })
}

/// Takes the lock file of a key as zarr-python does.
fn take_lock(locks: &Path, key: &str) -> File {
    let path = locks.join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

fn write_and_close(path: &Path, offset: u64, data: &[u8]) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(data, offset)?;
    close(file)
}

/// A mount served by the test process, of a store whose calls can be stopped.
struct Stopping {
    store: Arc<StoppableStore>,
    mountpoint: Mountpoint,
    session: Option<JoinHandle<zarrfs_base::error::Result<()>>>,
    directory: tempfile::TempDir,
}

impl Stopping {
    fn new(store: &Path, cache_size: usize) -> Stopping {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mnt");
        fs::create_dir(&path).unwrap();
        let stats = Arc::new(Stats::default());
        let below = DirectoryStore::open(store).unwrap().without_fsync();
        let store = Arc::new(StoppableStore::new(below));
        let cache = Arc::new(Cache::new(cache_size, stats.clone()));
        let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, stats.clone());
        let headers = Headers {
            formats: vec![Format::Npy],
            groups: vec![zarrfs_export::GroupFormat::Netcdf],
            ..Headers::default()
        };
        let tree = Tree::new(hierarchy, cache.clone()).with_headers(headers);
        let spill = SpillOptions {
            directory: std::env::temp_dir(),
            limit: 0,
        };
        let options = Options {
            read_only: false,
            resize: true,
            threads: 2,
            direct_io: false,
            spill,
        };
        let fs = Arc::new(Fs::new(tree, cache, stats, options).unwrap());
        let source = "stopping";
        let path = path.as_path();
        let (allow_other, read_only, sync, noexec, replace_stale) = Default::default();
        let request = MountRequest {
            source,
            path,
            directory: None,
            allow_other,
            read_only,
            sync,
            noexec,
            replace_stale,
            is_in_own_namespace: false,
        };
        let mut mountpoint = Mountpoint::mount(&request).unwrap();
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let options = ServeOptions {
            uid,
            gid,
            umask: 0,
            read_only: false,
            threads: 2,
        };
        let session = Some(
            serve(
                fs,
                &mut mountpoint,
                options,
                OutliveOptions::default(),
                |_| Ok(()),
            )
            .unwrap(),
        );
        Stopping {
            store,
            mountpoint,
            session,
            directory,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Calls [`use_array`]. Fails if it takes too long.
    fn probe(&self, array: TestArray, round: u64, what: &str) -> TestArray {
        let used = try_to_use(self.path().join("other"), array, round);
        used.unwrap_or_else(|doing| panic!("{what}: {doing} another array takes too long"))
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        self.store.resume();
        if std::thread::panicking() {
            // otherwise a thread of this process would wait forever for a reply of this process
            self.mountpoint.abort();
        }
        let unmounted = self.mountpoint.unmount();
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
        if unmounted.is_err() {
            self.directory.disable_cleanup(true);
        }
    }
}

type Step = (&'static str, fn(&Path) -> std::io::Result<()>);

/// Operations of programs on an array and its group, which can be repeated.
const STEPS: [Step; 16] = [
    ("list", |group| {
        fs::read_dir(group.join("a"))?.try_for_each(|entry| entry?.metadata().map(drop))
    }),
    ("read", |group| fs::read(group.join("a/data.raw")).map(drop)),
    ("read a chunk", |group| {
        fs::read(group.join("a/1")).map(drop)
    }),
    ("read a header", |group| {
        fs::read(group.join("a/data.npy")).map(drop)
    }),
    ("read a container", |group| {
        fs::read(group.join("dataset.nc")).map(drop)
    }),
    ("write", |group| {
        write_and_close(&group.join("a/data.raw"), 15_000, &[1; 30_000])
    }),
    ("write part of a chunk", |group| {
        write_and_close(&group.join("a/data.raw"), 100, &[2; 100])
    }),
    ("sync", |group| {
        let file = File::options().write(true).open(group.join("a/data.raw"))?;
        file.write_all_at(&[3; 10], 50_000)?;
        file.sync_all()
    }),
    ("write a chunk", |group| {
        fs::write(group.join("a/4"), [4; 10_000])
    }),
    ("remove a chunk", |group| fs::remove_file(group.join("a/5"))),
    ("write attributes", |group| {
        fs::write(group.join("a/.zattrs"), b"{}")
    }),
    ("make a file", |group| {
        fs::write(group.join("note"), b"text")
    }),
    ("rename onto a chunk", |group| {
        fs::write(group.join("a/chunk.tmp"), [6; 10_000])?;
        fs::rename(group.join("a/chunk.tmp"), group.join("a/6"))
    }),
    ("make a group", |group| {
        fs::create_dir(group.join("sub")).and_then(|()| fs::remove_dir(group.join("sub")))
    }),
    ("rename an array", |group| {
        fs::rename(group.join("a"), group.join("b"))?;
        fs::rename(group.join("b"), group.join("a"))
    }),
    ("change the size", |group| {
        let file = File::options().write(true).open(group.join("a/data.raw"))?;
        file.set_len(110_000)?;
        file.set_len(100_000)
    }),
];

/// Creates a store with the two arrays `stopped/a` and `other`.
fn grouped(path: &Path) -> TestArray {
    fs::create_dir_all(path.join("stopped")).unwrap();
    fs::write(path.join("stopped/.zgroup"), r#"{"zarr_format":2}"#).unwrap();
    let more = || json!({"compressor": {"id": "zlib", "level": 1}});
    TestArray::with_chunks(path.join("stopped/a"), &[100_000], &[10_000], more());
    TestArray::with_chunks(path.join("other"), &[100_000], &[10_000], more())
}

/// Stops every call to the store in turn, during each operation, and uses another array meanwhile.
#[test]
fn a_stopped_store_call_delays_no_other_array() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = grouped(directory.path());
    let mount = Stopping::new(directory.path(), 64 << 20);
    let stride = env_number("ZARRFS_STOP_STRIDE", 2);
    let prefix = Key::normalize("stopped").unwrap();
    let group = mount.path().join("stopped");
    let mut stops = 0;
    for (name, step) in STEPS {
        for after in (0..).step_by(stride as usize) {
            mount.store.stop(prefix.clone(), after);
            let group = group.clone();
            let stopped = std::thread::spawn(move || step(&group));
            wait_for(name, || mount.store.stopped() > 0 || stopped.is_finished());
            let has_stopped = mount.store.stopped() > 0;
            if has_stopped {
                stops += 1;
                other = mount.probe(
                    other,
                    stops,
                    &format!("{name}, call {after} to the store is stopped"),
                );
            }
            mount.store.resume();
            let _ = stopped.join().unwrap();
            if !has_stopped {
                break;
            }
        }
    }
    assert!(stops > 60, "{stops}");
    println!("{stops} calls to the store were stopped");
}

/// Dirty chunks that cannot be stored fill their share of the cache.
#[test]
fn dirty_chunks_that_cannot_be_stored_delay_no_other_array() {
    let directory = tempfile::tempdir().unwrap();
    let other = grouped(directory.path());
    let mount = Stopping::new(directory.path(), 64 << 10);
    let flat = mount.path().join("stopped/a/data.raw");
    let file = File::options().write(true).open(&flat).unwrap();
    // write parts of four chunks, 40,000 bytes in total, into a cache of 49,152 bytes
    (0..4).for_each(|chunk| file.write_all_at(&[7; 100], chunk * 10_000).unwrap());
    mount.store.stop(Key::normalize("stopped").unwrap(), 0);
    // another thread owns the file, so that a failing test does not close it before the mount is
    // resumed
    let (go, wait) = channel::<()>();
    let closed = std::thread::spawn(move || {
        let _ = wait.recv();
        close(file)
    });
    let other = mount.probe(other, 0, "an array that can't be stored fills the cache");
    drop(go);
    wait_for("the close to be stopped", || mount.store.stopped() > 0);
    mount.probe(other, 1, "an array that can't be stored fills the cache");
    assert!(!closed.is_finished());
    mount.store.resume();
    closed.join().unwrap().unwrap();
    let stored = fs::read(&flat).unwrap();
    assert!((0..4).all(|chunk| stored[chunk * 10_000..][..100] == [7; 100]));
}

/// Stops many concurrent calls of each operation, and uses another array meanwhile.
#[test]
fn many_stopped_requests_delay_no_other_array() {
    for cache_size in [64 << 20, 64 << 10] {
        let directory = tempfile::tempdir().unwrap();
        let mut other = grouped(directory.path());
        let mount = Stopping::new(directory.path(), cache_size);
        let group = mount.path().join("stopped");
        for (round, after) in [0, 1, 2, 5].into_iter().enumerate() {
            mount.store.stop(Key::normalize("stopped").unwrap(), after);
            let steps = (0..MANY).map(|i| STEPS[i % STEPS.len()].1);
            let stopped: Vec<_> = steps
                .map(|step| {
                    let group = group.clone();
                    std::thread::spawn(move || step(&group))
                })
                .collect();
            wait_for("calls to be stopped", || mount.store.stopped() > 0);
            for again in 0..2 {
                other = mount.probe(
                    other,
                    10 * round as u64 + again,
                    "many calls to the store are stopped",
                );
            }
            mount.store.resume();
            stopped
                .into_iter()
                .for_each(|step| drop(step.join().unwrap()));
        }
    }
}

/// Each close has its own timeout, even if several wait for the same lock.
#[test]
fn closes_that_wait_for_the_same_lock_time_out_together() {
    let directory = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let (mut stopped, _) = store(directory.path());
    let locks_option = [
        "--no-fsync",
        "--lock-timeout",
        "2s",
        "--synchronizer",
        locks.path().to_str().unwrap(),
    ];
    let daemon = Daemon::start(directory.path(), &locks_option);
    let held = take_lock(locks.path(), "stopped/0");
    let (done, wait) = channel();
    for i in 0..MANY {
        let path = daemon.path().join("stopped/data.raw");
        let done = done.clone();
        std::thread::spawn(move || {
            done.send(write_and_close(&path, i as u64 * 100, &[i as u8; 100]))
        });
    }
    let begun = Instant::now();
    for _ in 0..MANY {
        // one after the other they would take 80 s
        let left = Duration::from_secs(40).saturating_sub(begun.elapsed());
        let closed = wait.recv_timeout(left).expect("each close ends by itself");
        assert_eq!(closed.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    drop(held);
    File::options()
        .write(true)
        .open(daemon.path().join("stopped/data.raw"))
        .unwrap()
        .sync_all()
        .unwrap();
    (0..MANY).for_each(|i| stopped.flat[i * 100..][..100].fill(i as u8));
    assert_eq!(stopped.stored_flat().unwrap(), stopped.flat);
    assert!(daemon.unmount().success());
}

/// Starts a server that answers as S3 does, except that listings of groups never end and contain no
/// names. Returns its URL, and the number of pages of listings that it was asked for.
fn endless_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pages = Arc::new(AtomicUsize::new(0));
    let asked = pages.clone();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            // the error of a client that disconnects early does not matter
            let _ = BufReader::new(&stream).read_line(&mut request);
            let group = r#"{"zarr_format":2}"#.to_string();
            let (status, body) = match request.split(' ').nth(1).unwrap_or_default() {
                target if target.contains("max-keys") => (200, "<ListBucketResult/>".to_string()),
                target if target.contains("list-type") => {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let token = format!("<NextContinuationToken>{number}</NextContinuationToken>");
                    (
                        200,
                        format!(
                            "<ListBucketResult><IsTruncated>true</IsTruncated>{token}</ListBucketResult>"
                        ),
                    )
                }
                target if target.ends_with(".zgroup") => (200, group),
                _ => (404, String::new()),
            };
            let head = "Content-Type: text/plain\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close";
            let length = body.len();
            let body = if request.starts_with("HEAD") {
                ""
            } else {
                &body
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status} Said\r\n{head}\r\nETag: \"1\"\r\nContent-Length: {length}\r\n\r\n{body}"
            );
        }
    });
    (url, pages)
}

#[test]
fn an_endless_listing_ends_with_the_timeout() {
    let (url, _) = endless_server();
    let args = [
        "--endpoint-url",
        &url,
        "--region",
        "us-east-1",
        "--anon",
        "--timeout",
        "3s",
    ];
    let daemon = Daemon::start(Path::new("s3://bucket"), &args);
    let (done, wait) = channel();
    let path = daemon.path();
    std::thread::spawn(move || {
        done.send(fs::read_dir(path).and_then(|mut entries| entries.try_for_each(|e| e.map(drop))))
    });
    let listed = wait.recv_timeout(PROBE).expect("the listing ends");
    assert_eq!(listed.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(daemon.unmount().success());
}

/// The first signal ends a mount that was detached while a request waits, since no path leads to it
/// any more.
#[test]
fn a_detached_mount_ends_on_the_first_signal() {
    let (url, pages) = endless_server();
    let args = [
        "--endpoint-url",
        &url,
        "--region",
        "us-east-1",
        "--anon",
        "--timeout",
        "10m",
    ];
    let mut daemon = Daemon::start(Path::new("s3://bucket"), &args);
    let path = daemon.path();
    let begun = Instant::now();
    let before = pages.load(Ordering::SeqCst);
    let lister = std::thread::spawn(move || {
        fs::read_dir(path).and_then(|mut entries| entries.try_for_each(|e| e.map(drop)))
    });
    wait_for("the listing", || pages.load(Ordering::SeqCst) > before + 1);
    assert!(!lister.is_finished());
    assert!(
        zarrfs(&["umount", "--lazy", daemon.path().to_str().unwrap()])
            .status
            .success()
    );
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    daemon.wait();
    assert!(lister.join().unwrap().is_err());
    assert!(
        begun.elapsed() < Duration::from_secs(300),
        "it ended with the request"
    );
}

#[test]
fn closes_that_wait_for_a_lock_delay_no_other_array() {
    let directory = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let (mut stopped, other) = store(directory.path());
    let mut daemon = Daemon::start(
        directory.path(),
        &[
            "--no-fsync",
            "--lock-timeout",
            "10m",
            "--synchronizer",
            locks.path().to_str().unwrap(),
        ],
    );
    let held = take_lock(locks.path(), "stopped/0");
    let flat = daemon.path().join("stopped/data.raw");
    let begun = channel();
    let closers: Vec<JoinHandle<_>> = (0..MANY)
        .map(|i| {
            let path = flat.clone();
            let begun = begun.0.clone();
            std::thread::spawn(move || {
                begun.send(()).unwrap();
                write_and_close(&path, i as u64 * 100, &[i as u8; 100])
            })
        })
        .collect();
    begun.1.iter().take(MANY).for_each(drop);
    let other = probe(&mut daemon, other, 0, "closes wait for a lock");
    // give the closes time to reach the lock
    probe(&mut daemon, other, 1, "closes wait for a lock");
    assert!(closers.iter().all(|closer| !closer.is_finished()));
    drop(held);
    closers
        .into_iter()
        .for_each(|closer| closer.join().unwrap().unwrap());
    (0..MANY).for_each(|i| stopped.flat[i * 100..][..100].fill(i as u8));
    wait_for("what was closed to be stored", || {
        stopped.stored_flat().unwrap() == stopped.flat
    });
    assert!(daemon.unmount().success());
}

#[test]
fn a_close_that_times_out_at_a_lock_keeps_the_written_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let (mut stopped, _) = store(directory.path());
    let locks_option = [
        "--no-fsync",
        "--lock-timeout",
        "300ms",
        "--synchronizer",
        locks.path().to_str().unwrap(),
    ];
    let daemon = Daemon::start(directory.path(), &locks_option);
    let flat = daemon.path().join("stopped/data.raw");
    let _held = take_lock(locks.path(), "stopped/0");
    let closed = write_and_close(&flat, 10, &[7; 10]).unwrap_err();
    assert_eq!(closed.raw_os_error(), Some(libc::EIO));
    let stats = fs::read_to_string(daemon.path().join(".zarrfs/stats")).unwrap();
    let holder = format!("process {} (", std::process::id());
    assert!(
        stats
            .lines()
            .any(|line| line.contains("stopped/0") && line.contains(&holder)),
        "{stats}"
    );
    // a shared lock, which needs only read access, blocks as well
    let reader = File::open(locks.path().join("stopped/0")).unwrap();
    // takes the place of the exclusive lock in one step: the daemon tries again at any time
    fcntl_lock(&reader, FlockOperation::LockShared).unwrap();
    let file = File::options().write(true).open(&flat).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    stopped.flat[10..20].fill(7);
    assert_eq!(
        fs::read(&flat).unwrap(),
        stopped.flat,
        "what could not be stored stays readable"
    );
    fcntl_lock(&reader, FlockOperation::Unlock).unwrap();
    file.sync_all().unwrap();
    assert_eq!(stopped.stored_flat().unwrap(), stopped.flat);
    drop(file);
    assert!(daemon.unmount().success());
}

/// A pipe that gets the log of daemons, and their standard error.
struct LogPipe {
    path: PathBuf,
    end: File,
}

impl LogPipe {
    fn new(directory: &Path) -> LogPipe {
        let path = directory.join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
        let mut options = File::options();
        options.read(true).write(true);
        let end = options.custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        LogPipe { path, end }
    }

    fn fill(&mut self) {
        while self.end.write(&[b'.'; 4096]).is_ok() {}
    }

    /// Returns the contents of the pipe.
    fn read(&mut self) -> String {
        let mut said = Vec::new();
        let ended = self.end.read_to_end(&mut said).unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::WouldBlock);
        String::from_utf8(said).unwrap()
    }

    /// Mounts a store by a daemon that writes to the pipe.
    fn daemon(&self, store: &Path, level: &str) -> Daemon {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$ZARRFS" "$@" 2> "$PIPE""#, "sh"])
            .env("ZARRFS", ZARRFS)
            .env("PIPE", &self.path);
        Daemon::with_command(command, store, &["--log-level", level])
    }
}

/// Ends a daemon by a signal.
fn end(mut daemon: Daemon) {
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

/// "A blocked log (a pipe without a reader, a stopped terminal, a hanging file system) blocks no
/// request." "The log shows the first 20 messages of a kind in each minute, and then the number of
/// the others".
#[test]
fn a_blocked_log_blocks_no_request() {
    const READS: usize = 100;
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("x.zarr");
    copy_tree(&test_data("sample.zarr"), &store);
    fs::write(store.join("air_temperature/0.0.0"), "damaged").unwrap();
    let mut pipe = LogPipe::new(directory.path());
    let read_in_vain = |daemon: &Daemon| {
        let file = File::open(daemon.path().join("air_temperature/data.raw")).unwrap();
        for _ in 0..READS {
            let error = file.read_at(&mut [0], 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
    };
    pipe.fill();
    let daemon = pipe.daemon(&store, "debug");
    read_in_vain(&daemon);
    end(daemon);
    assert!(pipe.read().chars().all(|c| c == '.'));
    // with a reader
    let daemon = pipe.daemon(&store, "warn");
    read_in_vain(&daemon);
    end(daemon);
    let said = pipe.read();
    let reads = said
        .lines()
        .filter(|line| line.starts_with("zarrfs: error: read "));
    assert_eq!(reads.count(), 20, "{said}");
    let problems = said
        .lines()
        .filter(|line| line.starts_with("zarrfs: error: /air_temperature"));
    assert_eq!(problems.count(), 1, "{said}");
    let count = said
        .lines()
        .find(|line| line.contains(" more messages like this in "));
    let count = count.expect(&said).split(' ').nth(2).unwrap();
    assert!(count.parse::<usize>().unwrap() >= READS - 20, "{said}");
}
