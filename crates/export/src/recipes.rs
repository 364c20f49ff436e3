//! Lines in other languages that read flat bytes: all of an array, and a part from its middle. This
//! module knows types and shapes, but not the meaning of the values.

use super::npy;
use super::spelling::{self, list};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

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
    let code = number_code(&metadata.dtype).filter(|_| !metadata.shape.is_empty());
    if let Some(code) = code {
        let recipe = Recipe {
            metadata,
            part,
            code,
        };
        let languages = [
            ("Julia", recipe.julia()),
            ("MATLAB", recipe.matlab()),
            ("Octave", recipe.octave()),
            ("R", recipe.r()),
            ("IDL", recipe.idl()),
            ("Fortran", recipe.fortran()),
        ];
        let known = languages
            .into_iter()
            .filter_map(|(name, lines)| Some((name, lines?)));
        recipes.extend(known);
    }
    recipes.push(("shell", shell(metadata, part)));
    recipes
}

/// Returns the name of a numeric type that [`spelling::number`] returns, or `f2`.
fn number_code(dtype: &DType) -> Option<&'static str> {
    match (dtype.kind(), dtype.size()) {
        (DTypeKind::Float, 2) => Some("f2"),
        _ => spelling::number(dtype),
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

/// An array of numbers, and the part that is taken from it.
struct Recipe<'a> {
    metadata: &'a ArrayMetadata,
    part: &'a ExamplePart,
    code: &'static str,
}

impl Recipe<'_> {
    fn is_big_endian(&self) -> bool {
        self.metadata.dtype.is_big_endian()
    }

    fn sizes(&self, between: &str) -> String {
        spelling::sizes(self.metadata, between)
    }

    fn type_name<T: Copy + Default + PartialEq>(&self, names: [T; 12]) -> Option<T> {
        spelling::type_name(&self.metadata.dtype, names)
    }

    /// Returns the type's name in MATLAB and Octave.
    fn matlab_type(&self) -> Option<&'static str> {
        self.type_name([
            "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single",
            "double", "", "",
        ])
    }

    fn julia(&self) -> Option<Vec<String>> {
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
        let word = if self.code == "f2" {
            "Float16"
        } else {
            self.type_name(NAMES)?
        };
        let part = format!("a[{}]", self.part.indices_from_one());
        let part = match (self.is_big_endian(), self.code) {
            (false, _) => part,
            (true, "c8" | "c16") => return None,
            (true, _) => format!("ntoh.({part})"),
        };
        let count = self.metadata.shape.len();
        let sizes = self.sizes(", ");
        let comma = if count == 1 { "," } else { "" };
        Some(vec![format!(
            "using Mmap; a = mmap(\"data.raw\", Array{{{word}, {count}}}, ({sizes}{comma})); part = {part}"
        )])
    }

    fn matlab(&self) -> Option<Vec<String>> {
        let word = self.matlab_type()?;
        let comma = if self.metadata.shape.len() == 1 {
            " 1"
        } else {
            ""
        };
        let sizes = self.sizes(" ");
        let part = format!("m.Data.a({})", self.part.indices_from_one());
        let part = if self.is_big_endian() {
            format!("swapbytes({part})")
        } else {
            part
        };
        Some(vec![format!(
            "m = memmapfile('data.raw', 'Format', {{'{word}', [{sizes}{comma}], 'a'}}); part = {part};"
        )])
    }

    fn octave(&self) -> Option<Vec<String>> {
        let word = self.matlab_type()?;
        let order = if self.is_big_endian() {
            "ieee-be"
        } else {
            "ieee-le"
        };
        let count = self.metadata.shape.len();
        let reshaped = format!(
            "reshape(fread(f, Inf, '{word}=>{word}'), [{}{}])",
            self.sizes(" "),
            if count < 2 { " 1" } else { "" }
        );
        let all = match count {
            1 => reshaped,
            _ => format!("permute({reshaped}, [{}])", list((1..=count).rev(), " ")),
        };
        let offset = self.part.offset();
        let items = self.part.items();
        let sizes = self.part.reversed(" ");
        let part = match self.part.lengths.len() {
            2 => format!("reshape(fread(f, {items}, '{word}=>{word}'), [{sizes}])'"),
            _ => format!("fread(f, {items}, '{word}=>{word}')"),
        };
        Some(vec![
            format!("f = fopen('data.raw', 'r', '{order}'); a = {all};"),
            format!("fseek(f, {offset}); part = {part}; fclose(f);"),
        ])
    }

    fn r(&self) -> Option<Vec<String>> {
        let (what, more) = match self.code {
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
        let order = spelling::byte_order(&self.metadata.dtype);
        let [all, taken] = [self.metadata.shape.iter().product(), self.part.items()]
            .map(|items: u64| format!("readBin(f, \"{what}\", {items}{more}, endian=\"{order}\")"));
        let all = format!("array({}, c({}))", all, self.sizes(", "));
        let all = match self.metadata.shape.len() {
            1 => all,
            count => format!("aperm({all}, {count}:1)"),
        };
        let taken = match self.part.lengths.as_slice() {
            [_, columns] => format!("t(matrix({taken}, {columns}))"),
            _ => taken,
        };
        let skip = self.part.offset();
        Some(vec![
            format!("f <- file(\"data.raw\", \"rb\"); a <- {all}"),
            format!("invisible(seek(f, {skip})); part <- {taken}; close(f)"),
        ])
    }

    fn idl(&self) -> Option<Vec<String>> {
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
        let code = self.type_name(CODES)?;
        let word = self.type_name(WORDS)?;
        if self.metadata.shape.len() > MAX_IDL_DIMENSIONS {
            return None;
        }
        let sizes = self.sizes(", ");
        let order = spelling::byte_order(&self.metadata.dtype);
        let swap = match (self.metadata.dtype.size(), self.is_big_endian()) {
            (1, _) => "",
            (_, true) => ", /swap_if_little_endian",
            (_, false) => ", /swap_if_big_endian",
        };
        let lengths = if self.part.lengths.is_empty() {
            "1".to_string()
        } else {
            self.part.reversed(", ")
        };
        let before = self.part.before;
        Some(vec![
            format!(
                "a = read_binary('data.raw', data_type={code}, data_dims=[{sizes}], endian='{order}')"
            ),
            format!(
                "openr, u, 'data.raw', /get_lun{swap} & p = assoc(u, {word}({lengths})) & part = p[{before}]"
            ),
        ])
    }

    fn fortran(&self) -> Option<Vec<String>> {
        if self.metadata.shape.len() > MAX_FORTRAN_DIMENSIONS {
            return None;
        }
        let (letter, size) = self.code.split_at(1);
        let (word, note) = match letter {
            "i" => ("integer", String::new()),
            "u" => (
                "integer",
                format!(
                    "  ! unsigned: where it is negative add 2**{}",
                    8 * self.metadata.dtype.size()
                ),
            ),
            "f" if self.metadata.dtype.size() > 2 => ("real", String::new()),
            "c" => ("complex", String::new()),
            _ => return None,
        };
        // Fortran gives a complex number the size of its parts
        let size = if letter == "c" {
            (self.metadata.dtype.size() / 2).to_string()
        } else {
            size.to_string()
        };
        let lengths = if self.part.lengths.is_empty() {
            String::new()
        } else {
            format!("({})", self.part.reversed(", "))
        };
        let order = spelling::byte_order(&self.metadata.dtype);
        let position = self.part.offset() + 1;
        Some(vec![
            format!("{word}({size}) :: part{lengths}{note}"),
            format!(
                "open(10, file='data.raw', access='stream', action='read', convert='{order}_endian')"
            ),
            format!("read(10, pos={position}_8) part"),
        ])
    }
}

fn shell(metadata: &ArrayMetadata, part: &ExamplePart) -> Vec<String> {
    let offset = part.offset();
    let bytes = part.bytes;
    let size = metadata.dtype.size();
    let shown = match number_code(&metadata.dtype).map(|code| code.split_at(1)) {
        Some(("i", _)) => format!("d{size}"),
        Some(("u", _)) => format!("u{size}"),
        Some(("f", "4" | "8")) => format!("f{size}"),
        Some(("c", _)) => format!("f{}", size / 2),
        Some(_) => format!("x{size}"),
        None if metadata.dtype.has_time() && size == 8 => "d8".to_string(),
        None => "x1".to_string(),
    };
    let order = spelling::byte_order(&metadata.dtype);
    let row = part.lengths.last().unwrap_or(&1) * size as u64;
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
