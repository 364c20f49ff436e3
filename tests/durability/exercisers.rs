//! fsx and fio write and read `data.raw` by system calls and maps, with many layouts and little
//! memory, and verify each byte that they read. Afterwards zarr-python reads the whole array from
//! the store, and no byte may differ.

use crate::support;
use crate::support::array::TestArray;
use crate::support::{
    Mount, announce, digest, env_number, env_path, is_installed, memory_directory, with_timeout,
    zarr_python_digests,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// Maximum number of operations in one run of fsx, which never unmaps: Linux allows a process
/// 65,530 maps.
const MOST_OPERATIONS: u64 = 100_000;

/// Maximum number of seconds that a run of fsx or fio takes.
const LIMIT: u32 = 600;

/// Configuration of fsx for a file of fixed size: no operation truncates or extends it.
const FSX: &str = "
blockmode = true
[opsize]
max = 8192
[weights]
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
fsync = 1
fdatasync = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
close_open = 0
truncate = 0
posix_fallocate = 0
";

/// An array and the options of its mount.
struct Layout {
    shape: &'static [usize],
    chunks: &'static [usize],
    more: Value,
    options: &'static [&'static str],
}

/// Returns arrays of various orders, item sizes, dimensions and codecs, with caches that hold a
/// part of the array or nothing. The arrays are small, so that operations overlap.
fn layouts() -> Vec<Layout> {
    let layout = |shape, chunks, options, more| Layout {
        shape,
        chunks,
        more,
        options,
    };
    let blosc = |cname: &str| json!({"id": "blosc", "cname": cname, "clevel": 1, "shuffle": 1, "blocksize": 0});
    let lz4 = blosc("lz4");
    let zstd = blosc("zstd");
    let zlib = json!({"id": "zlib", "level": 1});
    let delta = json!([{"id": "delta", "dtype": "<i8"}]);
    let thirds = |more: Value| {
        let mut all = json!({"dtype": "|S3", "fill_value": null});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let cube = &[31, 23, 29][..];
    let cubes = &[8, 8, 16][..];
    let four = &[5, 9, 13, 16][..];
    let fours = &[2, 4, 13, 8][..];
    vec![
        layout(
            cube,
            cubes,
            &["--cache-size", "24K"],
            json!({"dtype": "<f4", "compressor": lz4}),
        ),
        layout(
            cube,
            cubes,
            &["--cache-size", "24K", "--direct-io"],
            json!({"dtype": "<f4", "compressor": zlib, "order": "F", "dimension_separator": "/"}),
        ),
        layout(
            &[66_173],
            &[4096],
            &["--cache-size", "16K"],
            json!({"compressor": zstd}),
        ),
        layout(&[66_173], &[4099], &["--direct-io"], json!({})),
        layout(
            &[151, 139],
            &[32, 50],
            &["--cache-size", "16K"],
            thirds(json!({"compressor": lz4, "order": "F"})),
        ),
        layout(
            &[151, 139],
            &[151, 16],
            &["--cache-size", "0"],
            thirds(json!({"compressor": zlib})),
        ),
        layout(
            four,
            fours,
            &["--cache-size", "32K", "--direct-io"],
            json!({"dtype": "<i8", "filters": delta, "compressor": zlib, "order": "F"}),
        ),
        layout(
            four,
            &[3, 9, 6, 16],
            &[],
            json!({"dtype": "<i8", "filters": delta}),
        ),
        layout(
            &[91, 91],
            &[91, 91],
            &["--cache-size", "16K"],
            json!({"dtype": ">f8", "compressor": blosc("blosclz"), "dimension_separator": "/"}),
        ),
        layout(
            &[7, 17, 13, 41],
            &[7, 8, 8, 8],
            &["--direct-io"],
            json!({"dtype": "|i1", "order": "F", "compressor": zlib}),
        ),
    ]
}

/// Runs a program. Fails with the end of its output unless it succeeds.
pub fn run(command: &mut std::process::Command, what: &str) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr]
        .map(|s| String::from_utf8_lossy(&s).into_owned())
        .concat();
    let last: Vec<&str> = said.lines().rev().take(40).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    assert!(
        output.status.success(),
        "{what}: {}\n{}",
        output.status,
        last.join("\n")
    );
    said
}

/// Checks that zarr-python reads the same bytes from the unmounted store that `data.raw` showed.
fn assert_stored(mount: Mount, array: &Path, what: &str) {
    let (_, shown) = digest(&mount.join("data.raw")).unwrap();
    drop(mount);
    if let Some(python) = env_path("ZARRFS_TEST_PYTHON") {
        assert_eq!(
            zarr_python_digests(&python, &[array]),
            [shown],
            "{what}: the store is not what data.raw was"
        );
    }
    let left = support::unfinished_files(array);
    assert!(left.is_empty(), "{what}: {left:?}");
}

/// Runs a number of fsx operations on one layout.
fn exercise(fsx: &Path, layout: &Layout, seed: u64, operations: u64) {
    let folder = memory_directory();
    let config = folder.path().join("fsx.toml");
    fs::write(&config, FSX).unwrap();
    let made = TestArray::new(
        folder.path().join("a"),
        layout.shape,
        layout.chunks,
        layout.more.clone(),
    );
    let what = format!(
        "{:?} by {:?} {} {:?}",
        layout.shape, layout.chunks, layout.more, layout.options
    );
    let mount = Mount::new(&made.path, layout.options);
    let mut done = 0;
    for seed in seed.. {
        let count = MOST_OPERATIONS.min(operations - done);
        let mut command = with_timeout(LIMIT, fsx);
        command
            .arg("-q")
            .arg("-f")
            .arg(&config)
            .arg("-P")
            .arg(folder.path());
        command
            .args(["-S", &seed.to_string(), "-N", &count.to_string()])
            .arg(mount.join("data.raw"));
        let said = run(&mut command, &format!("fsx, seed {seed}, {what}"));
        assert!(said.contains("A-OK"), "{said}");
        done += count;
        if done == operations {
            break;
        }
    }
    assert_stored(mount, &made.path, &what);
    announce(&format!(
        "fsx, {operations} operations, seed {seed}: {what}"
    ));
}

/// Runs ZARRFS_FSX_OPERATIONS operations in total from ZARRFS_SEED on, two layouts at a time.
#[test]
fn fsx_finds_no_wrong_byte() {
    let Some(fsx) = env_path("ZARRFS_FSX") else {
        return;
    };
    let operations = env_number("ZARRFS_FSX_OPERATIONS", 20_000);
    let seed = env_number("ZARRFS_SEED", 1);
    let layouts = layouts();
    let each = operations.div_ceil(layouts.len() as u64);
    let left = Mutex::new(layouts.iter());
    let work = || {
        while let Some(layout) = { left.lock().unwrap().next() } {
            exercise(&fsx, layout, seed, each);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

/// Four concurrent jobs of fio. Each writes every fourth page, so that all write to every chunk,
/// and verifies its pages while the others continue.
const FIO_SHARED: &str = "
[global]
ioengine=psync
fallocate=none
overwrite=1
allow_file_create=0
verify=crc32c
verify_fatal=1
do_verify=1
randrepeat=1
bs=4k
rw=write:12k
size=1m
end_fsync=1
loops=2
[w0]
offset=0
[w1]
offset=4k
[w2]
offset=8k
[w3]
offset=12k
";

/// Four concurrent jobs of fio. Each writes at random offsets of its quarter of the file, 512 to
/// 65,536 bytes at a time. Neighboring jobs share chunks.
const FIO_RANDOM: &str = "
[global]
ioengine=psync
fallocate=none
overwrite=1
allow_file_create=0
verify=crc32c
verify_fatal=1
verify_backlog=64
do_verify=1
randrepeat=1
rw=randwrite
bsrange=512-65536
blockalign=512
size=1m
offset_increment=1m
numjobs=4
end_fsync=1
loops=2
[random]
";

/// Runs a job file of fio on an array of exactly the size that the jobs need.
fn verify(name: &str, job: &str, layout: &Layout) {
    if !is_installed("fio") {
        return;
    }
    let folder = memory_directory();
    let file = folder.path().join("job.fio");
    fs::write(&file, job).unwrap();
    let made = TestArray::new(
        folder.path().join("a"),
        layout.shape,
        layout.chunks,
        layout.more.clone(),
    );
    let what = format!(
        "fio, {name}: {:?} by {:?} {} {:?}",
        layout.shape, layout.chunks, layout.more, layout.options
    );
    let mount = Mount::new(&made.path, layout.options);
    let mut command = with_timeout(LIMIT, "fio");
    let seed = env_number("ZARRFS_SEED", 1);
    command
        .arg(format!("--filename={}", mount.join("data.raw").display()))
        .arg(format!("--randseed={seed}"));
    // fio leaves its verification states in its working directory
    command.arg(&file).current_dir(folder.path());
    run(&mut command, &what);
    assert_stored(mount, &made.path, &what);
    announce(&format!("{what}: verified, seed {seed}"));
}

#[test]
fn fio_jobs_that_share_chunks_find_no_wrong_byte() {
    let more = json!({"dtype": "<f4", "compressor": {"id": "zlib", "level": 1}});
    for options in [&["--cache-size", "256K"][..], &["--direct-io"]] {
        let layout = Layout {
            shape: &[256, 4096],
            chunks: &[64, 1024],
            more: more.clone(),
            options,
        };
        verify("shared", FIO_SHARED, &layout);
    }
}

#[test]
fn fio_jobs_with_random_requests_find_no_wrong_byte() {
    let blosc = json!({"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0});
    let more = json!({"dtype": "<f8", "compressor": blosc, "order": "F"});
    for options in [
        &["--cache-size", "256K"][..],
        &["--direct-io", "--cache-size", "1M"],
    ] {
        let layout = Layout {
            shape: &[64, 64, 128],
            chunks: &[10, 64, 20],
            more: more.clone(),
            options,
        };
        verify("random", FIO_RANDOM, &layout);
    }
}
