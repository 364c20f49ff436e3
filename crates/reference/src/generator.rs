//! Generators: references that a document describes by a pattern and ranges of numbers. The memory
//! of all that a generator makes is granted before it makes any.

use super::index::ReferenceIndex;
use super::template::{Substitute, substitute};
use std::borrow::Cow;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};

/// A generator of references.
struct Generator {
    key: String,
    url: String,
    /// Offset and length.
    range: Option<(String, String)>,
    dimensions: Vec<(String, Dimension)>,
}

/// The values of a name.
enum Dimension {
    Range { start: i64, step: i64, len: usize },
    List(Vec<String>),
}

/// Adds the references that a generator makes.
///
/// # Errors
///
/// Fails if the generator is invalid, if it contains expressions, or if its references need too
/// much memory.
pub(super) fn generate(
    generator: &json::Object,
    templates: Substitute,
    index: &mut ReferenceIndex,
) -> Result<()> {
    let generator = Generator::parse(generator)?;
    let lens = generator
        .dimensions
        .iter()
        .map(|(_, dimension)| dimension.len());
    let count = lens.fold(1usize, usize::saturating_mul);
    index.reserve(count)?;
    let mut at = vec![0; generator.dimensions.len()];
    for _ in 0..count {
        generator.add(&at, templates, index)?;
        // the last dimension varies fastest
        for (position, (_, dimension)) in at.iter_mut().zip(&generator.dimensions).rev() {
            *position += 1;
            if *position < dimension.len() {
                break;
            }
            *position = 0;
        }
    }
    Ok(())
}

impl Generator {
    fn parse(object: &json::Object) -> Result<Self> {
        let range = match (text(object, "offset")?, text(object, "length")?) {
            (Some(offset), Some(length)) => Some((offset, length)),
            (None, None) => None,
            _ => {
                return Err(Error::damaged(
                    "a generator with only one of offset and length",
                ));
            }
        };
        let Some(Value::Object(dimensions)) = object.get("dimensions") else {
            return Err(Error::damaged("a generator without dimensions"));
        };
        let dimensions = dimensions.iter().map(|(name, values)| {
            let dimension = Dimension::parse(values).ok_or_else(|| {
                Error::damaged(format!(
                    "the dimension {name:?} of a generator is neither a list nor a range"
                ))
            })?;
            Ok((name.clone(), dimension))
        });
        Ok(Generator {
            key: needed_text(object, "key")?,
            url: needed_text(object, "url")?,
            range,
            dimensions: dimensions.collect::<Result<_>>()?,
        })
    }

    /// Adds the reference at these positions of the dimensions.
    fn add(&self, at: &[usize], templates: Substitute, index: &mut ReferenceIndex) -> Result<()> {
        let texts: Substitute = &|name| {
            let own = self
                .dimensions
                .iter()
                .zip(at)
                .find(|((known, _), _)| known == name);
            own.map(|((_, dimension), &position)| dimension.at(position).into())
                .or_else(|| templates(name).map(|text: Cow<str>| Cow::Owned(text.into_owned())))
        };
        let range = match &self.range {
            Some((offset, length)) => Some((number(offset, texts)?, number(length, texts)?)),
            None => None,
        };
        index.add_target(
            &substitute(&self.key, texts)?,
            &substitute(&self.url, texts)?,
            range,
        )
    }
}

/// Returns a member of a generator as text.
fn text(generator: &json::Object, name: &str) -> Result<Option<String>> {
    match generator.get(name) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(Error::damaged(format!("{name} of a generator is no text"))),
        None => Ok(None),
    }
}

fn needed_text(generator: &json::Object, name: &str) -> Result<String> {
    text(generator, name)?.ok_or_else(|| Error::damaged(format!("a generator without {name}")))
}

/// Returns the offset or length that a text with templates states.
fn number(text: &str, templates: Substitute) -> Result<u64> {
    let text = substitute(text, templates)?;
    text.trim()
        .parse()
        .map_err(|_| Error::damaged(format!("{text:?} instead of an offset or a length")))
}

impl Dimension {
    /// Parses a list of texts and numbers, or a range. Returns `None` for anything else.
    fn parse(values: &Value) -> Option<Self> {
        match values {
            Value::Array(values) => {
                let texts = values.iter().map(|value| match value {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(number.to_string()),
                    _ => None,
                });
                Some(Dimension::List(texts.collect::<Option<_>>()?))
            }
            Value::Object(range) => {
                let start = range.get("start").map_or(Some(0), Value::as_i64)?;
                let stop = range.get("stop")?.as_i64()?;
                let step = range.get("step").map_or(Some(1), Value::as_i64)?;
                Dimension::range(start, stop, step)
            }
            _ => None,
        }
    }

    /// Returns the numbers of Python's `range`.
    fn range(start: i64, stop: i64, step: i64) -> Option<Self> {
        let distance = i128::from(stop) - i128::from(start);
        let width = i128::from(step);
        let len = match width.signum() {
            0 => return None,
            sign => ((distance * sign).max(0) + width.abs() - 1) / width.abs(),
        };
        Some(Dimension::Range {
            start,
            step,
            len: usize::try_from(len).ok()?,
        })
    }

    fn len(&self) -> usize {
        match self {
            Dimension::Range { len, .. } => *len,
            Dimension::List(texts) => texts.len(),
        }
    }

    fn at(&self, position: usize) -> String {
        match self {
            Dimension::Range { start, step, .. } => {
                (i128::from(*start) + i128::from(*step) * position as i128).to_string()
            }
            Dimension::List(texts) => texts.get(position).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::Referenced;
    use super::*;
    use zarrfs_base::error::Kind;

    fn generated(text: &str) -> Result<ReferenceIndex> {
        let mut index = ReferenceIndex::default();
        let object = json::parse_object(text.as_bytes())?;
        generate(
            &object,
            &|name| (name == "u").then(|| "dir".into()),
            &mut index,
        )?;
        index.finish()?;
        Ok(index)
    }

    #[test]
    fn all_combinations_are_made() {
        let index = generated(
            r#"{"key": "a/{{i}}.{{ k }}", "url": "{{u}}/{{k}}.nc", "offset": "{{i}}00", "length": 100,
                "dimensions": {"i": {"start": 5, "stop": 0, "step": -2}, "k": ["x", 7]}}"#,
        )
        .unwrap();
        let keys: Vec<_> = (0..7).map_while(|i| index.key_at(i)).collect();
        assert_eq!(keys, ["a/1.7", "a/1.x", "a/3.7", "a/3.x", "a/5.7", "a/5.x"]);
        assert_eq!(
            index.find("a/3.x").unwrap(),
            Some(Referenced::Range {
                target: "dir/x.nc",
                offset: 300,
                len: 100
            })
        );
        let whole =
            generated(r#"{"key": "{{i}}", "url": "x", "dimensions": {"i": {"stop": 2}}}"#).unwrap();
        assert_eq!(whole.find("1").unwrap(), Some(Referenced::Whole("x")));
        let none = generated(r#"{"key": "{{i}}", "url": "x", "dimensions": {"i": []}}"#).unwrap();
        assert_eq!(none.key_at(0), None);
    }

    #[test]
    fn a_generator_that_needs_too_much_memory_makes_nothing() {
        for (key, stop) in [
            ("{{i}}", "9223372036854775807"),
            ("../x", "100000000000"),
            ("a", "2000000000"),
        ] {
            let text = format!(
                r#"{{"key": "{key}", "url": "x", "dimensions": {{"i": {{"stop": {stop}}}, "j": {{"stop": {stop}}}}}}}"#
            );
            let Err(e) = generated(&text) else {
                panic!("{text}")
            };
            assert!(e.message().contains("--cache-size"), "{e}");
        }
    }

    #[test]
    fn invalid_generators_and_expressions_are_refused() {
        for (text, kind) in [
            (
                r#"{"key": "{{i+1}}", "url": "x", "dimensions": {"i": [1]}}"#,
                Kind::Unsupported,
            ),
            (
                r#"{"key": "a", "url": "x", "offset": "{{i * 2}}", "length": "1", "dimensions": {"i": [1]}}"#,
                Kind::Unsupported,
            ),
            (
                r#"{"key": "a", "url": "{{z}}", "dimensions": {"i": [1]}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "offset": "1", "dimensions": {}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "offset": "-1", "length": "1", "dimensions": {}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "offset": "1.5", "length": "1", "dimensions": {}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "offset": [], "length": "1", "dimensions": {}}"#,
                Kind::Damaged,
            ),
            (r#"{"key": "a", "url": "x"}"#, Kind::Damaged),
            (
                r#"{"key": "a", "url": "x", "dimensions": []}"#,
                Kind::Damaged,
            ),
            (r#"{"url": "x", "dimensions": {}}"#, Kind::Damaged),
            (
                r#"{"key": "a", "url": "x", "dimensions": {"i": {"stop": 9, "step": 0}}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "dimensions": {"i": {"start": 9}}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "dimensions": {"i": {"stop": 1e3}}}"#,
                Kind::Damaged,
            ),
            (
                r#"{"key": "a", "url": "x", "dimensions": {"i": [{}]}}"#,
                Kind::Damaged,
            ),
        ] {
            let Err(e) = generated(text) else {
                panic!("{text}")
            };
            assert_eq!(e.kind(), kind, "{text}: {e}");
        }
    }
}
