//! Parses a document of references: version 0, an object of references by key, and version 1 with
//! templates and generators. The form is that of fsspec's `ReferenceFileSystem`.

use super::index::ReferenceIndex;
use super::json_text::JsonText;
use super::template::{Substitute, expression};
use super::{MAX_NAME, generator};
use std::borrow::Cow;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::json::{self, Value};

/// Maximum size in bytes of the templates, and of one generator.
const MAX_RULES: usize = 1 << 20;

/// What a document says beside its references.
#[derive(Default)]
struct Rules {
    templates: Option<json::Object>,
    generators: Vec<json::Object>,
    /// Whether the document has the members of version 1.
    is_first: bool,
    /// Whether the document has references at its top, as version 0.
    is_zeroth: bool,
}

/// Reads all references of a document.
///
/// # Errors
///
/// [`Kind::Damaged`] for anything that is no document of references or that needs more memory than
/// there is, [`Kind::Unsupported`] for other versions and for expressions in templates and
/// generators. A reference that cannot be used is no error here: reading its key is.
pub(super) fn parse(text: &mut JsonText) -> Result<ReferenceIndex> {
    let mut index = ReferenceIndex::default();
    let mut rules = Rules::default();
    text.members(MAX_NAME, &mut |text, name| {
        member(text, &name, &mut rules, &mut index)
    })?;
    text.end()?;
    if rules.is_first && rules.is_zeroth {
        return Err(Error::damaged("references beside the member refs"));
    }
    let templates = rules.templates.take().unwrap_or_default();
    let texts: Substitute = &|name| templates.get(name).and_then(Value::as_str).map(Cow::from);
    // without templates, braces are braces
    if !templates.is_empty() {
        check_templates(&templates)?;
        index.substitute(texts)?;
    }
    for generator in std::mem::take(&mut rules.generators) {
        generator::generate(&generator, texts, &mut index)?;
    }
    index.finish()?;
    Ok(index)
}

/// Reads a member of the document.
fn member(
    text: &mut JsonText,
    name: &str,
    rules: &mut Rules,
    index: &mut ReferenceIndex,
) -> Result<()> {
    let begins = text.peek()?;
    match name {
        "version" if begins.is_ascii_digit() => {
            rules.is_first = true;
            match text.integer()? {
                Some(1) => Ok(()),
                None => Err(text.wrong("the version of the references is no number")),
                Some(other) => Err(Error::unsupported(format!(
                    "version {other} of references; version 1 is supported"
                ))),
            }
        }
        "templates" if begins == b'{' || rules.is_first => {
            rules.is_first = true;
            rules.templates = Some(object(text)?);
            Ok(())
        }
        "gen" if begins == b'[' || rules.is_first => {
            rules.is_first = true;
            text.items(&mut |text| {
                rules.generators.push(object(text)?);
                Ok(())
            })
        }
        "refs" if begins == b'{' || rules.is_first => {
            rules.is_first = true;
            text.members(MAX_NAME, &mut |text, key| reference(text, &key, index))
        }
        _ if rules.is_first => text.skip(),
        _ => {
            rules.is_zeroth = true;
            reference(text, name, index)
        }
    }
}

/// Reads templates or a generator.
fn object(text: &mut JsonText) -> Result<json::Object> {
    let value = text.value(MAX_RULES)?;
    json::parse_object(&value).map_err(|e| text.wrong(e.message()))
}

/// Checks that templates are texts without names: those with parameters would have to be evaluated.
fn check_templates(templates: &json::Object) -> Result<()> {
    for (name, value) in templates {
        match value {
            Value::String(text) if text.contains("{{") || text.contains("{%") => {
                return Err(expression(text));
            }
            Value::String(_) => {}
            _ => return Err(Error::damaged(format!("the template {name:?} is no text"))),
        }
    }
    Ok(())
}

/// Reads a reference. One of another form than these concerns its key only.
fn reference(text: &mut JsonText, key: &str, index: &mut ReferenceIndex) -> Result<()> {
    match text.peek()? {
        b'"' => {
            let value = text.string(usize::MAX)?;
            match value.strip_prefix("base64:") {
                Some(encoded) => match decoded(encoded) {
                    Some(bytes) => index.add_inline(key, &bytes),
                    None => index.add_faulty(key, "not base64"),
                },
                None => index.add_inline(key, value.as_bytes()),
            }
        }
        b'{' => {
            let value = text.value(usize::MAX)?;
            match json::check_object(&value) {
                Ok(()) => index.add_inline(key, &value),
                Err(e) if e.kind() == Kind::Damaged => index.add_faulty(key, e.message()),
                Err(e) => Err(e.context(format!("{key:?}"))),
            }
        }
        b'[' => list(text, key, index),
        _ => {
            text.skip()?;
            index.add_faulty(key, "neither a text nor a list [URL, OFFSET, LENGTH]")
        }
    }
}

/// Reads a reference to a target.
fn list(text: &mut JsonText, key: &str, index: &mut ReferenceIndex) -> Result<()> {
    let mut count = 0u64;
    let mut target = None;
    let mut numbers = Vec::new();
    text.items(&mut |text| {
        count += 1;
        if count == 1 && text.peek()? == b'"' {
            target = Some(text.string(usize::MAX)?);
        } else if let Some(number) = text.integer()?
            && count <= 3
        {
            numbers.push(number);
        }
        Ok(())
    })
    .map_err(|e| e.context(format!("{key:?}")))?;
    match (target, numbers.as_slice()) {
        (Some(target), []) if count == 1 => index.add_target(key, &target, None),
        (Some(target), &[offset, len]) if count == 3 => {
            index.add_target(key, &target, Some((offset, len)))
        }
        _ => index.add_faulty(
            key,
            "neither [URL] nor [URL, OFFSET, LENGTH] with numbers from 0 to 2^64 - 1",
        ),
    }
}

/// Decodes base64. Unlike Python, refuses other characters: a value that lost some would be another
/// one.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+/=\n\r".contains(&byte));
    if is_plain {
        json::base64_decode(text.as_bytes())
    } else {
        None
    }
}
