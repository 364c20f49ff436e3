//! Files that let other programs open an array's flat bytes: headers beside `data.raw`, and
//! containers that hold the same bytes behind a header of their own. `describe` collects what
//! metadata says of an array by the conventions of xarray/CF, OME-NGFF and GDAL; each format has a
//! file that writes it in the format's own terms. This module knows neither the names in a mount
//! nor open files.

use zarrfs_base::error::{Error, Result};
use zarrfs_base::key::Key;
use zarrfs_format::metadata::ArrayMetadata;

mod array_box;
mod binary;
mod calendar;
pub mod classic_format;
mod composite;
mod describe;
mod described;
mod edited;
mod envi;
mod form;
mod group;
mod hdf5;
pub mod hdf5_format;
mod layout;
mod meta_image;
mod netcdf;
mod nifti;
mod npy;
mod nrrd;
mod number;
mod packing;
mod preview;
mod raster;
mod reader;
mod readme;
mod recipes;
mod records;
mod spelling;
#[cfg(test)]
mod testing;
mod text;
mod tiff;
pub mod tiff_format;
mod units;
mod view;
mod vrt;
mod xdmf;

pub use array_box::ArrayBox;
pub use composite::{Composite, FilePart, GrowingArrays, PartContent};
use describe::flat;
pub use describe::{Plate, axis_names, check_values, describe, describe_values, fill_is_missing};
pub use described::{
    AnatomicalDirection, Coordinates, Crs, Described, DescribedAxis, ImageChannel, ImageInfo,
    MetadataNumber, Role,
};
pub use edited::{EditedArray, MAX_TEXT, MEMORY as EDIT_MEMORY, TextEdits, text_edits};
use edited::{ElementUse, HeaderSyntax};
pub use form::{ItemForm, StoredInteger};
pub use group::READER_BLOCK;
pub use hdf5::sets_flags_alone;
pub use layout::{LayoutPieces, LayoutRule, PieceClass};
pub use netcdf::{HeaderEdit, Moved, NetcdfOptions};
pub use reader::{ArrayNode, ChunkBytes, ChunkReader, HierarchyNode, HierarchyReader};
pub use records::FileSlice;
pub use view::ArrayView;
pub use vrt::has_place;

/// A format of files that show a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupFormat {
    /// The arrays of the group, in netCDF's classic format.
    Netcdf,
    /// Everything below the group, in HDF5; at the root of a store also an array.
    Hdf5,
}

impl GroupFormat {
    /// All formats, in the order in which files are listed.
    pub const ALL: [GroupFormat; 2] = [GroupFormat::Netcdf, GroupFormat::Hdf5];

    /// Returns the name of the file in a group's directory.
    pub fn name(self) -> &'static str {
        match self {
            GroupFormat::Netcdf => "dataset.nc",
            GroupFormat::Hdf5 => "dataset.h5",
        }
    }

    /// Returns the word for the format on the command line.
    pub fn id(self) -> &'static str {
        match self {
            GroupFormat::Netcdf => "nc",
            GroupFormat::Hdf5 => "h5",
        }
    }

    /// Returns the format with this word.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.id() == id)
    }

    /// Returns the format of the file with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns whether an array at the root of a store has the file, too.
    pub fn shows_array(self) -> bool {
        self == GroupFormat::Hdf5
    }

    /// Makes the file of the group at `key`.
    ///
    /// # Errors
    ///
    /// [`zarrfs_base::error::Kind::NotFound`] if there is no group, ENOMEM if it has too many
    /// arrays for the memory.
    pub fn file(
        self,
        hierarchy: &dyn HierarchyReader,
        key: &Key,
        netcdf: &NetcdfOptions,
    ) -> Result<Composite> {
        match self {
            GroupFormat::Netcdf => netcdf::dataset(hierarchy, key, netcdf),
            GroupFormat::Hdf5 => hdf5::file_of_group(hierarchy, key),
        }
    }
}

/// Maximum size of a file in bytes, without its header and all padding: no file is longer than
/// 2^63 - 1 bytes.
const MAX_FILE: u64 = i64::MAX as u64 - (1 << 40);

/// What is special about the content of a format's files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FormatContent {
    /// The file describes the array.
    Description,
    /// The file ends with the flat bytes, which can be written through it.
    FlatBytes,
    /// The file is made of the values.
    Values,
    /// The file is an image of some values, whose size does not depend on them.
    Image,
}

/// All that distinguishes a format. Each format's module has one, and everything else that the
/// program knows of the format follows from it.
struct FormatSpec {
    /// The name of the file in an array's directory.
    name: &'static str,
    /// The word for the format on the command line.
    id: &'static str,
    /// The programs that read the file, with a command to try, if `README.txt` names them.
    readers: Option<&'static str>,
    content: FormatContent,
    /// Whether the file is a container that a mount shows only if the user asks for it.
    is_container: bool,
    /// Whether the format has the types that NumPy lacks.
    has_all_types: bool,
    /// Whether the format has the array's dtype and shape.
    fits: fn(&ArrayMetadata) -> bool,
    /// How the text of a description is written.
    syntax: HeaderSyntax,
    /// What becomes of elements of the text that a program changes, by their paths; `*` stands for
    /// any name. The change of any other element is lost, and reported.
    elements: &'static [(&'static str, ElementUse)],
    /// Builds the file without the flat bytes.
    header: fn(&Described) -> Result<Composite>,
}

impl FormatSpec {
    /// The properties of most formats: a text about every array.
    const DEFAULT: FormatSpec = FormatSpec {
        name: "",
        id: "",
        readers: None,
        content: FormatContent::Description,
        is_container: false,
        has_all_types: false,
        fits: |_| true,
        syntax: HeaderSyntax::Plain,
        elements: &[],
        header: |_| Ok(Composite::default()),
    };
}

/// Defines [`Format`], with a variant for each module that has a [`FormatSpec`].
macro_rules! formats {
    ($($(#[$about:meta])* $format:ident => $module:ident,)*) => {
        /// A file that describes or holds the flat bytes of an array.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$about])* $format,)*
        }

        impl Format {
            /// All formats, in the order in which they are listed.
            pub const ALL: [Format; [$(stringify!($format)),*].len()] = [$(Format::$format),*];

            fn spec(self) -> &'static FormatSpec {
                match self {
                    $(Format::$format => &$module::FORMAT,)*
                }
            }
        }
    };
}

formats! {
    /// NumPy's format, which `numpy.load` reads and maps.
    Npy => npy,
    /// ENVI's header, which GDAL also reads.
    Envi => envi,
    /// GDAL's virtual raster over `data.raw`.
    Vrt => vrt,
    /// NRRD's detached header, for ITK, VTK, Slicer and teem.
    Nrrd => nrrd,
    /// MetaImage, for ITK and VTK.
    MetaImage => meta_image,
    /// XDMF, for VTK, ParaView and VisIt.
    Xdmf => xdmf,
    /// Text for people, with lines to copy for programs that need the shape.
    Readme => readme,
    /// The values as text.
    Text => text,
    /// NIfTI, for neuroimaging.
    Nifti => nifti,
    /// TIFF.
    Tiff => tiff,
    /// A small image of the values.
    Preview => preview,
}

impl Format {
    /// Returns the name of the file in an array's directory.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the word for the format on the command line.
    pub fn id(self) -> &'static str {
        self.spec().id
    }

    /// Returns the format with this word.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.id() == id)
    }

    /// Returns the format of the file with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns whether the file is a container that a mount shows only if the user asks for it.
    pub fn is_container(self) -> bool {
        self.spec().is_container
    }

    /// Returns whether the file is made of the array's values, so that [`describe_values`]
    /// describes the array for it. A mount shows such a file only if the user asks for it: the
    /// values must be read whenever its size is asked for.
    pub fn reads_values(self) -> bool {
        self.spec().content == FormatContent::Values
    }

    /// Returns whether the file is an image of values, which [`Format::image`] reads. Its size is
    /// known without them.
    pub fn is_image(self) -> bool {
        self.spec().content == FormatContent::Image
    }

    /// Returns whether the file holds the flat bytes, which can be written through it.
    pub fn holds_flat(self) -> bool {
        self.spec().content == FormatContent::FlatBytes
    }

    /// Returns whether the format can describe an array of this shape and dtype. Few headers have
    /// the types that NumPy lacks.
    pub fn fits(self, metadata: &ArrayMetadata) -> bool {
        let spec = self.spec();
        let has_type = spec.has_all_types || metadata.has_numpy_dtype();
        let has_offsets = !self.holds_flat() || metadata.flat_size() <= MAX_FILE;
        // strings of any length have values, and a description, but no flat bytes
        let has_strings = spec.has_all_types || spec.content == FormatContent::Values;
        let has_bytes = !metadata.has_objects()
            || has_strings && describe::StringEncoding::of(metadata).is_some();
        has_bytes && has_offsets && has_type && (spec.fits)(metadata)
    }

    /// Returns whether the format fits an array of this shape and dtype, or of the sign that
    /// attributes may state.
    pub fn may_fit(self, metadata: &ArrayMetadata) -> bool {
        self.fits(metadata) || describe::with_other_sign(metadata).is_some_and(|m| self.fits(&m))
    }

    /// Returns whether the format fits the array with one sign alone: the attributes decide.
    pub fn depends_on_sign(self, metadata: &ArrayMetadata) -> bool {
        let fits = self.fits(metadata);
        describe::with_other_sign(metadata).is_some_and(|other| self.fits(&other) != fits)
    }

    /// Makes the file.
    ///
    /// # Errors
    ///
    /// [`zarrfs_base::error::Kind::Unsupported`] unless [`Format::fits`], or if the format needs
    /// values and the description lacks them; ENOMEM.
    pub fn file(self, array: &Described) -> Result<Composite> {
        self.file_with(array, |file| {
            file.push_flat(array.key.clone(), &array.stored, ItemForm::AsStored)
        })
    }

    /// Makes an image of the array, of the size that [`Format::file`] states. It reads a bounded
    /// number of chunks, and no others than those of the array and of its image in lower
    /// resolutions.
    ///
    /// # Errors
    ///
    /// Those of [`Format::file`]; a chunk cannot be read; ESTALE if the array is another one now.
    pub fn image(self, hierarchy: &dyn HierarchyReader, array: &Described) -> Result<Composite> {
        let sized = self.file(array)?;
        let mut image = Composite::from(preview::draw(hierarchy, array)?);
        image.sources = sized.sources;
        Ok(image)
    }

    /// Makes the part of the file that precedes the flat bytes, if it holds them.
    ///
    /// # Errors
    ///
    /// Those of [`Format::file`].
    pub fn header(self, array: &Described) -> Result<Composite> {
        self.file_with(array, |_| ())
    }

    /// Makes the file; `push_values` appends the bytes that it holds.
    fn file_with(
        self,
        array: &Described,
        push_values: impl FnOnce(&mut Composite),
    ) -> Result<Composite> {
        if !self.fits(&array.metadata) {
            let why = "can't describe an array of this shape and dtype";
            return Err(Error::unsupported(format!("{} {why}", self.name())).context(&array.key));
        }
        let mut file = (self.spec().header)(array)?;
        if self.holds_flat() {
            push_values(&mut file);
        }
        file.sources = array.sources.clone();
        file.sources.push(array.key.clone());
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_stay_below_the_largest_file_size() {
        let vast = testing::metadata("\"|u1\"", &[i64::MAX as u64]);
        let shown: Vec<Format> = Format::ALL
            .into_iter()
            .filter(|format| format.fits(&vast))
            .collect();
        assert_eq!(shown, [Format::Readme]);
        assert!(Format::Npy.fits(&testing::metadata("\"|u1\"", &[1 << 62])));
    }

    #[test]
    fn hostile_metadata_makes_no_large_header() {
        let arrays = testing::hostile();
        for format in Format::ALL {
            for array in arrays.iter().filter(|array| format.fits(&array.metadata)) {
                let own = |part: &FilePart| if part.content.is_own() { part.len } else { 0 };
                let size: u64 = format.file(array).unwrap().parts().iter().map(own).sum();
                assert!(size < 1 << 20, "{format:?}: {size} bytes");
            }
        }
    }
}
