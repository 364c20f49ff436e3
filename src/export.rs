//! Files that let other programs open an array's flat bytes: headers beside `data.raw`, and
//! containers that hold the same bytes behind a header of their own. `describe` collects what
//! metadata says of an array by the conventions of xarray/CF, OME-NGFF and GDAL; each format has a
//! file that writes it in the format's own terms. This module knows neither the names in a mount
//! nor open files.

use crate::error::{Error, Result};
use crate::zarr::metadata::ArrayMetadata;

mod binary;
mod calendar;
mod composite;
mod describe;
mod described;
mod envi;
mod form;
mod grads;
mod meta_image;
mod netcdf;
mod nifti;
mod npy;
mod nrrd;
mod packing;
mod raster;
mod readme;
mod recipes;
mod records;
mod spelling;
#[cfg(test)]
mod testing;
mod text;
mod tiff;
mod units;
mod view;
mod vrt;
mod xdmf;

pub use composite::{Composite, FilePart, GrowingArrays, PartContent};
use describe::flat;
pub use describe::{axis_names, check_values, describe, describe_values};
pub use described::{
    Coordinates, Crs, Described, DescribedAxis, ImageChannel, ImageInfo, MetadataNumber, Role,
};
pub use form::{ItemForm, ShownNumber, StoredInteger};
pub use netcdf::{HeaderEdit, Moved, NetcdfOptions, NetcdfVersion, dataset};
pub use records::FileSlice;
pub use view::ArrayView;
pub use vrt::VrtContent;

/// The name of the file that shows a group as a netCDF file.
pub const DATASET: &str = "dataset.nc";

/// Maximum number of flat bytes behind a header: no file is longer than 2^63 - 1 bytes.
const MAX_FLAT: u64 = i64::MAX as u64 - (1 << 40);

/// A file that describes or holds the flat bytes of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// NumPy's format, which `numpy.load` reads and maps.
    Npy,
    /// ENVI's header, which GDAL also reads.
    Envi,
    /// GDAL's virtual raster over `data.raw`.
    Vrt,
    /// NRRD's detached header, for ITK, VTK, Slicer and teem.
    Nrrd,
    /// MetaImage, for ITK and VTK.
    MetaImage,
    /// XDMF, for VTK, ParaView and VisIt.
    Xdmf,
    /// The descriptor file of GrADS, which CDO also imports.
    Grads,
    /// Text for people, with lines to copy for programs that need the shape.
    Readme,
    /// The values as text.
    Text,
    /// NIfTI, for neuroimaging.
    Nifti,
    /// TIFF.
    Tiff,
}

/// The properties that distinguish a format.
struct FormatSpec {
    /// The name of the file in an array's directory.
    name: &'static str,
    /// The word for the format on the command line.
    id: &'static str,
    /// Whether the format has the array's dtype and shape.
    fits: fn(&ArrayMetadata) -> bool,
    /// The function that builds the file without the flat bytes.
    header: fn(&Described) -> Result<Composite>,
}

impl Format {
    /// All formats, in the order in which they are listed.
    pub const ALL: [Format; 11] = [
        Format::Npy,
        Format::Envi,
        Format::Vrt,
        Format::Nrrd,
        Format::MetaImage,
        Format::Xdmf,
        Format::Grads,
        Format::Readme,
        Format::Text,
        Format::Nifti,
        Format::Tiff,
    ];

    fn spec(self) -> FormatSpec {
        let spec = |name, id, fits, header| FormatSpec {
            name,
            id,
            fits,
            header,
        };
        match self {
            Format::Npy => spec("data.npy", "npy", npy::fits, |array| {
                Ok(npy::header(&array.metadata).into())
            }),
            Format::Envi => spec("data.raw.hdr", "envi", envi::fits, |array| {
                Ok(envi::text(array).into())
            }),
            Format::Vrt => spec("data.vrt", "vrt", vrt::fits, |array| Ok(vrt::file(array))),
            Format::Nrrd => spec("data.nhdr", "nrrd", nrrd::fits, |array| {
                Ok(nrrd::text(array).into())
            }),
            Format::MetaImage => spec("data.mhd", "mhd", meta_image::fits, |array| {
                Ok(meta_image::text(array).into())
            }),
            Format::Xdmf => spec("data.xmf", "xdmf", xdmf::fits, |array| {
                Ok(xdmf::text(array).into())
            }),
            Format::Grads => spec("data.ctl", "ctl", grads::fits, |array| {
                Ok(grads::text(array).into())
            }),
            Format::Readme => spec(
                "README.txt",
                "readme",
                |_| true,
                |array| Ok(readme::text(array).into()),
            ),
            Format::Text => spec("values.txt", "txt", text::fits, text::file),
            Format::Nifti => spec("data.nii", "nii", nifti::fits, |array| {
                Ok(nifti::header(array).into())
            }),
            Format::Tiff => spec("data.tif", "tif", tiff::fits, |array| {
                Ok(tiff::header(array).into())
            }),
        }
    }

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
        matches!(self, Format::Nifti | Format::Tiff)
    }

    /// Returns whether the file is made of the array's values, so that [`describe_values`]
    /// describes the array for it. A mount shows such a file only if the user asks for it: the
    /// values must be read whenever its size is asked for.
    pub fn reads_values(self) -> bool {
        self == Format::Text
    }

    /// Returns whether the file holds the flat bytes, which can be written through it.
    pub fn holds_flat(self) -> bool {
        matches!(self, Format::Npy | Format::Nifti | Format::Tiff)
    }

    /// Returns whether the format can describe an array of this shape and dtype. No header has the
    /// types that NumPy lacks.
    pub fn fits(self, metadata: &ArrayMetadata) -> bool {
        let has_type = self == Format::Readme || metadata.has_numpy_dtype();
        let has_offsets = !self.holds_flat() || metadata.flat_size() <= MAX_FLAT;
        !metadata.has_objects() && has_offsets && has_type && (self.spec().fits)(metadata)
    }

    /// Returns whether the format can describe this array truthfully: it has the shape and dtype
    /// ([`Format::fits`]), and can express the attributes and coordinates.
    pub fn can_describe(self, array: &Described) -> bool {
        self.fits(&array.metadata) && (self != Format::Grads || grads::can_describe(array))
    }

    /// Makes the file.
    ///
    /// # Errors
    ///
    /// [`crate::error::Kind::Unsupported`] unless [`Format::can_describe`], or if the format needs
    /// values and the description has none; no memory.
    pub fn file(self, array: &Described) -> Result<Composite> {
        self.file_with(array, |file| {
            file.push_flat(array.key.clone(), &array.metadata, ItemForm::AsStored)
        })
    }

    /// Makes the file; `push_values` appends the bytes that it holds.
    fn file_with(
        self,
        array: &Described,
        push_values: impl FnOnce(&mut Composite),
    ) -> Result<Composite> {
        if !self.can_describe(array) {
            let why = if self.fits(&array.metadata) {
                "can't say what the array is: its times, its packing or its coordinates"
            } else {
                "can't describe an array of this shape and dtype"
            };
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
            for array in arrays.iter().filter(|array| format.can_describe(array)) {
                let own = |part: &FilePart| if part.content.is_own() { part.len } else { 0 };
                let size: u64 = format.file(array).unwrap().parts().iter().map(own).sum();
                assert!(size < 1 << 20, "{format:?}: {size} bytes");
            }
        }
    }
}
