//! Filter chains of the codec `lzma`: from the list of dicts of Python's `lzma` module to liblzma's options. It knows
//! neither formats nor data.

use crate::util::json::{self, Value};
use liblzma::stream::{Error, Filters, LzmaOptions, MatchFinder, Mode};

const LZMA1: u64 = 0x4000_0000_0000_0001;
const LZMA2: u64 = 0x21;
const DELTA: u64 = 0x03;

/// The smallest dictionary liblzma takes.
const MIN_DICT: u32 = 4096;

/// A chain, the last filter being the compressor.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain(Vec<Filter>);

#[derive(Clone, Debug, PartialEq)]
enum Filter {
    Lzma1(Lzma),
    Lzma2(Lzma),
    /// The distance less one, as liblzma stores it.
    Delta(u8),
    /// A branch converter: its id and start offset.
    Bcj(u64, u32),
}

type Setter = fn(&mut LzmaOptions, u32) -> &mut LzmaOptions;

/// Options of LZMA1 and LZMA2: a preset, and what differs from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lzma {
    preset: u32,
    dict_size: Option<u32>,
    lc: Option<u32>,
    lp: Option<u32>,
    pb: Option<u32>,
    mode: Option<u32>,
    nice_len: Option<u32>,
    mf: Option<u32>,
    depth: Option<u32>,
}

impl Chain {
    /// From the JSON list; the reason why not follows the word "filters".
    pub fn parse(value: &Value) -> Result<Chain, String> {
        let list = value.as_array().ok_or("are not a list")?;
        if list.is_empty() || list.len() > 4 {
            return Err(format!("are {}, not 1 to 4", list.len()));
        }
        Ok(Chain(list.iter().map(Filter::parse).collect::<Result<_, _>>()?))
    }

    /// liblzma's chain for encoding.
    pub fn build(&self) -> Result<Filters, Error> {
        self.with_dict(u32::MAX)
    }

    /// liblzma's chain for decoding at most `room` bytes. A dictionary beyond them would never be looked into, so it is
    /// not allocated.
    pub fn for_decoding(&self, room: usize) -> Result<Filters, Error> {
        self.with_dict(u32::try_from(room).unwrap_or(u32::MAX).max(MIN_DICT))
    }

    fn with_dict(&self, most: u32) -> Result<Filters, Error> {
        let mut filters = Filters::new();
        for filter in &self.0 {
            match filter {
                Filter::Lzma1(options) => filters.lzma1(&options.with_dict(most)?),
                Filter::Lzma2(options) => filters.lzma2(&options.with_dict(most)?),
                Filter::Delta(distance) => filters.delta_properties(&[*distance])?,
                Filter::Bcj(id, offset) => push_bcj(&mut filters, *id, *offset)?,
            };
        }
        Ok(filters)
    }

    /// The options, if the chain is LZMA1 alone.
    pub fn only_lzma1(&self) -> Option<&Lzma> {
        match &self.0[..] {
            [Filter::Lzma1(options)] => Some(options),
            _ => None,
        }
    }
}

/// The converters as liblzma numbers them; without properties the start offset is 0.
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
        let dict = value.as_object().ok_or("hold something that is not a dict")?;
        // LZMA1's id has more digits than a double
        let id = dict.get("id").and_then(Value::as_u64).ok_or("hold one without an id")?;
        let known: &[&str] = match id {
            LZMA1 | LZMA2 => &["preset", "dict_size", "lc", "lp", "pb", "mode", "nice_len", "mf", "depth"],
            DELTA => &["dist"],
            4..=9 => &["start_offset"],
            _ => return Err(format!("hold the unknown id {id}")),
        };
        if let Some(key) = dict.keys().find(|k| *k != "id" && !known.contains(&k.as_str())) {
            return Err(format!("have no key {key:?} for id {id}"));
        }
        let int = |key: &str| match dict.get(key) {
            None => Ok(None),
            Some(v) => whole(v).map(Some).ok_or_else(|| format!("have a bad {key:?}")),
        };
        Ok(match id {
            LZMA1 => Filter::Lzma1(Lzma::parse(int)?),
            LZMA2 => Filter::Lzma2(Lzma::parse(int)?),
            DELTA => match int("dist")?.unwrap_or(1) {
                distance @ 1..=256 => Filter::Delta((distance - 1) as u8),
                _ => return Err("have a \"dist\" that is not between 1 and 256".into()),
            },
            _ => Filter::Bcj(id, int("start_offset")?.unwrap_or(0)),
        })
    }
}

fn whole(value: &Value) -> Option<u32> {
    let float = json::float(value).filter(|f| f.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(f))?;
    Some(float as u32)
}

impl Lzma {
    fn parse(int: impl Fn(&str) -> Result<Option<u32>, String>) -> Result<Lzma, String> {
        Ok(Lzma {
            preset: int("preset")?.unwrap_or(6),
            dict_size: int("dict_size")?,
            lc: int("lc")?,
            lp: int("lp")?,
            pb: int("pb")?,
            mode: int("mode")?,
            nice_len: int("nice_len")?,
            mf: int("mf")?,
            depth: int("depth")?,
        })
    }

    /// liblzma's options.
    pub fn build(&self) -> Result<LzmaOptions, Error> {
        self.with_dict(u32::MAX)
    }

    fn with_dict(&self, most: u32) -> Result<LzmaOptions, Error> {
        let mut options = LzmaOptions::new_preset(self.preset).map_err(|_| Error::Options)?;
        let dict = self.dict_size.unwrap_or_else(|| preset_dict(self.preset));
        options.dict_size(dict.min(most));
        let set: [(Option<u32>, Setter); 5] = [
            (self.lc, LzmaOptions::literal_context_bits),
            (self.lp, LzmaOptions::literal_position_bits),
            (self.pb, LzmaOptions::position_bits),
            (self.nice_len, LzmaOptions::nice_len),
            (self.depth, LzmaOptions::depth),
        ];
        for (value, setter) in set {
            value.map(|v| setter(&mut options, v));
        }
        match self.mode {
            None => {}
            Some(1) => _ = options.mode(Mode::Fast),
            Some(2) => _ = options.mode(Mode::Normal),
            Some(_) => return Err(Error::Options),
        }
        let finder = match self.mf {
            None => return Ok(options),
            Some(0x03) => MatchFinder::HashChain3,
            Some(0x04) => MatchFinder::HashChain4,
            Some(0x12) => MatchFinder::BinaryTree2,
            Some(0x13) => MatchFinder::BinaryTree3,
            Some(0x14) => MatchFinder::BinaryTree4,
            Some(_) => return Err(Error::Options),
        };
        options.match_finder(finder);
        Ok(options)
    }
}

/// The dictionary size of a preset; liblzma's options can be set but not read.
fn preset_dict(preset: u32) -> u32 {
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
