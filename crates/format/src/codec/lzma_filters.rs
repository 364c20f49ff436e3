//! Filter chains of the compressor `lzma`: from the list of dicts of Python's `lzma` module to
//! liblzma's options. The module knows neither formats nor data.

use liblzma::stream::{Error, Filters, LzmaOptions, MatchFinder, Mode};
use zarrfs_base::json::{self, Value};

const LZMA1: u64 = 0x4000_0000_0000_0001;
const LZMA2: u64 = 0x21;
const DELTA: u64 = 0x03;

/// A chain of filters; the last one compresses.
#[derive(Clone, Debug, PartialEq)]
pub struct LzmaFilters(Vec<Filter>);

#[derive(Clone, Debug, PartialEq)]
enum Filter {
    Lzma1(LzmaParameters),
    Lzma2(LzmaParameters),
    /// The distance less 1, as liblzma stores it.
    Delta(u8),
    /// The id and start offset of a branch converter.
    Bcj(u64, u32),
}

/// Options of LZMA1 and LZMA2.
#[derive(Clone, Debug, PartialEq)]
pub struct LzmaParameters {
    preset: u32,
    /// The options that differ from those of the preset, by their names in Python.
    options: Vec<(&'static str, u32)>,
}

/// The names of the options of LZMA1 and LZMA2.
const OPTIONS: [&str; 9] = [
    "preset",
    "dict_size",
    "lc",
    "lp",
    "pb",
    "mode",
    "nice_len",
    "mf",
    "depth",
];

impl LzmaFilters {
    /// Parses the JSON list. The error is a reason that follows the word "filters".
    pub fn parse(value: &Value) -> Result<LzmaFilters, String> {
        let list = value.as_array().ok_or("are not a list")?;
        if list.is_empty() || list.len() > 4 {
            return Err(format!("are {}, not 1 to 4", list.len()));
        }
        Ok(LzmaFilters(
            list.iter().map(Filter::parse).collect::<Result<_, _>>()?,
        ))
    }

    /// Returns liblzma's chain with dictionaries of at most `max_dict` bytes.
    pub fn build(&self, max_dict: u32) -> Result<Filters, Error> {
        let mut filters = Filters::new();
        for filter in &self.0 {
            match filter {
                Filter::Lzma1(options) => filters.lzma1(&options.build(max_dict)?),
                Filter::Lzma2(options) => filters.lzma2(&options.build(max_dict)?),
                Filter::Delta(distance) => filters.delta_properties(&[*distance])?,
                Filter::Bcj(id, offset) => push_bcj(&mut filters, *id, *offset)?,
            };
        }
        Ok(filters)
    }

    /// Returns the size in bytes of the largest dictionary.
    pub fn dict_size(&self) -> u32 {
        let sizes = self.0.iter().map(|filter| match filter {
            Filter::Lzma1(options) | Filter::Lzma2(options) => options.dict_size(),
            _ => 0,
        });
        sizes.max().unwrap_or(0)
    }

    /// Returns the options of LZMA1 if the chain consists of it alone.
    pub fn only_lzma1(&self) -> Option<&LzmaParameters> {
        match &self.0[..] {
            [Filter::Lzma1(options)] => Some(options),
            _ => None,
        }
    }
}

/// Appends the branch converter with liblzma's number `id`. Without properties the start offset is
/// 0.
fn push_bcj(filters: &mut Filters, id: u64, offset: u32) -> Result<&mut Filters, Error> {
    let bytes = offset.to_le_bytes();
    let properties: &[u8] = if offset == 0 { &[] } else { &bytes };
    match id {
        4 => filters.x86_properties(properties),
        5 => filters.powerpc_properties(properties),
        6 => filters.ia64_properties(properties),
        7 => filters.arm_properties(properties),
        8 => filters.arm_thumb_properties(properties),
        9 => filters.sparc_properties(properties),
        _ => Err(Error::Options),
    }
}

impl Filter {
    fn parse(value: &Value) -> Result<Filter, String> {
        let dict = value
            .as_object()
            .ok_or("hold something that is not a dict")?;
        // LZMA1's id needs more digits than a double has
        let id = dict
            .get("id")
            .and_then(Value::as_u64)
            .ok_or("hold one without an id")?;
        let known: &[&str] = match id {
            LZMA1 | LZMA2 => &OPTIONS,
            DELTA => &["dist"],
            4..=9 => &["start_offset"],
            _ => return Err(format!("hold the unknown id {id}")),
        };
        if let Some(key) = dict
            .keys()
            .find(|k| *k != "id" && !known.contains(&k.as_str()))
        {
            return Err(format!("have no key {key:?} for id {id}"));
        }
        let int = |key: &str| match dict.get(key) {
            None => Ok(None),
            Some(v) => whole(v)
                .map(Some)
                .ok_or_else(|| format!("have a bad {key:?}")),
        };
        Ok(match id {
            LZMA1 => Filter::Lzma1(LzmaParameters::parse(int)?),
            LZMA2 => Filter::Lzma2(LzmaParameters::parse(int)?),
            DELTA => match int("dist")?.unwrap_or(1) {
                distance @ 1..=256 => Filter::Delta((distance - 1) as u8),
                _ => return Err("have a \"dist\" that is not between 1 and 256".into()),
            },
            _ => Filter::Bcj(id, int("start_offset")?.unwrap_or(0)),
        })
    }
}

/// Returns the integer that Python makes of a JSON number.
fn whole(value: &Value) -> Option<u32> {
    let float = json::float(value)
        .filter(|f| f.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(f))?;
    Some(float as u32)
}

impl LzmaParameters {
    fn parse(int: impl Fn(&str) -> Result<Option<u32>, String>) -> Result<Self, String> {
        let mut options = Vec::new();
        for name in OPTIONS {
            options.extend(int(name)?.map(|value| (name, value)));
        }
        let preset = options
            .iter()
            .find(|(name, _)| *name == "preset")
            .map_or(6, |(_, preset)| *preset);
        Ok(LzmaParameters { preset, options })
    }

    fn dict_size(&self) -> u32 {
        let stated = self.options.iter().find(|(name, _)| *name == "dict_size");
        stated.map_or_else(|| preset_dict(self.preset), |(_, size)| *size)
    }

    /// Returns liblzma's options with a dictionary of at most `max_dict` bytes.
    pub fn build(&self, max_dict: u32) -> Result<LzmaOptions, Error> {
        let mut options = LzmaOptions::new_preset(self.preset).map_err(|_| Error::Options)?;
        options.dict_size(self.dict_size().min(max_dict));
        for &(name, value) in &self.options {
            match (name, value) {
                ("lc", bits) => options.literal_context_bits(bits),
                ("lp", bits) => options.literal_position_bits(bits),
                ("pb", bits) => options.position_bits(bits),
                ("nice_len", len) => options.nice_len(len),
                ("depth", depth) => options.depth(depth),
                ("mode", 1) => options.mode(Mode::Fast),
                ("mode", 2) => options.mode(Mode::Normal),
                ("mf", 0x03) => options.match_finder(MatchFinder::HashChain3),
                ("mf", 0x04) => options.match_finder(MatchFinder::HashChain4),
                ("mf", 0x12) => options.match_finder(MatchFinder::BinaryTree2),
                ("mf", 0x13) => options.match_finder(MatchFinder::BinaryTree3),
                ("mf", 0x14) => options.match_finder(MatchFinder::BinaryTree4),
                ("preset" | "dict_size", _) => &mut options,
                _ => return Err(Error::Options),
            };
        }
        Ok(options)
    }
}

/// Returns the dictionary size of a preset in bytes. liblzma's options can be set but not read.
pub fn preset_dict(preset: u32) -> u32 {
    let log = match preset & 31 {
        0 => 18,
        1 => 20,
        2 => 21,
        3 | 4 => 22,
        5 | 6 => 23,
        7 => 24,
        8 => 25,
        _ => 26,
    };
    1 << log
}
