//! Reads a JSON document block by block, so that only the kept parts of a document take memory. The
//! module does not know the meaning of a document.
//!
//! Nothing here is recursive: nested values are taken as text, and parsed by the module that wants
//! them.

use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::json::without_mark;
use zarrfs_base::memory::Grant;

/// Memory of a string in relation to its capacity: base64 is decoded while the text is there.
const MEMORY_OF_TEXT: usize = 5;

/// Maximum length of a number in bytes.
const MAX_NUMBER: usize = 32;

/// A source of blocks: replaces the content of its argument by the next block, which is empty at
/// the end.
pub(super) type NextBlock<'a> = dyn FnMut(&mut Vec<u8>) -> Result<()> + 'a;

/// A JSON document that is being read.
pub(super) struct JsonText<'a> {
    next: &'a mut NextBlock<'a>,
    block: Vec<u8>,
    /// Position in the block.
    at: usize,
    /// Number of bytes before the block.
    before: u64,
    /// Memory of the string that is being read.
    scratch: Grant,
}

impl<'a> JsonText<'a> {
    /// Begins to read a document.
    pub fn new(next: &'a mut NextBlock<'a>) -> Self {
        JsonText {
            next,
            block: Vec::new(),
            at: 0,
            before: 0,
            scratch: Grant::default(),
        }
    }

    /// Calls `each` with the name of each member of an object, which must read the value.
    pub fn members(
        &mut self,
        limit: usize,
        each: &mut dyn FnMut(&mut Self, String) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{', "an object")?;
        if self.skip_if(b'}')? {
            return Ok(());
        }
        loop {
            let name = self.string(limit)?;
            self.expect(b':', "a colon")?;
            each(self, name)?;
            if self.skip_if(b'}')? {
                return Ok(());
            }
            self.expect(b',', "a comma")?;
        }
    }

    /// Calls `each` before each item of a list, which it must read.
    pub fn items(&mut self, each: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(b'[', "a list")?;
        if self.skip_if(b']')? {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.skip_if(b']')? {
                return Ok(());
            }
            self.expect(b',', "a comma")?;
        }
    }

    /// Reads a string of at most `limit` bytes.
    pub fn string(&mut self, limit: usize) -> Result<String> {
        self.expect(b'"', "a string")?;
        let mut text = Vec::new();
        loop {
            match self.byte()? {
                b'"' => break,
                b'\\' => {
                    let c = self.escaped()?;
                    let mut bytes = [0; 4];
                    for &byte in c.encode_utf8(&mut bytes).as_bytes() {
                        self.push(&mut text, byte)?;
                    }
                }
                byte if byte < b' ' => return Err(self.wrong("a control character in a string")),
                byte => self.push(&mut text, byte)?,
            }
            if text.len() > limit {
                return Err(self.wrong(&format!("a string of more than {limit} bytes")));
            }
        }
        String::from_utf8(text).map_err(|_| self.wrong("not UTF-8"))
    }

    /// Reads a value of any kind, and returns it if it is a whole number from 0 to 2^64 - 1.
    pub fn integer(&mut self) -> Result<Option<u64>> {
        let mut text = String::new();
        self.take_value(&mut |_, byte| {
            if text.len() <= MAX_NUMBER {
                text.push(byte.into());
            }
            Ok(())
        })?;
        Ok(text.trim_end().parse().ok())
    }

    /// Reads a value of any kind, and returns its text, of at most `limit` bytes.
    pub fn value(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.take_value(&mut |json, byte| {
            if text.len() < limit {
                json.push(&mut text, byte)
            } else {
                Err(json.wrong(&format!("a value of more than {limit} bytes")))
            }
        })?;
        Ok(text)
    }

    /// Reads a value of any kind, and forgets it.
    pub fn skip(&mut self) -> Result<()> {
        self.take_value(&mut |_, _| Ok(()))
    }

    /// Calls `each` with the bytes of a value. Only strings and brackets are looked at.
    fn take_value(&mut self, each: &mut dyn FnMut(&mut Self, u8) -> Result<()>) -> Result<()> {
        let mut depth = 0usize;
        let mut is_string = false;
        let mut taken = 0u64;
        self.peek()?;
        while let Some(byte) = self.look()? {
            match byte {
                b'"' => is_string = !is_string,
                _ if is_string => {}
                b'{' | b'[' => depth += 1,
                // the bracket or comma belongs to the enclosing value
                b'}' | b']' | b',' if depth == 0 => {
                    return if taken > 0 {
                        Ok(())
                    } else {
                        Err(self.wrong("a value expected"))
                    };
                }
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            taken += 1;
            each(self, byte)?;
            if is_string && byte == b'\\' {
                let escaped = self.byte()?;
                each(self, escaped)?;
            }
            if depth == 0 && !is_string && b"}]\"".contains(&byte) {
                return Ok(());
            }
        }
        Err(self.ended())
    }

    /// Checks that nothing follows the value.
    pub fn end(&mut self) -> Result<()> {
        match self.after_space()? {
            None => Ok(()),
            Some(_) => Err(self.wrong("more text after the document")),
        }
    }

    /// Returns the byte with which the next value begins, and leaves it.
    pub fn peek(&mut self) -> Result<u8> {
        self.after_space()?.ok_or_else(|| self.ended())
    }

    /// Returns an error that names the position in the document.
    pub fn wrong(&self, why: &str) -> Error {
        Error::damaged(format!("byte {}: {why}", self.before + self.at as u64))
    }

    fn ended(&self) -> Error {
        self.wrong("the document ends too early")
    }

    fn skip_if(&mut self, wanted: u8) -> Result<bool> {
        let is_there = self.peek()? == wanted;
        self.at += usize::from(is_there);
        Ok(is_there)
    }

    fn expect(&mut self, wanted: u8, what: &str) -> Result<()> {
        if self.skip_if(wanted)? {
            Ok(())
        } else {
            Err(self.wrong(&format!("{what} expected")))
        }
    }

    fn after_space(&mut self) -> Result<Option<u8>> {
        while let Some(byte) = self.look()? {
            if !b" \t\r\n".contains(&byte) {
                return Ok(Some(byte));
            }
            self.at += 1;
        }
        Ok(None)
    }

    /// Returns the next byte, and leaves it.
    fn look(&mut self) -> Result<Option<u8>> {
        if self.at == self.block.len() {
            self.before += self.at as u64;
            self.at = 0;
            (self.next)(&mut self.block)?;
            if self.before == 0 {
                self.at = self.block.len() - without_mark(&self.block).len();
            }
        }
        Ok(self.block.get(self.at).copied())
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.look()?.ok_or_else(|| self.ended())?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self) -> Result<char> {
        Ok(match self.byte()? {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            byte @ (b'"' | b'\\' | b'/') => byte.into(),
            b'u' => {
                let unit = self.unit()?;
                let is_pair = (0xd800..0xdc00).contains(&unit);
                if is_pair && (self.byte()? != b'\\' || self.byte()? != b'u') {
                    return Err(self.wrong("half a character"));
                }
                let second = if is_pair { Some(self.unit()?) } else { None };
                let units = std::iter::once(unit).chain(second);
                let decoded = char::decode_utf16(units)
                    .next()
                    .and_then(std::result::Result::ok);
                decoded.ok_or_else(|| self.wrong("half a character"))?
            }
            _ => return Err(self.wrong("an unknown escape in a string")),
        })
    }

    fn unit(&mut self) -> Result<u16> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = char::from(self.byte()?)
                .to_digit(16)
                .ok_or_else(|| self.wrong("not a hexadecimal digit"))?;
            unit = unit << 4 | digit as u16;
        }
        Ok(unit)
    }

    /// Appends a byte to a string. Its memory is granted before it grows.
    fn push(&mut self, text: &mut Vec<u8>, byte: u8) -> Result<()> {
        if text.len() == text.capacity() {
            let capacity = text.capacity().saturating_mul(2).max(64);
            let wanted = capacity.saturating_mul(MEMORY_OF_TEXT);
            if wanted > self.scratch.bytes() {
                self.scratch.grow(wanted - self.scratch.bytes())?;
            }
            let failed = |_| {
                Error::new(
                    Kind::System(libc::ENOMEM),
                    format!("a string of {capacity} bytes"),
                )
            };
            text.try_reserve_exact(capacity - text.len())
                .map_err(failed)?;
        }
        text.push(byte);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a document in blocks of two bytes.
    fn read<T>(text: &str, read: impl FnOnce(&mut JsonText) -> Result<T>) -> Result<T> {
        let mut blocks = text.as_bytes().chunks(2);
        let mut next = |block: &mut Vec<u8>| {
            *block = blocks.next().unwrap_or_default().to_vec();
            Ok(())
        };
        let mut json = JsonText::new(&mut next);
        let value = read(&mut json)?;
        json.end()?;
        Ok(value)
    }

    #[test]
    fn strings_are_read_as_json_says() {
        let string = |text: &str| read(text, |json| json.string(40));
        assert_eq!(
            string(r#" "a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é" "#).unwrap(),
            "a\"\\/\u{8}\u{c}\n\r\té😀é"
        );
        let long = format!("\"{}\"", "x".repeat(41));
        for text in [
            "",
            "\"",
            "x",
            r#""\x""#,
            r#""\ud800""#,
            r#""\ud800\u0041""#,
            r#""\u12g4""#,
            "\"\n\"",
            &long,
            "\"\" x",
        ] {
            assert_eq!(string(text).unwrap_err().kind(), Kind::Damaged, "{text}");
        }
    }

    #[test]
    fn numbers_are_whole_and_not_negative() {
        let number = |text: &str| {
            let mut number = None;
            read(&format!("[{text}]"), |json| {
                json.items(&mut |json| {
                    number = json.integer()?;
                    Ok(())
                })
            })
            .unwrap();
            number
        };
        assert_eq!(number(" 18446744073709551615 "), Some(u64::MAX));
        for text in [
            "-1",
            "1.5",
            "1e3",
            "null",
            "18446744073709551616",
            "\"1\"",
            "[]",
            "[1, {\"]\": 2}]",
            "99999999999999999999999999999999999",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
        assert!(read("", |json| json.integer()).is_err());
    }

    #[test]
    fn values_are_taken_as_text_however_deep_they_are() {
        let value = |text: &str| {
            read(text, |json| json.value(1 << 20)).map(|v| String::from_utf8(v).unwrap())
        };
        for text in ["{}", r#"{"a]":["}\"",{}]}"#, r#""[\"""#, "[[],{}]"] {
            assert_eq!(value(&format!(" {text} ")).unwrap(), text);
        }
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(value(&deep).unwrap(), deep);
        assert!(value("[[]").is_err() && value("\"").is_err());
        assert!(
            read("[1,2,3]", |json| json.value(3))
                .unwrap_err()
                .message()
                .contains("byte")
        );
    }

    #[test]
    fn members_and_items_are_separated_by_commas() {
        let names = |text: &str| {
            let mut names = Vec::new();
            read(text, |json| {
                json.members(9, &mut |json, name| {
                    names.push(name);
                    json.skip()
                })
            })
            .map(|()| names)
        };
        assert_eq!(
            names(r#" { "a" : 1 , "b":[2,{}],"a":"x" } "#).unwrap(),
            ["a", "b", "a"]
        );
        assert_eq!(names("{}").unwrap(), [""; 0]);
        for text in [
            "{",
            "[]",
            r#"{"a"}"#,
            r#"{"a":1,}"#,
            r#"{"a":1 "b":2}"#,
            r#"{"a":1"#,
            "{} {}",
            "{a:1}",
            r#"{"a":}"#,
        ] {
            assert!(names(text).is_err(), "{text}");
        }
        assert!(read("[1,2", |json| json.items(&mut |json| json.skip())).is_err());
    }
}
