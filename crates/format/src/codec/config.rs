//! The configuration of one codec: its id and its parameters, as a filter or the compressor of a
//! `.zarray` states them.

use crate::dtype::DType;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};

/// The id and parameters of a codec. Example: `{"id": "zlib", "level": 1}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecConfig {
    /// The numcodecs id, such as `blosc`.
    pub id: String,
    parameters: Map<String, Value>,
}

impl CodecConfig {
    /// Parses the JSON object of a filter or compressor.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is no object or has no id.
    pub fn parse(value: &Value) -> Result<Self> {
        let mut parameters = value
            .as_object()
            .ok_or_else(|| Error::damaged("a codec is not a JSON object"))?
            .clone();
        // unlike `remove`, this keeps the order of the other parameters
        let id = parameters.shift_remove("id");
        let id = id
            .as_ref()
            .and_then(json::text)
            .ok_or_else(|| Error::damaged("a codec has no id"))?;
        Ok(CodecConfig {
            id: id.to_string(),
            parameters,
        })
    }

    /// Creates a configuration from an id and parameters, which Zarr v1 states separately.
    pub fn new(id: &str, parameters: Map<String, Value>) -> Self {
        CodecConfig {
            id: id.to_string(),
            parameters,
        }
    }

    /// Returns the parameters as a JSON object.
    pub fn to_map(&self) -> Map<String, Value> {
        self.parameters.clone()
    }

    /// Returns the JSON object of the codec.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("id".into(), self.id.clone().into());
        object.extend(self.parameters.clone());
        Value::Object(object)
    }

    /// Returns a list of filters as a document states it: null if the list is empty.
    pub fn list_to_json(list: &[CodecConfig]) -> Value {
        if list.is_empty() {
            Value::Null
        } else {
            list.iter().map(CodecConfig::to_json).collect()
        }
    }

    /// Returns this configuration with one more parameter.
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.parameters.insert(name.into(), value);
        self
    }

    /// Checks that all parameters are in `known`. An unknown one may change the meaning of the
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if a parameter is unknown, as
    /// in numcodecs' constructors.
    pub fn allow_only(&self, known: &[&str]) -> Result<()> {
        match self
            .parameters
            .keys()
            .find(|k| !known.contains(&k.as_str()))
        {
            Some(key) => Err(Error::unsupported(format!(
                "codec {:?} has no parameter {key:?}",
                self.id
            ))),
            None => Ok(()),
        }
    }

    /// Returns the names and values of the parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// Returns a parameter, or `None` if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.parameters.get(name).filter(|v| !v.is_null())
    }

    /// Returns a parameter that must be present.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is absent or null.
    pub fn required(&self, name: &str) -> Result<&Value> {
        self.get(name)
            .ok_or_else(|| self.invalid(name, "is missing"))
    }

    /// Returns an integer parameter from `low` to `high`, or `default` if it is absent or null. As
    /// in Python, true and false count as 1 and 0, and floats without a fraction as integers.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is no such integer.
    /// [`CodecConfig::text`] and [`CodecConfig::dtype`] fail likewise.
    pub fn int(&self, name: &str, default: i64, low: i64, high: i64) -> Result<i64> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        let whole = json::float(value)
            .filter(|f| f.fract() == 0.0 && f.abs() < 9e15)
            .map(|f| f as i64);
        let n = value
            .as_i64()
            .or(value.as_bool().map(i64::from))
            .or(whole)
            .ok_or_else(|| self.invalid(name, "is not an integer"))?;
        if !(low..=high).contains(&n) {
            return Err(self.invalid(name, &format!("is {n}, not between {low} and {high}")));
        }
        Ok(n)
    }

    /// Returns a string parameter, or `default` if it is absent or null.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str> {
        self.get(name).map_or(Ok(default), |v| {
            json::text(v).ok_or_else(|| self.invalid(name, "is not a string"))
        })
    }

    /// Returns a dtype parameter, or `None` if it is absent or null.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>> {
        self.get(name)
            .map(|value| DType::parse(value).map_err(|e| self.invalid(name, e.message())))
            .transpose()
    }

    /// Returns the error for a wrong value of parameter `name`. `why` follows the name, as in "is
    /// not an integer".
    pub fn invalid(&self, name: &str, why: &str) -> Error {
        Error::damaged(format!("codec {:?}: {name} {why}", self.id))
    }
}
