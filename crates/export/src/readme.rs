//! `README.txt`: a description of the array, and complete lines of code for programs that cannot
//! find the shape. The lines read the whole array and a part from its middle.

use super::describe::StringEncoding;
use super::described::Described;
use super::recipes::{self, ExamplePart};
use super::spelling::{self, float, list};
use super::{Format, FormatSpec, hdf5};
use zarrfs_base::json::{self, Value};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "README.txt",
    id: "readme",
    has_all_types: true,
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Maximum number of coordinates that are strings and are listed.
const MAX_LABELS: usize = 20;

/// Maximum number of categories that are listed.
const MAX_CATEGORIES: usize = 100;

/// Writes the file.
fn text(array: &Described) -> String {
    let mut text = heading(array);
    if array.metadata.has_objects() {
        text.push_str(
            "\nIn other files (a mount shows those that its options --headers and --containers name):\n",
        );
        text.push_str("  values.txt    awk: a string a line, if they are few\n");
        text.extend(of_group(array));
        return text;
    }
    let Some(part) = ExamplePart::in_the_middle(&array.metadata) else {
        return text + "\nIt has no bytes.\n";
    };
    text.push_str(
        "\nFor programs that find the shape themselves (a mount shows those that its options --headers and --containers \
         name):\n",
    );
    for format in Format::ALL
        .into_iter()
        .filter(|format| format.fits(&array.metadata))
    {
        let readers = format.spec().readers;
        text.extend(readers.map(|readers| format!("  {:<13} {readers}\n", format.name())));
    }
    text.extend(of_group(array));
    text.push_str(&format!(
        "\nFor others, to be run in this directory: a is the array, part is {}. Julia, MATLAB, IDL and Fortran have the\n\
         dimensions the other way round.\n",
        part.name()
    ));
    for (program, lines) in recipes::of(&array.metadata, &part) {
        for (i, line) in lines.iter().enumerate() {
            text.push_str(&format!(
                "  {:<8} {line}\n",
                if i == 0 { program } else { "" }
            ));
        }
    }
    text
}

/// Returns the line for the HDF5 file of the array's group, with commands if its name is plain.
fn of_group(array: &Described) -> Option<String> {
    if array.is_view || !hdf5::fits(&array.metadata) {
        return None;
    }
    let (file, name) = match array.key.name() {
        "" => ("dataset.h5", hdf5::ROOT_NAME),
        name => ("../dataset.h5", name),
    };
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    let commands = if is_plain {
        format!(": h5dump -d /{name} {file}, MATLAB: h5read('{file}', '/{name}')")
    } else {
        String::new()
    };
    Some(format!("  {file:<13} HDF5, netCDF-4{commands}\n"))
}

/// Describes the array.
fn heading(array: &Described) -> String {
    let metadata = &array.metadata;
    let name = spelling::name(array);
    let mut text = match spelling::title(array) {
        title if title == name => name,
        title => format!("{name}: {title}"),
    };
    if let Some(units) = &array.units {
        text.push_str(&format!(" [{}]", spelling::line(units)));
    }
    let names = if array.axes.iter().any(|axis| axis.name.is_some()) {
        let names = (0..array.axes.len()).map(|axis| spelling::axis_name(array, axis));
        format!(" ({})", list(names, ", "))
    } else {
        String::new()
    };
    let shape = match metadata.shape.as_slice() {
        [] => "one item, without dimensions".to_string(),
        [len] => format!("{len}{names}"),
        shape => format!("{}{names}, the last one fastest", list(shape, " x ")),
    };
    let item = item(metadata);
    let flat = if metadata.has_objects() {
        "none: items of any length have no flat bytes".to_string()
    } else {
        format!("{} bytes: the items and nothing else", array.size())
    };
    text.push_str(&format!(
        "\n\n  shape         {shape}\n  item          {item}\n  data.raw      {flat}\n"
    ));
    if array.scale.is_some() || array.offset.is_some() {
        let scale = float(array.scale.unwrap_or(1.0));
        let offset = float(array.offset.unwrap_or(0.0));
        text.push_str(&format!("  value         item * {scale} + {offset}\n"));
    }
    text.extend(spelling::nodata(array).map(|nodata| format!("  missing       {nodata}\n")));
    for (number, axis) in array.axes.iter().enumerate() {
        if axis.labels.is_empty() {
            continue;
        }
        let name = spelling::axis_name(array, number);
        let shown = axis
            .labels
            .iter()
            .take(MAX_LABELS)
            .map(|label| spelling::line(label));
        let more = if axis.labels.len() > MAX_LABELS {
            ", ..."
        } else {
            ""
        };
        text.push_str(&format!(
            "  labels        {name}: {}{more}\n",
            list(shown, ", ")
        ));
    }
    for (i, category) in array.categories.iter().take(MAX_CATEGORIES).enumerate() {
        let field = if i == 0 { "categories" } else { "" };
        let name = spelling::line(&category.name);
        text.push_str(&format!("  {field:<13} {} {name}\n", category.value));
    }
    if let Some(more @ 1..) = array.categories.len().checked_sub(MAX_CATEGORIES) {
        text.push_str(&format!("                and {more} more\n"));
    }
    text
}

/// Describes the type of the items.
fn item(metadata: &ArrayMetadata) -> String {
    let dtype = &metadata.dtype;
    match StringEncoding::of(metadata) {
        Some(StringEncoding::VlenBytes) => return "bytes of any length".into(),
        Some(StringEncoding::VlenUtf8) => return "text of any length, in UTF-8".into(),
        Some(StringEncoding::Json) => {
            return "text of any length, or other objects, in JSON".into();
        }
        None => {}
    }
    if let Some(v3) = metadata.v3.as_ref().filter(|_| !metadata.has_numpy_dtype()) {
        return without_numpy(&v3.data_type, dtype);
    }
    let word = match dtype.kind() {
        DTypeKind::Bool => "bool, 0 or 1",
        DTypeKind::Int => "signed integer",
        DTypeKind::UInt => "unsigned integer",
        DTypeKind::Float => "float",
        DTypeKind::Complex => "complex: two floats",
        DTypeKind::TimeDelta => "count of time units, signed integer",
        DTypeKind::DateTime => "count of time units since 1970, signed integer",
        DTypeKind::Bytes => "bytes, padded with zeros",
        DTypeKind::Text => "UCS-4 text, padded with zeros",
        DTypeKind::Void => "bytes",
        DTypeKind::Object => "object",
        DTypeKind::Struct(_) => "fields, packed",
    };
    let order = match dtype.kind() {
        DTypeKind::Bytes | DTypeKind::Void | DTypeKind::Struct(_) => String::new(),
        _ => order(dtype),
    };
    let name = json::text(&metadata.dtype_json).and_then(|text| DType::canonical(text).ok());
    let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
    format!("{name}{word}, {} bytes{order}", dtype.size())
}

/// Describes items of a v3 data type that NumPy lacks.
fn without_numpy(data_type: &Value, dtype: &DType) -> String {
    let name = json::text(data_type)
        .or_else(|| json::text(data_type.get("name")?))
        .unwrap_or_default();
    format!(
        "{name}, which most programs see as bytes, {} bytes{}",
        dtype.size(),
        order(dtype)
    )
}

fn order(dtype: &DType) -> String {
    match dtype.size() {
        0 | 1 => String::new(),
        _ => format!(", {}-endian", spelling::byte_order(dtype)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use zarrfs_base::key::Key;

    #[test]
    fn a_whole_file_has_the_expected_text() {
        let expected = r#"data: Air <2 m> [K]

  shape         4 x 6 x 10 (time, lat, lon), the last one fastest
  item          <f4: float, 4 bytes, little-endian
  data.raw      960 bytes: the items and nothing else
  missing       -9999

For programs that find the shape themselves (a mount shows those that its options --headers and --containers name):
  data.npy      NumPy
  data.raw.hdr  ENVI, GDAL, Spectral Python: gdalinfo data.raw
  data.vrt      GDAL, QGIS, rasterio: gdalinfo data.vrt
  data.nhdr     ITK, VTK, ParaView, 3D Slicer, teem: unu minmax data.nhdr
  data.mhd      ITK, VTK, ParaView
  data.xmf      VTK, ParaView, VisIt
  ../dataset.h5 HDF5, netCDF-4: h5dump -d /data ../dataset.h5, MATLAB: h5read('../dataset.h5', '/data')

For others, to be run in this directory: a is the array, part is a[2]. Julia, MATLAB, IDL and Fortran have the
dimensions the other way round.
  Python   import numpy
           a = numpy.memmap("data.raw", '<f4', "r", shape=(4, 6, 10)); part = a[2]
  Julia    using Mmap; a = mmap("data.raw", Array{Float32, 3}, (10, 6, 4)); part = a[:, :, 3]
  MATLAB   m = memmapfile('data.raw', 'Format', {'single', [10 6 4], 'a'}); part = m.Data.a(:, :, 3);
  Octave   f = fopen('data.raw', 'r', 'ieee-le'); a = permute(reshape(fread(f, Inf, 'single=>single'), [10 6 4]), [3 2 1]);
           fseek(f, 480); part = reshape(fread(f, 60, 'single=>single'), [10 6])'; fclose(f);
  R        f <- file("data.raw", "rb"); a <- aperm(array(readBin(f, "numeric", 240, size=4, endian="little"), c(10, 6, 4)), 3:1)
           invisible(seek(f, 480)); part <- t(matrix(readBin(f, "numeric", 60, size=4, endian="little"), 10)); close(f)
  IDL      a = read_binary('data.raw', data_type=4, data_dims=[10, 6, 4], endian='little')
           openr, u, 'data.raw', /get_lun, /swap_if_big_endian & p = assoc(u, fltarr(10, 6)) & part = p[2]
  Fortran  real(4) :: part(10, 6)
           open(10, file='data.raw', access='stream', action='read', convert='little_endian')
           read(10, pos=481_8) part
  shell    od -A d -v --endian=little -t f4 -w40 -j 480 -N 240 data.raw
           dd if=data.raw of="$HOME/part.raw" iflag=skip_bytes,count_bytes skip=480 count=240
"#;
        assert_eq!(text(&testing::geographic()), expected);
    }

    #[test]
    fn strings_of_any_length_have_no_recipes() {
        let document = r#"{"zarr_format":2,"shape":[5],"chunks":[2],"dtype":"|O","compressor":null,"fill_value":null,
            "order":"C","filters":[{"id":"CODEC"}]}"#;
        let described = |codec: &str| {
            let document = document.replace("CODEC", codec);
            let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
            Described::of_metadata(&Key::normalize("group/names").unwrap(), &metadata)
        };
        let expected = "names

  shape         5
  item          text of any length, in UTF-8
  data.raw      none: items of any length have no flat bytes

In other files (a mount shows those that its options --headers and --containers name):
  values.txt    awk: a string a line, if they are few
  ../dataset.h5 HDF5, netCDF-4: h5dump -d /names ../dataset.h5, MATLAB: h5read('../dataset.h5', '/names')
";
        assert_eq!(text(&described("vlen-utf8")), expected);
        assert!(text(&described("vlen-bytes")).contains("  bytes of any length\n"));
        for (codec, is_shown) in [("json2", true), ("pickle", false), ("vlen-array", false)] {
            assert_eq!(
                Format::Readme.fits(&described(codec).metadata),
                is_shown,
                "{codec}"
            );
        }
    }

    fn programs(array: &Described) -> Vec<String> {
        let text = text(array);
        let (_, recipes) = text.split_once("the other way round.\n").unwrap();
        let words = recipes.lines().filter_map(|line| line.get(2..11));
        words
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(str::to_string)
            .collect()
    }

    #[test]
    fn only_programs_with_the_type_are_shown() {
        for (dtype, shape, expected) in [
            (
                ">f8",
                &[4u64, 6] as &[u64],
                "Python Julia MATLAB Octave R IDL Fortran shell",
            ),
            ("|i1", &[4], "Python Julia MATLAB Octave R Fortran shell"),
            ("<u4", &[4], "Python Julia MATLAB Octave IDL Fortran shell"),
            ("<i8", &[1; 9], "Python Julia MATLAB Octave Fortran shell"),
            ("<f2", &[4], "Python Julia shell"),
            (">c8", &[4], "Python IDL Fortran shell"),
            ("<c16", &[4], "Python Julia R IDL Fortran shell"),
            ("<M8[s]", &[4], "Python shell"),
            ("|S3", &[4], "Python shell"),
            ("<f8", &[], "Python shell"),
        ] {
            assert_eq!(
                programs(&testing::plain(dtype, shape)).join(" "),
                expected,
                "{dtype} {shape:?}"
            );
        }
    }

    #[test]
    fn byte_order_and_packing_are_shown() {
        let text = text(&testing::model());
        for line in [
            "item          >i2: signed integer, 2 bytes, big-endian",
            "value         item * 0.05 + 260",
            "missing       -32768",
            "part = ntoh.(a[:, :, 3, 2])",
            "part = swapbytes(m.Data.a(:, :, 3, 2));",
            "fopen('data.raw', 'r', 'ieee-be')",
            "endian=\"big\"",
            "/swap_if_little_endian & p = assoc(u, intarr(6, 5)) & part = p[6]",
            "convert='big_endian'",
            "od -A d -v --endian=big -t d2 -w12 -j 360 -N 60 data.raw",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_part_may_be_a_row_or_an_item() {
        let row = text(&testing::plain("<u2", &[4, 6]));
        for line in [
            "part = a[:, 3]\n",
            "read(10, pos=25_8) part",
            "part(6)  ! unsigned: where it is negative add 2**16",
        ] {
            assert!(row.contains(line), "{line}\n{row}");
        }
        let item = text(&testing::plain("<f8", &[7]));
        for line in [
            "shape         7\n",
            "shape=(7,)); part = a[3]",
            "'Format', {'double', [7 1], 'a'}",
        ] {
            assert!(item.contains(line), "{line}\n{item}");
        }
    }

    #[test]
    fn an_array_without_bytes_has_no_recipes() {
        let text = text(&testing::plain("<f4", &[4, 0]));
        assert!(text.contains("shape         4 x 0, "), "{text}");
        assert!(
            text.ends_with("0 bytes: the items and nothing else\n\nIt has no bytes.\n"),
            "{text}"
        );
    }
}
