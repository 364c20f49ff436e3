//! Files that let other programs open an array's flat bytes: headers beside `data.raw`, and containers that hold the same
//! bytes behind a header of their own. What an array is comes from its metadata and from the conventions of xarray/CF,
//! OME-NGFF and GDAL (`describe`); each format has a file that turns this into its own text. It knows neither names of
//! the mount nor open files.

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
mod raster;
mod readme;
mod recipes;
mod spelling;
#[cfg(test)]
mod testing;
mod tiff;
mod vrt;
mod xdmf;

pub use composite::{Composite, FilePart, PartContent};
use describe::flat;
pub use describe::{axis_names, describe};
pub use described::{Coordinates, Crs, Described, DescribedAxis, MetadataNumber, Role};
pub use form::ItemForm;
pub use netcdf::{HeaderEdit, dataset};
pub use vrt::VrtContent;

/// The name of the file that shows a group as a netCDF file.
pub const DATASET: &str = "dataset.nc";

/// The most flat bytes that stand behind a header: no file is longer than 2^63 - 1 bytes.
const MAX_FLAT: u64 = i64::MAX as u64 - (1 << 40);

/// A file that describes or holds the flat bytes of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// NumPy's own: `numpy.load` reads, writes and maps it.
    Npy,
    /// ENVI's header, which GDAL reads, too.
    Envi,
    /// A raster of GDAL over `data.raw`.
    Vrt,
    /// A detached header of NRRD, for ITK, VTK, Slicer and teem.
    Nrrd,
    /// MetaImage, for ITK and VTK.
    MetaImage,
    /// XDMF, for VTK, ParaView and VisIt.
    Xdmf,
    /// A descriptor of GrADS, which CDO imports, too.
    Grads,
    /// For people: ready lines for programs that need a shape typed.
    Readme,
    /// NIfTI, for tools of neuroimaging.
    Nifti,
    /// TIFF.
    Tiff,
}

impl Format {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Format; 10] = [
        Format::Npy,
        Format::Envi,
        Format::Vrt,
        Format::Nrrd,
        Format::MetaImage,
        Format::Xdmf,
        Format::Grads,
        Format::Readme,
        Format::Nifti,
        Format::Tiff,
    ];

    /// The name of the file in an array's directory.
    pub fn name(self) -> &'static str {
        match self {
            Format::Npy => "data.npy",
            Format::Envi => "data.raw.hdr",
            Format::Vrt => "data.vrt",
            Format::Nrrd => "data.nhdr",
            Format::MetaImage => "data.mhd",
            Format::Xdmf => "data.xmf",
            Format::Grads => "data.ctl",
            Format::Readme => "README.txt",
            Format::Nifti => "data.nii",
            Format::Tiff => "data.tif",
        }
    }

    /// The word for it on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Format::Npy => "npy",
            Format::Envi => "envi",
            Format::Vrt => "vrt",
            Format::Nrrd => "nrrd",
            Format::MetaImage => "mhd",
            Format::Xdmf => "xdmf",
            Format::Grads => "ctl",
            Format::Readme => "readme",
            Format::Nifti => "nii",
            Format::Tiff => "tif",
        }
    }

    /// The format of this word.
    pub fn of_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.id() == id)
    }

    /// The format of the file of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// True for files that other programs are used to: they are shown only to who asks for them.
    pub fn is_container(self) -> bool {
        matches!(self, Format::Nifti | Format::Tiff)
    }

    /// True if the file holds the flat bytes, which can be written through it.
    pub fn holds_flat(self) -> bool {
        matches!(self, Format::Npy | Format::Nifti | Format::Tiff)
    }

    /// True if the format can describe such an array truly.
    pub fn fits(self, metadata: &ArrayMetadata) -> bool {
        let fits = match self {
            Format::Npy => npy::fits,
            Format::Envi => envi::fits,
            Format::Vrt => vrt::fits,
            Format::Nrrd => nrrd::fits,
            Format::MetaImage => meta_image::fits,
            Format::Xdmf => xdmf::fits,
            Format::Grads => grads::fits,
            Format::Readme => readme::fits,
            Format::Nifti => nifti::fits,
            Format::Tiff => tiff::fits,
        };
        let has_room = !self.holds_flat() || metadata.flat_size() <= MAX_FLAT;
        !metadata.has_objects() && has_room && fits(metadata)
    }

    /// Whether the format can say truly what this array is: [`Format::fits`], and what attributes and coordinates tell has
    /// a place in it.
    pub fn tells(self, array: &Described) -> bool {
        self.fits(&array.metadata) && (self != Format::Grads || grads::tells(array))
    }

    /// The file. [`crate::error::Kind::Unsupported`] unless [`Format::tells`].
    pub fn file(self, array: &Described) -> Result<Composite> {
        if self.fits(&array.metadata) && !self.tells(array) {
            let why = format!("{} can't say what the array is: its times, its packing or its coordinates", self.name());
            return Err(Error::unsupported(why).context(&array.key));
        }
        if !self.fits(&array.metadata) {
            let why = format!("{} can't describe an array of this shape and dtype", self.name());
            return Err(Error::unsupported(why).context(&array.key));
        }
        let bytes = match self {
            Format::Npy => npy::header(&array.metadata),
            Format::Nifti => nifti::header(array),
            Format::Tiff => tiff::header(array),
            Format::Envi => envi::text(array).into(),
            // made by `vrt::file`
            Format::Vrt => Vec::new(),
            Format::Nrrd => nrrd::text(array).into(),
            Format::MetaImage => meta_image::text(array).into(),
            Format::Xdmf => xdmf::text(array).into(),
            Format::Grads => grads::text(array).into(),
            Format::Readme => readme::text(array).into(),
        };
        let mut file = if self == Format::Vrt { vrt::file(array) } else { Composite::default() };
        file.push_bytes(bytes);
        if self.holds_flat() {
            file.push_flat(array.key.clone(), &array.metadata, ItemForm::AsStored);
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
    fn no_file_is_longer_than_a_file_can_be() {
        let vast = testing::metadata("\"|u1\"", &[i64::MAX as u64]);
        let shown: Vec<Format> = Format::ALL.into_iter().filter(|format| format.fits(&vast)).collect();
        assert_eq!(shown, [Format::Readme]);
        assert!(Format::Npy.fits(&testing::metadata("\"|u1\"", &[1 << 62])));
    }

    #[test]
    fn no_metadata_makes_a_header_large() {
        let arrays = testing::hostile();
        for format in Format::ALL {
            for array in arrays.iter().filter(|array| format.tells(array)) {
                let own = |part: &FilePart| if part.content.is_own() { part.len } else { 0 };
                let size: u64 = format.file(array).unwrap().parts().iter().map(own).sum();
                assert!(size < 1 << 20, "{format:?}: {size} bytes");
            }
        }
    }
}
