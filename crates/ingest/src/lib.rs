//! Files that other programs wrote, described as the group or the array that they become: NPY and
//! netCDF's classic formats. A description says what a document of Zarr says, and where the items
//! of each array lie in the file. It is the reverse of `zarrfs_export`, by the same table of types.
//! The content is untrusted. This crate must not know documents, stores or mounts.

mod classic;
mod npy;
mod place;

pub use place::FilePlace;

use classic::ClassicFile;
use npy::NpyFile;
use std::fs::File;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{Map, Value};

/// The formats, as options and messages name them.
pub const FORMATS: &str = "NPY and classic netCDF";

/// A format, by which the names of files end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Classic netCDF: a group.
    Netcdf,
    /// NPY: an array.
    Npy,
}

impl FileFormat {
    /// All formats.
    pub const ALL: [FileFormat; 2] = [FileFormat::Netcdf, FileFormat::Npy];

    /// Returns the word for the format, with which names of its files end.
    pub fn id(self) -> &'static str {
        match self {
            FileFormat::Netcdf => "nc",
            FileFormat::Npy => "npy",
        }
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
}

/// An array as its file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct IncomingArray {
    /// The name in the group; empty if the file is one array.
    pub name: String,
    /// The dtype, spelled as in a `.zarray`.
    pub dtype: Value,
    /// The shape in items.
    pub shape: Vec<u64>,
    /// The names of the dimensions, if the format has such names.
    pub dimensions: Option<Vec<String>>,
    /// The attributes, without that for missing values.
    pub attributes: Map<String, Value>,
    /// The item that stands for missing values, in the byte order of the dtype.
    pub missing: Option<Vec<u8>>,
    /// Where the items are.
    pub place: FilePlace,
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
        matches!(self.content, Content::Classic(_))
    }

    /// Returns the number of arrays.
    pub fn count(&self) -> usize {
        match &self.content {
            Content::Classic(file) => file.count(),
            Content::Npy(_) => 1,
        }
    }

    /// Returns the name of an array in the group; empty if the file is one array.
    pub fn name(&self, number: usize) -> &str {
        match &self.content {
            Content::Classic(file) => file.name(number),
            Content::Npy(_) => "",
        }
    }

    /// Returns the attributes of the group.
    pub fn attributes(&self) -> Map<String, Value> {
        match &self.content {
            Content::Classic(file) => file.attributes(),
            Content::Npy(_) => Map::new(),
        }
    }

    /// Returns the name of the unlimited dimension, if the group has one.
    pub fn record(&self) -> Option<&str> {
        match &self.content {
            Content::Classic(file) => file.record(),
            Content::Npy(_) => None,
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
        }
    }
}

/// Returns the error for a file that begins with bytes of no format that can be read.
fn unknown(start: &[u8]) -> Error {
    Error::invalid(match start {
        [] => "an empty file".to_string(),
        [0x89, b'H', b'D', b'F', ..] => "HDF5 or netCDF-4, which is not read yet; \
            `nccopy -k cdf5` converts netCDF-4 to classic netCDF"
            .to_string(),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => {
            "TIFF, which is not read yet".to_string()
        }
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
