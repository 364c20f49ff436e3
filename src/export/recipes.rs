//! Lines in other languages that read flat bytes: all of an array, and a part from its middle. This
//! module knows types and shapes, but not the meaning of the values.

use super::npy;
use super::spelling::{self, list};
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::ArrayMetadata;

/// Maximum length in bytes of a row that `od` prints as one line.
const MAX_LINE: u64 = 4096;

/// Maximum number of dimensions in IDL.
const MAX_IDL_DIMENSIONS: usize = 8;

/// Maximum number of dimensions in Fortran.
const MAX_FORTRAN_DIMENSIONS: usize = 15;

/// A part of an array: one item of one dimension, one row of two, one plane of more.
pub struct ExamplePart {
    /// The part's indices in the dimensions before its own.
    indices: Vec<u64>,
    /// The lengths of the part's own dimensions.
    lengths: Vec<u64>,
    /// Number of parts of this size before the part.
    before: u64,
    /// Size in bytes.
    bytes: u64,
}

impl ExamplePart {
    /// Returns the part in the middle of an array; `None` if the array has no bytes.
    pub fn in_the_middle(metadata: &ArrayMetadata) -> Option<Self> {
        let shape = &metadata.shape;
        let size = metadata.dtype.size() as u64;
        if size == 0 || shape.contains(&0) {
            return None;
        }
        let (leading, lengths) = shape.split_at(match shape.len() {
            count @ 0..=1 => count,
            count => (count - 2).max(1),
        });
        let indices: Vec<u64> = leading.iter().map(|len| len / 2).collect();
        let before = leading
            .iter()
            .zip(&indices)
            .fold(0, |before, (len, index)| before * len + index);
        let bytes = lengths.iter().product::<u64>() * size;
        Some(ExamplePart {
            indices,
            lengths: lengths.to_vec(),
            before,
            bytes,
        })
    }

    /// Spells the part in Python.
    pub fn name(&self) -> String {
        format!(
            "a[{}]",
            if self.indices.is_empty() {
                "()".to_string()
            } else {
                list(&self.indices, ", ")
            }
        )
    }

    fn offset(&self) -> u64 {
        self.before * self.bytes
    }

    fn items(&self) -> u64 {
        self.lengths.iter().product()
    }

    /// Spells the part's lengths, the fastest first.
    fn reversed(&self, between: &str) -> String {
        list(self.lengths.iter().rev(), between)
    }

    /// Spells the part's indices from 1, the fastest dimension first.
    fn indices_from_one(&self) -> String {
        let own = self.lengths.iter().map(|_| ":".to_string());
        list(
            own.chain(
                self.indices
                    .iter()
                    .rev()
                    .map(|index| (index + 1).to_string()),
            ),
            ", ",
        )
    }
}

/// Returns the programs that can read the array, each with its lines.
pub fn of(metadata: &ArrayMetadata, part: &ExamplePart) -> Vec<(&'static str, Vec<String>)> {
    let mut recipes = Vec::new();
    recipes.extend(python(metadata, part).map(|lines| ("Python", lines)));
    // the other languages have no arrays without dimensions
    if let Some(number) = NumberType::of(&metadata.dtype).filter(|_| !metadata.shape.is_empty()) {
        recipes.extend(julia(metadata, part, &number).map(|lines| ("Julia", lines)));
        recipes.extend(matlab(metadata, part, &number).map(|lines| ("MATLAB", lines)));
        recipes.extend(octave(metadata, part, &number).map(|lines| ("Octave", lines)));
        recipes.extend(r(metadata, part, &number).map(|lines| ("R", lines)));
        recipes.extend(idl(metadata, part, &number).map(|lines| ("IDL", lines)));
        recipes.extend(fortran(metadata, part, &number).map(|lines| ("Fortran", lines)));
    }
    recipes.push(("shell", shell(metadata, part)));
    recipes
}

/// A numeric type and its byte order.
struct NumberType<'a> {
    dtype: &'a DType,
    /// The name that [`spelling::number`] returns, or `f2`.
    code: &'static str,
    size: usize,
    is_big: bool,
}

impl<'a> NumberType<'a> {
    fn of(dtype: &'a DType) -> Option<Self> {
        let is_half = *dtype.kind() == DTypeKind::Float && dtype.size() == 2;
        let code = if is_half {
            "f2"
        } else {
            spelling::number(dtype)?
        };
        Some(NumberType {
            dtype,
            code,
            size: dtype.size(),
            is_big: dtype.is_big_endian(),
        })
    }

    fn order(&self) -> &'static str {
        if self.is_big { "big" } else { "little" }
    }

    fn is_complex(&self) -> bool {
        self.code.starts_with('c')
    }

    /// Returns the type's name in MATLAB and Octave.
    fn matlab(&self) -> Option<&'static str> {
        const NAMES: [&str; 12] = [
            "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single",
            "double", "", "",
        ];
        spelling::type_name(self.dtype, NAMES)
    }
}

fn python(metadata: &ArrayMetadata, part: &ExamplePart) -> Option<Vec<String>> {
    let descr = npy::descr(&metadata.dtype, &metadata.dtype_json)?;
    let shape = match metadata.shape.as_slice() {
        [len] => format!("({len},)"),
        shape => format!("({})", list(shape, ", ")),
    };
    Some(vec![
        "import numpy".to_string(),
        format!(
            "a = numpy.memmap(\"data.raw\", {descr}, \"r\", shape={shape}); part = {}",
            part.name()
        ),
    ])
}

fn julia(metadata: &ArrayMetadata, part: &ExamplePart, number: &NumberType) -> Option<Vec<String>> {
    const NAMES: [&str; 12] = [
        "Int8",
        "UInt8",
        "Int16",
        "UInt16",
        "Int32",
        "UInt32",
        "Int64",
        "UInt64",
        "Float32",
        "Float64",
        "ComplexF32",
        "ComplexF64",
    ];
    let word = if number.code == "f2" {
        "Float16"
    } else {
        spelling::type_name(number.dtype, NAMES)?
    };
    let part = format!("a[{}]", part.indices_from_one());
    if number.is_big && number.is_complex() {
        return None;
    }
    let part = if number.is_big {
        format!("ntoh.({part})")
    } else {
        part
    };
    let count = metadata.shape.len();
    let sizes = spelling::sizes(metadata, ", ");
    let comma = if count == 1 { "," } else { "" };
    Some(vec![format!(
        "using Mmap; a = mmap(\"data.raw\", Array{{{word}, {count}}}, ({sizes}{comma})); part = {part}"
    )])
}

fn matlab(
    metadata: &ArrayMetadata,
    part: &ExamplePart,
    number: &NumberType,
) -> Option<Vec<String>> {
    let word = number.matlab()?;
    let comma = if metadata.shape.len() == 1 { " 1" } else { "" };
    let sizes = spelling::sizes(metadata, " ");
    let part = format!("m.Data.a({})", part.indices_from_one());
    let part = if number.is_big {
        format!("swapbytes({part})")
    } else {
        part
    };
    Some(vec![format!(
        "m = memmapfile('data.raw', 'Format', {{'{word}', [{sizes}{comma}], 'a'}}); part = {part};"
    )])
}

fn octave(
    metadata: &ArrayMetadata,
    part: &ExamplePart,
    number: &NumberType,
) -> Option<Vec<String>> {
    let word = number.matlab()?;
    let order = if number.is_big { "ieee-be" } else { "ieee-le" };
    let one = |lengths: &[u64]| if lengths.len() < 2 { " 1" } else { "" };
    let count = metadata.shape.len();
    let reshaped = format!(
        "reshape(fread(f, Inf, '{word}=>{word}'), [{}{}])",
        spelling::sizes(metadata, " "),
        one(&metadata.shape)
    );
    let all = match count {
        1 => reshaped,
        _ => format!("permute({reshaped}, [{}])", list((1..=count).rev(), " ")),
    };
    let offset = part.offset();
    let items = part.items();
    let sizes = part.reversed(" ");
    let part = match part.lengths.len() {
        2 => format!("reshape(fread(f, {items}, '{word}=>{word}'), [{sizes}])'"),
        _ => format!("fread(f, {items}, '{word}=>{word}')"),
    };
    Some(vec![
        format!("f = fopen('data.raw', 'r', '{order}'); a = {all};"),
        format!("fseek(f, {offset}); part = {part}; fclose(f);"),
    ])
}

fn r(metadata: &ArrayMetadata, part: &ExamplePart, number: &NumberType) -> Option<Vec<String>> {
    let (what, more) = match number.code {
        "i1" => ("integer", ", size=1"),
        "u1" => ("integer", ", size=1, signed=FALSE"),
        "i2" => ("integer", ", size=2"),
        "u2" => ("integer", ", size=2, signed=FALSE"),
        "i4" => ("integer", ", size=4"),
        "f4" => ("numeric", ", size=4"),
        "f8" => ("numeric", ", size=8"),
        "c16" => ("complex", ""),
        _ => return None,
    };
    let order = number.order();
    let read = |items: u64| format!("readBin(f, \"{what}\", {items}{more}, endian=\"{order}\")");
    let items: u64 = metadata.shape.iter().product();
    let all = format!(
        "array({}, c({}))",
        read(items),
        spelling::sizes(metadata, ", ")
    );
    let all = match metadata.shape.len() {
        1 => all,
        count => format!("aperm({all}, {count}:1)"),
    };
    let taken = read(part.items());
    let taken = match part.lengths.as_slice() {
        [_, columns] => format!("t(matrix({taken}, {columns}))"),
        _ => taken,
    };
    let skip = part.offset();
    Some(vec![
        format!("f <- file(\"data.raw\", \"rb\"); a <- {all}"),
        format!("invisible(seek(f, {skip})); part <- {taken}; close(f)"),
    ])
}

fn idl(metadata: &ArrayMetadata, part: &ExamplePart, number: &NumberType) -> Option<Vec<String>> {
    const CODES: [u8; 12] = [0, 1, 2, 12, 3, 13, 14, 15, 4, 5, 6, 9];
    const WORDS: [&str; 12] = [
        "",
        "bytarr",
        "intarr",
        "uintarr",
        "lonarr",
        "ulonarr",
        "lon64arr",
        "ulon64arr",
        "fltarr",
        "dblarr",
        "complexarr",
        "dcomplexarr",
    ];
    let code = spelling::type_name(number.dtype, CODES)?;
    let word = spelling::type_name(number.dtype, WORDS)?;
    if metadata.shape.len() > MAX_IDL_DIMENSIONS {
        return None;
    }
    let sizes = spelling::sizes(metadata, ", ");
    let order = number.order();
    let swap = match (number.size, number.is_big) {
        (1, _) => "",
        (_, true) => ", /swap_if_little_endian",
        (_, false) => ", /swap_if_big_endian",
    };
    let lengths = if part.lengths.is_empty() {
        "1".to_string()
    } else {
        part.reversed(", ")
    };
    let before = part.before;
    Some(vec![
        format!(
            "a = read_binary('data.raw', data_type={code}, data_dims=[{sizes}], endian='{order}')"
        ),
        format!(
            "openr, u, 'data.raw', /get_lun{swap} & p = assoc(u, {word}({lengths})) & part = p[{before}]"
        ),
    ])
}

fn fortran(
    metadata: &ArrayMetadata,
    part: &ExamplePart,
    number: &NumberType,
) -> Option<Vec<String>> {
    if metadata.shape.len() > MAX_FORTRAN_DIMENSIONS {
        return None;
    }
    let (letter, size) = number.code.split_at(1);
    let (word, note) = match letter {
        "i" => ("integer", String::new()),
        "u" => (
            "integer",
            format!(
                "  ! unsigned: where it is negative add 2**{}",
                8 * number.size
            ),
        ),
        "f" if number.size > 2 => ("real", String::new()),
        "c" => ("complex", String::new()),
        _ => return None,
    };
    // Fortran gives a complex number the size of its parts
    let size = if letter == "c" {
        (number.size / 2).to_string()
    } else {
        size.to_string()
    };
    let lengths = if part.lengths.is_empty() {
        String::new()
    } else {
        format!("({})", part.reversed(", "))
    };
    let order = number.order();
    let position = part.offset() + 1;
    Some(vec![
        format!("{word}({size}) :: part{lengths}{note}"),
        format!(
            "open(10, file='data.raw', access='stream', action='read', convert='{order}_endian')"
        ),
        format!("read(10, pos={position}_8) part"),
    ])
}

fn shell(metadata: &ArrayMetadata, part: &ExamplePart) -> Vec<String> {
    let offset = part.offset();
    let bytes = part.bytes;
    let number = NumberType::of(&metadata.dtype);
    let shown = match number
        .as_ref()
        .map(|number| (number.code.as_bytes(), number.size))
    {
        Some(([b'i', ..], size)) => format!("d{size}"),
        Some(([b'u', ..], size)) => format!("u{size}"),
        Some(([b'f', ..], size @ (4 | 8))) => format!("f{size}"),
        Some(([b'c', ..], size)) => format!("f{}", size / 2),
        Some((_, size)) => format!("x{size}"),
        None if metadata.dtype.has_time() && metadata.dtype.size() == 8 => "d8".to_string(),
        None => "x1".to_string(),
    };
    let order = if metadata.dtype.is_big_endian() {
        "big"
    } else {
        "little"
    };
    let row = part.lengths.last().unwrap_or(&1) * metadata.dtype.size() as u64;
    let width = if row <= MAX_LINE {
        format!(" -w{row}")
    } else {
        String::new()
    };
    vec![
        format!("od -A d -v --endian={order} -t {shown}{width} -j {offset} -N {bytes} data.raw"),
        format!(
            "dd if=data.raw of=\"$HOME/part.raw\" iflag=skip_bytes,count_bytes skip={offset} count={bytes}"
        ),
    ]
}
