//! A FUSE mount of one file, `data.raw`, served from memory: no file system can be faster through
//! this library and this kernel. `scripts/bench` compares zarrfs with it.
//!
//! It is configured as `zarrfs::fuse` is. Each reply is a slice of one prepared buffer, which
//! repeats in the file. Written bytes are copied into the buffer, so they change all repetitions.
//!
//! `null_file MOUNTPOINT BYTES [--direct-io] [--keep-cache]` stays in the foreground, prints
//! `ready` when the mount answers, and unmounts on SIGTERM or SIGINT. With `--keep-cache` a second
//! read comes from the page cache.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionACL,
    WriteFlags,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::io::{Result, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

const NAME: &str = "data.raw";
const FILE: INodeNo = INodeNo(2);

/// Number of bytes after which the contents of the file repeat.
const PERIOD: usize = 16 << 20;

/// Maximum size of a request in bytes.
const MAX_REQUEST: usize = 1 << 20;

const ENTRY_TTL: Duration = Duration::from_secs(1);

struct NullFile {
    size: u64,
    open_flags: FopenFlags,
    /// One period and the start of the next one, so that the bytes of every request are one slice.
    pattern: RwLock<Vec<u8>>,
}

impl NullFile {
    fn new(size: u64, open_flags: FopenFlags) -> Self {
        let mut state = 1u64;
        let mut pattern = Vec::with_capacity(PERIOD + MAX_REQUEST);
        while pattern.len() < PERIOD {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            pattern.extend_from_slice(&state.to_ne_bytes());
        }
        pattern.extend_from_within(..MAX_REQUEST);
        NullFile {
            size,
            open_flags,
            pattern: RwLock::new(pattern),
        }
    }

    /// Returns the range of the pattern that holds the bytes of a request, up to the end of the
    /// file.
    fn place(&self, offset: u64, len: usize) -> Range<usize> {
        let len = self
            .size
            .saturating_sub(offset)
            .min(len as u64)
            .min(MAX_REQUEST as u64) as usize;
        let start = (offset % PERIOD as u64) as usize;
        start..start + len
    }

    fn attributes(&self, inode: INodeNo) -> (Duration, FileAttr) {
        let is_file = inode == FILE;
        let size = if is_file { self.size } else { 0 };
        let attributes = FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o644 } else { 0o555 },
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 1 << 20,
            flags: 0,
        };
        (if is_file { Duration::ZERO } else { ENTRY_TTL }, attributes)
    }
}

impl Filesystem for NullFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> Result<()> {
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_REQUEST as u32);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name != NAME {
            return reply.error(Errno::ENOENT);
        }
        let (ttl, attributes) = self.attributes(FILE);
        reply.entry_with_ttls(&ttl, &ENTRY_TTL, &attributes, Generation(0));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (ttl, attributes) = self.attributes(inode);
        reply.attr(&ttl, &attributes);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.open_flags | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let place = self.place(offset, size as usize);
        reply.data(&self.pattern.read().unwrap_or_else(PoisonError::into_inner)[place]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let place = self.place(offset, data.len());
        let len = place.len();
        if len == 0 && !data.is_empty() {
            return reply.error(Errno::EFBIG);
        }
        self.pattern.write().unwrap_or_else(PoisonError::into_inner)[place]
            .copy_from_slice(&data[..len]);
        reply.written(len as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if offset == 0 {
            let _ = reply.add(FILE, 1, FileType::RegularFile, NAME);
        }
        reply.ok();
    }
}

fn serve(mountpoint: PathBuf, size: u64, open_flags: FopenFlags) -> Result<()> {
    // before any thread starts, so that no signal ends the process without an unmount
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut config = Config::default();
    config.n_threads = Some(2);
    config.acl = SessionACL::Owner;
    config.mount_options = vec![
        MountOption::FSName("null_file".into()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
    ];
    let session = Session::new(NullFile::new(size, open_flags), &mountpoint, &config)?.spawn()?;
    std::fs::metadata(mountpoint.join(NAME))?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    signals.forever().next();
    session.umount_and_join()
}

fn main() -> ExitCode {
    let mut open_flags = FopenFlags::empty();
    let mut values = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--direct-io" => open_flags |= FopenFlags::FOPEN_DIRECT_IO,
            "--keep-cache" => open_flags |= FopenFlags::FOPEN_KEEP_CACHE,
            _ => values.push(argument),
        }
    }
    let (Some(mountpoint), Some(Ok(size)), 2) = (
        values.first(),
        values.get(1).map(|v| v.parse()),
        values.len(),
    ) else {
        eprintln!("usage: null_file MOUNTPOINT BYTES [--direct-io] [--keep-cache]");
        return ExitCode::from(2);
    };
    match serve(mountpoint.into(), size, open_flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("null_file: {mountpoint}: {e}");
            ExitCode::FAILURE
        }
    }
}
