//! Names in double braces, which references use for what many targets have in common. Names are
//! replaced by texts; nothing is evaluated, so that a document cannot run anything, nor take time
//! that does not follow from its size.

use super::MAX_NAME;
use std::borrow::Cow;
use zarrfs_base::error::{Error, Result};

/// Returns the text for a name.
pub(super) type Substitute<'a> = &'a dyn Fn(&str) -> Option<Cow<'a, str>>;

/// Replaces `{{name}}` in a text.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for anything else in braces, and
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) for an unknown name and for a result longer
/// than a key.
pub(super) fn substitute(text: &str, templates: Substitute) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once("{{").unwrap_or((rest, ""));
        if before.contains("{%") || before.contains("{#") {
            return Err(expression(before));
        }
        out.push_str(before);
        if before.len() < rest.len() {
            let (inner, behind) = after.split_once("}}").ok_or_else(|| expression(text))?;
            let name = inner.trim();
            if !is_name(name) {
                return Err(expression(&format!("{{{{{inner}}}}}")));
            }
            let Some(text) = templates(name) else {
                let why = format!("the template {name:?} is not defined");
                return Err(Error::damaged(why));
            };
            out.push_str(&text);
            rest = behind;
        } else {
            rest = "";
        }
        if out.len() > MAX_NAME {
            return Err(Error::damaged(format!(
                "a template makes a text of more than {MAX_NAME} bytes"
            )));
        }
        if rest.is_empty() {
            return Ok(out);
        }
    }
}

/// Returns the error for something that would have to be evaluated.
pub(super) fn expression(text: &str) -> Error {
    let text: String = text.chars().take(80).collect();
    Error::unsupported(format!(
        "{text:?} is an expression, which is not evaluated; write the references without it"
    ))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !text.starts_with(|c: char| c.is_numeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::error::Kind;

    fn expanded(text: &str) -> Result<String> {
        substitute(text, &|name| match name {
            "u" => Some("s3://b/x".into()),
            "long" => Some("x".repeat(1000).into()),
            "own" => Some("{{own}}".into()),
            _ => None,
        })
    }

    #[test]
    fn names_are_replaced_once() {
        for (text, expected) in [
            ("a", "a"),
            ("", ""),
            ("{{u}}", "s3://b/x"),
            ("{{ u }}/{{u}}y", "s3://b/x/s3://b/xy"),
            ("{u}}", "{u}}"),
            ("{{own}}", "{{own}}"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn expressions_are_refused_by_name() {
        for text in [
            "{{f(c='x')}}",
            "{{(i + 1) * 1000}}",
            "{{u",
            "{{}}",
            "{{u.x}}",
            "{% for %}",
            "{{1}}",
            "{{{u}}}",
            "x{#",
        ] {
            let e = expanded(text).unwrap_err();
            assert_eq!(e.kind(), Kind::Unsupported, "{text}");
            assert!(e.message().contains("expression"), "{e}");
        }
        assert_eq!(
            expanded("{{v}}").unwrap_err().message(),
            "the template \"v\" is not defined"
        );
    }

    #[test]
    fn a_long_text_ends_the_expansion() {
        let e = expanded(&"{{long}}".repeat(1 << 16)).unwrap_err();
        assert!(
            e.kind() == Kind::Damaged && e.message().contains("more than"),
            "{e}"
        );
    }
}
