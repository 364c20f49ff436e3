//! The files of a repository that hold a flatbuffer: a header, then the flatbuffer, compressed
//! (specification 2.1, section "Binary File Format"). It is decompressed while it is read, into
//! memory or, if there is not enough, into a spill file.

use super::flat::{FlatBytes, SpilledFlat};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_base::spill_file::{SpillGrant, SpillSpace};
use zarrfs_store::{Key, Stat, Store, StoreExt};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// First bytes of a file.
pub(super) const MAGIC: &[u8] = "ICE🧊CHUNK".as_bytes();

/// Size of the header in bytes: magic, name of the writer, version, kind and compression.
const HEADER: usize = 39;

/// Place of the version in the header; kind and compression follow.
const VERSION: usize = 36;

/// The newest version of the format.
const NEWEST: u8 = 2;

/// Number of bytes that are read first. Nearly every file is smaller.
const FIRST: u64 = 1 << 20;

/// Number of bytes that are read at a time of a larger file.
const BLOCK: u64 = 8 << 20;

/// Maximum number of times that a changing file is read again.
const ATTEMPTS: usize = 5;

/// Number of bytes that are decompressed at a time.
const PIECE: usize = 128 << 10;

/// Size in bytes of the largest flatbuffer: its offsets have 32 bits.
const MAX_FLAT: u64 = 1 << 32;

/// Binary logarithm of the largest window of a zstd frame in bytes: the limit of the library.
const MAX_WINDOW: u32 = 27;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IceFileKind {
    Snapshot = 1,
    Manifest = 2,
    Repository = 6,
}

impl IceFileKind {
    /// Returns the kind that the header of a file states.
    pub fn of(file: &[u8]) -> Result<Self> {
        let kinds = [Self::Snapshot, Self::Manifest, Self::Repository];
        let stated = file.get(VERSION + 1).copied().unwrap_or_default();
        let found = kinds.into_iter().find(|kind| *kind as u8 == stated);
        found.ok_or_else(|| Error::damaged(format!("a file of kind {stated}")))
    }
}

/// Reads a file, whose bytes are written into a file in `spill` if there is not enough memory.
/// Returns `None` if the file does not exist.
pub(super) fn read(
    below: &dyn Store,
    key: &Key,
    kind: IceFileKind,
    spill: Option<&Arc<SpillSpace>>,
) -> Result<Option<(FlatBytes, Stat)>> {
    let mut has_reclaimed = false;
    for _ in 0..ATTEMPTS {
        match read_version(below, key, kind, spill) {
            Ok(FileRead::Done(bytes, stat)) => return Ok(Some((bytes, stat))),
            Ok(FileRead::Missing) => return Ok(None),
            Ok(FileRead::Changed) => below.forget(key),
            // files that were read before and are not in use may take the space
            Err(e) if e.kind() == Kind::System(libc::ENOSPC) && !has_reclaimed => {
                memory::reclaim();
                has_reclaimed = true;
            }
            Err(e) => return Err(e),
        }
    }
    Err(Error::io("changes faster than it can be read"))
}

/// The outcome of reading a file.
enum FileRead {
    Done(FlatBytes, Stat),
    Missing,
    /// The file was replaced meanwhile.
    Changed,
}

fn read_version(
    below: &dyn Store,
    key: &Key,
    kind: IceFileKind,
    spill: Option<&Arc<SpillSpace>>,
) -> Result<FileRead> {
    let mut block = Vec::new();
    let mut grant = memory::take(FIRST as usize)?;
    let Some(stat) = below.get_range(key, 0..FIRST, &mut block)? else {
        return Ok(FileRead::Missing);
    };
    let mut decoder = IceDecoder::new(&block, kind, spill)?;
    decoder.push(block.get(HEADER..).unwrap_or_default())?;
    let mut at = block.len() as u64;
    if at < stat.size {
        grant.grow((BLOCK - FIRST) as usize)?;
    }
    while at < stat.size {
        let found = below.get_range(key, at..(at + BLOCK).min(stat.size), &mut block)?;
        if block.is_empty() || found.is_none_or(|now| !now.version.may_equal(&stat.version)) {
            return Ok(FileRead::Changed);
        }
        decoder.push(&block)?;
        at += block.len() as u64;
    }
    Ok(FileRead::Done(decoder.finish()?, stat))
}

/// Decodes a file whose bytes are all there.
pub(super) fn decode(bytes: &[u8], kind: IceFileKind) -> Result<FlatBytes> {
    let mut decoder = IceDecoder::new(bytes, kind, None)?;
    decoder.push(bytes.get(HEADER..).unwrap_or_default())?;
    decoder.finish()
}

/// Decompresses a file.
struct IceDecoder<'a> {
    /// `None` if the file is not compressed.
    zstd: Option<DCtx<'static>>,
    /// Whether the compressed bytes end here.
    is_complete: bool,
    /// Memory of the decompressor.
    _window: Grant,
    piece: Vec<u8>,
    flat: FlatSink<'a>,
}

impl<'a> IceDecoder<'a> {
    /// Checks the header at the beginning of `bytes`.
    fn new(bytes: &[u8], kind: IceFileKind, spill: Option<&'a Arc<SpillSpace>>) -> Result<Self> {
        let Some([version, stated, compression]) =
            bytes.get(VERSION..).and_then(|fields| fields.first_chunk())
        else {
            return Err(Error::damaged("cut short"));
        };
        if !bytes.starts_with(MAGIC) {
            return Err(Error::damaged("not a file of Icechunk"));
        }
        if *version > NEWEST {
            let why = format!("written by a later version of Icechunk: its format is {version}");
            return Err(Error::unsupported(why));
        }
        if *version == 0 || *stated != kind as u8 {
            let why = format!("damaged: a file of kind {stated} and version {version}");
            return Err(Error::damaged(why));
        }
        let (zstd, window) = match compression {
            0 => (None, Grant::default()),
            1 => {
                let log = window_log(&bytes[HEADER..]);
                let window = memory::take((1 << log) + PIECE)?;
                let mut zstd = DCtx::try_create().ok_or_else(|| Error::system(libc::ENOMEM))?;
                zstd.set_parameter(DParameter::WindowLogMax(log))
                    .map_err(zstd_error)?;
                (Some(zstd), window)
            }
            other => return Err(Error::unsupported(format!("its compression {other}"))),
        };
        let mut flat = FlatSink {
            spill,
            bytes: Vec::new(),
            memory: Grant::default(),
            file: None,
        };
        if zstd.is_some()
            && let Ok(Some(size @ ..=MAX_FLAT)) =
                zstd_safe::get_frame_content_size(&bytes[HEADER..])
        {
            // without it, the bytes are moved while they grow
            let _ = flat.reserve(size as usize);
        }
        Ok(IceDecoder {
            is_complete: zstd.is_none(),
            zstd,
            _window: window,
            piece: vec![0; PIECE],
            flat,
        })
    }

    /// Adds the bytes that follow.
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(zstd) = &mut self.zstd else {
            return self.flat.push(bytes);
        };
        let mut input = InBuffer::around(bytes);
        loop {
            let mut output = OutBuffer::around(&mut self.piece[..]);
            let left = zstd
                .decompress_stream(&mut output, &mut input)
                .map_err(zstd_error)?;
            let len = output.pos();
            self.is_complete = left == 0;
            self.flat.push(&self.piece[..len])?;
            // behind a full piece, the decompressor may hold more of the frame
            if input.pos() == bytes.len() && (len < PIECE || left == 0) {
                return Ok(());
            }
        }
    }

    fn finish(self) -> Result<FlatBytes> {
        if self.is_complete {
            self.flat.finish()
        } else {
            Err(Error::damaged("cut short"))
        }
    }
}

fn zstd_error(code: zstd_safe::ErrorCode) -> Error {
    Error::damaged(format!("damaged: {}", zstd_safe::get_error_name(code)))
}

/// Returns the binary logarithm of the window that a zstd frame states (RFC 8878, 3.1.1.1), which
/// decompression needs as memory. Later frames may have no larger one.
fn window_log(frame: &[u8]) -> u32 {
    const SINGLE_SEGMENT: u8 = 0x20;
    let stated = match frame.get(4..6) {
        Some([descriptor, window]) if descriptor & SINGLE_SEGMENT == 0 => {
            // an exponent, and eighths of a power of two
            10 + u32::from(window >> 3) + u32::from(window & 7 != 0)
        }
        _ => {
            let size = zstd_safe::get_frame_content_size(frame).ok().flatten();
            size.map_or(MAX_WINDOW, |size| {
                size.checked_next_power_of_two()
                    .map_or(64, u64::trailing_zeros)
            })
        }
    };
    // smaller windows are not accepted as a limit
    stated.clamp(10, MAX_WINDOW)
}

/// Takes the decompressed bytes.
struct FlatSink<'a> {
    spill: Option<&'a Arc<SpillSpace>>,
    bytes: Vec<u8>,
    memory: Grant,
    file: Option<SpilledPart>,
}

/// The bytes in a spill file so far.
struct SpilledPart {
    file: File,
    len: u64,
    space: SpillGrant,
}

impl FlatSink<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let before = self
            .file
            .as_ref()
            .map_or(self.bytes.len() as u64, |part| part.len);
        let len = before + bytes.len() as u64;
        if len > MAX_FLAT {
            return Err(Error::damaged("has more bytes than its offsets can name"));
        }
        if self.file.is_none() {
            match self.reserve(bytes.len()) {
                Ok(()) => {
                    self.bytes.extend_from_slice(bytes);
                    return Ok(());
                }
                Err(e) => self.begin_file(e)?,
            }
        }
        if let Some(part) = &mut self.file {
            part.space.grow(bytes.len() as u64)?;
            part.file.write_all_at(bytes, before)?;
            part.len = len;
        }
        Ok(())
    }

    /// Reserves memory, once it is granted.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let capacity = self.bytes.capacity();
        let needed = self.bytes.len() + more;
        if needed > capacity {
            let grown = needed.max(capacity + capacity / 2);
            self.memory.grow(grown - capacity)?;
            self.bytes
                .try_reserve_exact(grown - self.bytes.len())
                .map_err(|_| Error::system(libc::ENOMEM))?;
        }
        Ok(())
    }

    /// Moves the bytes into a file, since there is no memory for more.
    fn begin_file(&mut self, e: Error) -> Result<()> {
        let Some(spill) = self.spill.filter(|spill| !spill.is_off()) else {
            return Err(e);
        };
        let space = spill.take(self.bytes.len() as u64)?;
        let file = spill.open()?;
        file.write_all_at(&self.bytes, 0)?;
        self.file = Some(SpilledPart {
            file,
            len: self.bytes.len() as u64,
            space,
        });
        self.bytes = Vec::new();
        self.memory = Grant::default();
        Ok(())
    }

    fn finish(mut self) -> Result<FlatBytes> {
        match self.file {
            Some(part) => {
                let spilled = SpilledFlat::new(part.file, part.len as usize, part.space)?;
                Ok(FlatBytes::Spilled(spilled))
            }
            None => {
                self.bytes.shrink_to_fit();
                self.memory.shrink_to(self.bytes.capacity());
                Ok(FlatBytes::Memory(self.bytes, self.memory))
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use zarrfs_base::spill_file::SpillOptions;
    use zstd_safe::CCtx;

    /// Returns a file of the second version.
    pub fn file(kind: IceFileKind, flat: &[u8]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend(b"test                    ");
        file.extend([2, kind as u8, 1]);
        let mut compressed = Vec::with_capacity(zstd_safe::compress_bound(flat.len()));
        CCtx::default().compress(&mut compressed, flat, 3).unwrap();
        file.extend(compressed);
        file
    }

    #[test]
    fn headers_and_frames_are_checked() {
        let good = file(IceFileKind::Snapshot, &[7; 300_000]);
        let decoded = decode(&good, IceFileKind::Snapshot).unwrap();
        assert!(matches!(&decoded, FlatBytes::Memory(bytes, _) if *bytes == [7; 300_000]));
        let why = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let Err(e) = decode(&bytes, IceFileKind::Snapshot) else {
                panic!("decoded")
            };
            e.message().to_string()
        };
        assert!(why(&|b| b[0] = b'X').contains("not a file of Icechunk"));
        assert!(why(&|b| b[36] = 3).contains("a later version"));
        assert!(why(&|b| b[36] = 0).contains("damaged"));
        assert!(why(&|b| b[37] = 2).contains("kind 2"));
        assert!(why(&|b| b[38] = 9).contains("compression 9"));
        assert!(why(&|b| b.truncate(50)).contains("cut short"));
        assert!(why(&|b| b.truncate(20)).contains("cut short"));
        assert!(why(&|b| b.clear()).contains("cut short"));
        assert!(why(&|b| b[39] ^= 1).contains("damaged"));
        let mut plain = good[..HEADER].to_vec();
        plain[38] = 0;
        plain.extend(b"flat");
        let decoded = decode(&plain, IceFileKind::Snapshot).unwrap();
        assert!(matches!(&decoded, FlatBytes::Memory(bytes, _) if bytes == b"flat"));
    }

    #[test]
    fn what_exceeds_memory_is_spilled() {
        let Some((_directory, space)) = space(20) else {
            return; // a tmpfs
        };
        let spilled = || {
            let mut sink = FlatSink {
                spill: Some(&space),
                bytes: Vec::new(),
                memory: Grant::default(),
                file: None,
            };
            sink.push(b"first ")?;
            sink.begin_file(Error::system(libc::ENOMEM))?;
            sink.push(b"second")?;
            sink.finish()
        };
        let flat = spilled().unwrap();
        let mut bytes = Vec::new();
        flat.read(0..flat.len(), &mut bytes).unwrap();
        assert!(matches!(flat, FlatBytes::Spilled(_)));
        assert_eq!(bytes, b"first second");
        // all files together are within the limit
        let e = spilled().err().unwrap();
        assert_eq!(e.errno(), libc::ENOSPC);
        assert!(e.message().contains("--spill-size"), "{e}");
        drop(flat);
        assert!(spilled().is_ok());
        let (_directory, off) = self::space(0).unwrap();
        let mut sink = FlatSink {
            spill: Some(&off),
            bytes: Vec::new(),
            memory: Grant::default(),
            file: None,
        };
        let e = sink.begin_file(Error::system(libc::ENOMEM)).unwrap_err();
        assert_eq!(e.errno(), libc::ENOMEM);
    }

    /// Returns space of so many bytes on disk; `None` if the directory is in memory.
    pub fn space(limit: u64) -> Option<(tempfile::TempDir, Arc<SpillSpace>)> {
        let directory = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let options = SpillOptions {
            directory: directory.path().into(),
            limit,
        };
        let space = SpillSpace::new(options);
        space.take(0).is_ok().then_some((directory, space))
    }
}
