//! The configuration of one codec: its id and its parameters, as a filter or a compressor of `.zarray` states them.

use crate::error::{Error, Result};
use crate::util::json::{self, Map, Value};
use crate::zarr::dtype::DType;

/// A codec's id and parameters. Example: `{"id": "zlib", "level": 1}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecConfig {
    /// The numcodecs id, such as `blosc`.
    pub id: String,
    params: Map<String, Value>,
}

impl CodecConfig {
    /// From the JSON object of a filter or compressor.
    pub fn parse(value: &Value) -> Result<Self> {
        let mut params = value.as_object().ok_or_else(|| Error::damaged("a codec is not a JSON object"))?.clone();
        // shift_remove keeps the order of the rest
        let id = params.shift_remove("id");
        let id = id.as_ref().and_then(json::text).ok_or_else(|| Error::damaged("a codec has no id"))?;
        Ok(CodecConfig { id: id.to_string(), params })
    }

    /// From an id and named parameters, as Zarr v1 keeps them apart.
    pub fn new(id: &str, params: Map<String, Value>) -> Self {
        CodecConfig { id: id.to_string(), params }
    }

    /// The JSON object again.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("id".into(), self.id.clone().into());
        object.extend(self.params.clone());
        Value::Object(object)
    }

    /// A list of filters as the document states it: null where there is none.
    pub fn list_to_json(list: &[CodecConfig]) -> Value {
        if list.is_empty() { Value::Null } else { list.iter().map(CodecConfig::to_json).collect() }
    }

    /// Refuses parameters that are not in `known`, as numcodecs' constructors do: they may change what the bytes mean.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.params.keys().find(|k| !known.contains(&k.as_str())) {
            Some(key) => Err(Error::unsupported(format!("codec {:?} has no parameter {key:?}", self.id))),
            None => Ok(()),
        }
    }

    /// The parameters by name, as they stand.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.params.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// A parameter as it stands; None if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.params.get(name).filter(|v| !v.is_null())
    }

    /// An integer parameter between `low` and `high`, or `default` if it is absent or null. As in Python, true and
    /// false count as 1 and 0, and so does a float without a fraction.
    pub fn int(&self, name: &str, default: i64, low: i64, high: i64) -> Result<i64> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let whole = json::float(value).filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64);
        let n = value
            .as_i64()
            .or(value.as_bool().map(i64::from))
            .or(whole)
            .ok_or_else(|| self.bad(name, "is not an integer"))?;
        if !(low..=high).contains(&n) {
            return Err(self.bad(name, &format!("is {n}, not between {low} and {high}")));
        }
        Ok(n)
    }

    /// A string parameter, or `default` if it is absent or null.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str> {
        self.get(name).map_or(Ok(default), |v| json::text(v).ok_or_else(|| self.bad(name, "is not a string")))
    }

    /// A dtype parameter; None if it is absent or null.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>> {
        let parse = |v| DType::parse(v).map_err(|e| self.bad(name, e.message()));
        self.get(name).map(parse).transpose()
    }

    /// The error that parameter `name` is wrong; `why` follows its name, as in "is not an integer".
    pub fn bad(&self, name: &str, why: &str) -> Error {
        Error::damaged(format!("codec {:?}: {name} {why}", self.id))
    }
}
