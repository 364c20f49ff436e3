//! Files that other programs wrote, described as the group or the array that they become: NPY,
//! TIFF, netCDF's classic formats, HDF5 and netCDF-4. A description has the facts of a document of
//! Zarr, and reads boxes of items of each array. It is the reverse of `zarrfs_export`, by the same
//! tables of types. The content is untrusted. This crate must not know documents, stores or mounts.

mod classic;
mod hdf5;
mod npy;
mod place;
mod tiff;

pub use hdf5::Hdf5Values;
pub use place::FilePlace;
pub use tiff::TiffValues;

use classic::ClassicFile;
use hdf5::Hdf5Description;
use npy::NpyFile;
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tiff::TiffFile;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{Map, Value};

/// The formats, as options and messages name them.
pub const FORMATS: &str = "NPY, TIFF, classic netCDF, netCDF-4 and HDF5";

/// A format, by which the names of files end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Classic netCDF or netCDF-4: a group.
    Netcdf,
    /// NPY: an array.
    Npy,
    /// HDF5: a group.
    Hdf5,
    /// TIFF: an array.
    Tiff,
}

impl FileFormat {
    /// All formats.
    pub const ALL: [FileFormat; 4] = [
        FileFormat::Netcdf,
        FileFormat::Npy,
        FileFormat::Hdf5,
        FileFormat::Tiff,
    ];

    /// Returns the word for the format, the first one of [`FileFormat::endings`].
    pub fn id(self) -> &'static str {
        self.endings()[0]
    }

    /// Returns the words with which names of files of this format end.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            FileFormat::Netcdf => &["nc"],
            FileFormat::Npy => &["npy"],
            FileFormat::Hdf5 => &["h5", "hdf5"],
            FileFormat::Tiff => &["tif", "tiff"],
        }
    }

    /// Returns the format of files whose names end with a word.
    pub fn of_ending(ending: &str) -> Option<Self> {
        let mut all = FileFormat::ALL.into_iter();
        all.find(|format| format.endings().contains(&ending))
    }

    /// Returns whether a file of this format may have this content.
    pub fn may_hold(self, incoming: &Incoming) -> bool {
        let is_netcdf4 = self == FileFormat::Netcdf && incoming.format() == FileFormat::Hdf5;
        self == incoming.format() || is_netcdf4
    }
}

/// Number of bytes by which formats are told apart.
const MAGIC: usize = 8;

/// A file that becomes arrays. Each array is described when it is asked for, so that the memory is
/// a constant factor of the header.
pub struct Incoming {
    content: Content,
}

enum Content {
    Classic(ClassicFile),
    Npy(NpyFile),
    Hdf5(Hdf5Description),
    Tiff(TiffFile),
}

/// A group of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IncomingGroup {
    /// The names of the group and those above it, joined with slashes; empty for the file itself.
    pub path: String,
    /// The attributes.
    pub attributes: Map<String, Value>,
}

/// Where the items of an array come from.
#[derive(Clone, Debug)]
pub enum ItemSource {
    /// A regular place in the file.
    Place(FilePlace),
    /// A data set of HDF5.
    Hdf5(Arc<Hdf5Values>),
    /// The pixels of TIFF.
    Tiff(Arc<TiffValues>),
}

impl ItemSource {
    /// Reads the box of `counts` items from `start` on into `out`, a box of the lengths `lengths`
    /// in C order; the rest of `out` stays. Strings replace `out` by their `vlen-utf8` form, the
    /// rest of the box empty. `scratch` is a buffer of any content, which holds at most as many
    /// bytes as the box.
    ///
    /// # Errors
    ///
    /// The file cannot be read, ends before the box, or is damaged.
    pub fn read_box(
        &self,
        file: &File,
        start: &[u64],
        counts: &[u64],
        lengths: &[u64],
        out: &mut Vec<u8>,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        match self {
            ItemSource::Place(place) => place.read_box(file, start, counts, lengths, out, scratch),
            ItemSource::Hdf5(values) => values.read_box(start, counts, lengths, out),
            ItemSource::Tiff(values) => values.read_box(file, start, counts, lengths, out),
        }
    }

    #[cfg(test)]
    fn place(&self) -> &FilePlace {
        match self {
            ItemSource::Place(place) => place,
            _ => panic!("no place in the file"),
        }
    }

    /// Returns the memory in bytes that reading a box of `size` bytes takes beside the box.
    pub fn memory(&self, size: usize) -> usize {
        match self {
            ItemSource::Place(_) => size,
            ItemSource::Hdf5(values) => values.memory(size),
            ItemSource::Tiff(values) => values.memory(),
        }
    }
}

/// An array as its file describes it.
#[derive(Clone, Debug)]
pub struct IncomingArray {
    /// The name in the group, after the path of a group below it; empty if the file is one array.
    pub name: String,
    /// The dtype, spelled as in a `.zarray`.
    pub dtype: Value,
    /// The shape in items.
    pub shape: Vec<u64>,
    /// The names of the dimensions, if the format has such names.
    pub dimensions: Option<Vec<String>>,
    /// The attributes, without that for missing values.
    pub attributes: Map<String, Value>,
    /// The item that stands for missing values, in the byte order of the dtype; a string as UTF-8.
    pub missing: Option<Vec<u8>>,
    /// The shape of the chunks in the file, if it has chunks that suit a store.
    pub chunks: Option<Vec<u64>>,
    /// Where the items come from.
    pub items: ItemSource,
}

impl Incoming {
    /// Reads the header of a file and checks that all items are in the file.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) for any file that cannot become arrays,
    /// with the reason; ENOMEM if the header is too large for the memory.
    pub fn open(file: &File) -> Result<Self> {
        let len = file.metadata()?.len();
        let start = read_start(file, MAGIC)?;
        let content = match start.as_slice() {
            [b'C', b'D', b'F', ..] => Content::Classic(ClassicFile::open(file, len)?),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Content::Npy(NpyFile::open(file, len)?),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => {
                Content::Tiff(TiffFile::open(file, len)?)
            }
            _ if hdf5::is_hdf5(file, len)? => Content::Hdf5(Hdf5Description::read(file, len)?),
            other => return Err(unknown(other)),
        };
        Ok(Incoming { content })
    }

    /// Returns whether a file is what a program may close before it writes the items: nothing, or
    /// the header that `numpy.lib.format.open_memmap` writes.
    pub fn is_begun(file: &File) -> bool {
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        len == 0 || npy::is_header(file, len) && Incoming::open(file).is_err()
    }

    /// Returns whether the file becomes a group of arrays; otherwise it becomes one array.
    pub fn is_group(&self) -> bool {
        !matches!(self.content, Content::Npy(_) | Content::Tiff(_))
    }

    /// Returns the format of the content: netCDF-4 is HDF5.
    pub fn format(&self) -> FileFormat {
        match self.content {
            Content::Classic(_) => FileFormat::Netcdf,
            Content::Npy(_) => FileFormat::Npy,
            Content::Hdf5(_) => FileFormat::Hdf5,
            Content::Tiff(_) => FileFormat::Tiff,
        }
    }

    /// Returns the number of arrays.
    pub fn count(&self) -> usize {
        match &self.content {
            Content::Classic(file) => file.count(),
            Content::Npy(_) | Content::Tiff(_) => 1,
            Content::Hdf5(file) => file.count(),
        }
    }

    /// Returns the name of an array, as in [`IncomingArray::name`].
    pub fn name(&self, number: usize) -> &str {
        match &self.content {
            Content::Classic(file) => file.name(number),
            Content::Npy(_) | Content::Tiff(_) => "",
            Content::Hdf5(file) => file.name(number),
        }
    }

    /// Returns the groups, each after the one that it is in; the first one is the file itself.
    pub fn groups(&self) -> Cow<'_, [IncomingGroup]> {
        match &self.content {
            Content::Classic(file) => Cow::Owned(vec![IncomingGroup {
                path: String::new(),
                attributes: file.attributes(),
            }]),
            Content::Npy(_) | Content::Tiff(_) => Cow::Borrowed(&[]),
            Content::Hdf5(file) => Cow::Borrowed(file.groups()),
        }
    }

    /// Returns the name of the unlimited dimension, if classic netCDF can hold the file with it.
    pub fn record(&self) -> Option<&str> {
        match &self.content {
            Content::Classic(file) => file.record(),
            Content::Npy(_) | Content::Tiff(_) => None,
            Content::Hdf5(file) => file.record(),
        }
    }

    /// Returns the array `number`, which is below [`Incoming::count`].
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if there is no such array.
    pub fn array(&self, number: usize) -> Result<IncomingArray> {
        match &self.content {
            Content::Classic(file) => file.array(number),
            Content::Npy(file) => Ok(file.array()),
            Content::Tiff(file) => Ok(file.array()),
            Content::Hdf5(file) => file.array(number),
        }
    }
}

/// Returns the error for a file that begins with bytes of no format that can be read.
fn unknown(start: &[u8]) -> Error {
    Error::invalid(match start {
        [] => "an empty file".to_string(),
        _ => format!("not a file of {FORMATS}"),
    })
}

/// Returns the first bytes of a file, fewer than `len` if it is shorter.
fn read_start(file: &File, len: usize) -> Result<Vec<u8>> {
    let mut start = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut start[done..], done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    start.truncate(done);
    Ok(start)
}

/// Returns the number of bytes of items; `None` if it is no offset of a file.
fn byte_count(shape: &[u64], item: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let bytes = shape.iter().try_fold(item, |n, len| n.checked_mul(*len))?;
    i64::try_from(bytes).ok().map(|_| bytes)
}

/// The smallest and the largest chunk of a file in bytes that suits a store, and the number of
/// chunks of any size that an array may have.
const MIN_CHUNK: u64 = 32 << 10;
const MAX_CHUNK: u64 = 32 << 20;
const FEW_CHUNKS: u64 = 64;

/// Returns the shape of the chunks in a file if it suits a store, no longer than the array.
fn suitable_chunks(chunks: &[u64], shape: &[u64], item: u64) -> Option<Vec<u64>> {
    let chunks = chunks.iter().zip(shape);
    let chunks: Vec<u64> = chunks
        .map(|(chunk, len)| *chunk.min(&(*len).max(1)))
        .collect();
    let counts = shape.iter().zip(&chunks);
    let counts: Vec<u64> = counts.map(|(len, chunk)| len.div_ceil(*chunk)).collect();
    let size = byte_count(&chunks, item)?;
    let is_suitable =
        size <= MAX_CHUNK && (size >= MIN_CHUNK || byte_count(&counts, 1)? <= FEW_CHUNKS);
    is_suitable.then_some(chunks)
}

/// The bytes of arrays for each byte of the file, beyond [`SMALL`], that a file may describe:
/// hardly any compressor makes more of one, and a damaged header claims any number.
const MAX_RATIO: u64 = 1100;
const SMALL: u64 = 4 << 30;

/// Checks that a file of `len` bytes may hold arrays of so many bytes, the last one of this shape.
/// Returns the number of bytes.
fn check_size(size: Option<u64>, shape: &[u64], len: u64) -> Result<u64> {
    let most = len.saturating_mul(MAX_RATIO).saturating_add(SMALL);
    size.filter(|size| *size <= most).ok_or_else(|| {
        let why = format!("its shape {shape:?} has more items than a file of {len} bytes holds");
        Error::invalid(why)
    })
}
