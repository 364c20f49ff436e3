//! Extension points of v3 documents: objects of a name and a configuration, or the bare name.
//! Source of the rules: the Zarr v3.1 specification, "Extension definition".

use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};

/// A codec, a chunk grid or a chunk key encoding.
#[derive(Clone, Debug, PartialEq)]
pub struct Extension {
    /// The name, such as `gzip`.
    pub name: String,
    /// The members of `configuration`; empty if there is none.
    pub configuration: Map<String, Value>,
}

impl Extension {
    /// Parses the value of the field `field`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it has no name or no valid
    /// configuration, [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown
    /// member.
    pub fn parse(value: &Value, field: &str) -> Result<Self> {
        if let Some(name) = json::text(value) {
            return Ok(Extension {
                name: name.to_string(),
                configuration: Map::new(),
            });
        }
        let object = value
            .as_object()
            .ok_or_else(|| Error::damaged(format!("{field} is not an object with a name")))?;
        let name = object.get("name").and_then(json::text);
        let name = name.ok_or_else(|| Error::damaged(format!("{field} has no name")))?;
        let configuration = match object.get("configuration") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(configuration)) => configuration.clone(),
            Some(_) => {
                return Err(Error::damaged(format!(
                    "{field}: the configuration of {name:?} is not an object"
                )));
            }
        };
        if object
            .get("must_understand")
            .is_some_and(|value| !value.is_boolean())
        {
            return Err(Error::damaged(format!(
                "{field}: must_understand of {name:?} is not a boolean"
            )));
        }
        const MEMBERS: [&str; 3] = ["name", "configuration", "must_understand"];
        match object
            .keys()
            .find(|member| !MEMBERS.contains(&member.as_str()))
        {
            Some(member) => Err(Error::unsupported(format!(
                "{field}: {name:?} has an unknown member {member:?}"
            ))),
            None => Ok(Extension {
                name: name.to_string(),
                configuration,
            }),
        }
    }

    /// Checks that the configuration has no other members than `known`. An unknown one may change
    /// the meaning of the bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) otherwise.
    pub fn allow_only(&self, known: &[&str]) -> Result<()> {
        match self
            .configuration
            .keys()
            .find(|name| !known.contains(&name.as_str()))
        {
            Some(name) => Err(Error::unsupported(format!(
                "{:?} has no parameter {name:?}",
                self.name
            ))),
            None => Ok(()),
        }
    }

    /// Returns a member of the configuration, or `None` if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.configuration
            .get(name)
            .filter(|value| !value.is_null())
    }

    /// Returns a string of the configuration, or `default` if it is absent or null.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is not a string.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str> {
        self.get(name).map_or(Ok(default), |value| {
            json::text(value).ok_or_else(|| self.invalid(name, "is not a string"))
        })
    }

    /// Returns a list of non-negative integers of the configuration.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is absent or anything else.
    pub fn lengths(&self, name: &str) -> Result<Vec<u64>> {
        let list = self.get(name).and_then(Value::as_array);
        let lengths = list.and_then(|list| {
            list.iter()
                .map(|value| value.as_u64().filter(|n| *n <= i64::MAX as u64))
                .collect()
        });
        lengths.ok_or_else(|| self.invalid(name, "is not a list of integers"))
    }

    /// Returns the error for a wrong value of parameter `name`. `why` follows the name, as in "is
    /// not an integer".
    pub fn invalid(&self, name: &str, why: &str) -> Error {
        Error::damaged(format!("{:?}: {name} {why}", self.name))
    }
}
