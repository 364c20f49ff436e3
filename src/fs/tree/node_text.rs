//! Nodes as texts, in which they outlive the daemon: a letter, the key, and what else the kind of
//! node has, divided by zeros. A key has no zero.

use super::node::{ControlFile, LayoutSource, View, ViewedFile};
use super::{FLAT, Node};
use crate::array::hierarchy::MetadataFile;
use std::sync::Arc;
use zarrfs_export::{Format, GroupFormat};
use zarrfs_store::Key;

/// Returns the text of a node.
pub fn to_text(node: &Node) -> String {
    let key = node.key().map_or("", Key::as_str);
    let mut parts = vec![key.to_string()];
    if let Some((_, view)) = node.view() {
        parts.push(view_text(view));
    }
    let letter = match node {
        Node::Directory(_) => 'd',
        Node::Flat(_) => 'f',
        Node::Value(_) => 'v',
        Node::Ingested(_) => 'i',
        Node::Unreadable(_) => 'u',
        Node::ViewDirectory(..) => 'D',
        Node::ControlDirectory => 'C',
        Node::Header(_, format) => {
            parts.push(format.name().to_string());
            'h'
        }
        Node::Dataset(_, format) => {
            parts.push(format.name().to_string());
            'g'
        }
        Node::LayoutFile(path, source) => {
            let format = source.format.map_or("", GroupFormat::name);
            parts.extend([path.as_str().to_string(), format.to_string()]);
            'l'
        }
        Node::ViewFile(_, _, file) => {
            parts.push(file.name().to_string());
            'F'
        }
        Node::Chunk(_, name) => {
            parts.push(name.clone());
            'c'
        }
        Node::Metadata(_, file) => {
            parts.push(file.name().to_string());
            'm'
        }
        Node::Control(file) => {
            parts.push(file.name().to_string());
            's'
        }
    };
    format!("{letter}{}", parts.join("\0"))
}

/// Returns the node of a text; `None` for a text that no node has.
pub fn from_text(text: &str) -> Option<Node> {
    let mut letters = text.chars();
    let letter = letters.next()?;
    let mut parts = letters.as_str().split('\0');
    let key = parts.next()?;
    let key = if key.is_empty() {
        Key::root()
    } else {
        Key::root().join(key)
    };
    let mut part = || parts.next();
    Some(match letter {
        'd' => Node::Directory(key),
        'f' => Node::Flat(key),
        'v' => Node::Value(key),
        'i' => Node::Ingested(key),
        'u' => Node::Unreadable(key),
        'D' => Node::ViewDirectory(key, view(part()?)?),
        'C' => Node::ControlDirectory,
        'h' => Node::Header(key, Format::of_name(part()?)?),
        'g' => Node::Dataset(key, GroupFormat::of_name(part()?)?),
        'F' => {
            let view = view(part()?)?;
            let file = match part()? {
                FLAT => ViewedFile::Flat,
                name => ViewedFile::Header(Format::of_name(name)?),
            };
            Node::ViewFile(key, view, file)
        }
        'l' => {
            let path = Key::root().join(part()?);
            let format = match part()? {
                "" => None,
                name => Some(GroupFormat::of_name(name)?),
            };
            Node::LayoutFile(path, Arc::new(LayoutSource { group: key, format }))
        }
        'c' => Node::Chunk(key, part()?.to_string()),
        'm' => Node::Metadata(key, MetadataFile::of_name(part()?)?),
        's' => {
            let name = part()?;
            let file = ControlFile::ALL
                .into_iter()
                .find(|file| file.name() == name);
            Node::Control(file?)
        }
        _ => return None,
    })
}

fn view_text(view: &View) -> String {
    match view {
        View::Unpacked => "u".to_string(),
        View::Slices(indices) => {
            let indices: Vec<String> = indices.iter().map(u64::to_string).collect();
            format!("s{}", indices.join("."))
        }
    }
}

fn view(text: &str) -> Option<View> {
    match text.strip_prefix('s') {
        None => Some(View::Unpacked),
        Some("") => Some(View::Slices(Vec::new())),
        Some(indices) => {
            let indices = indices.split('.').map(|index| index.parse().ok());
            indices.collect::<Option<Vec<u64>>>().map(View::Slices)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_node_has_a_text() {
        let key = Key::root().join("a/b");
        let slices = View::Slices(vec![3, 14]);
        let layout = |format| {
            let group = key.clone();
            let path = Key::root().join("tas/tas_1990.nc");
            Node::LayoutFile(path, Arc::new(LayoutSource { group, format }))
        };
        for node in [
            Node::Directory(Key::root()),
            Node::Directory(key.clone()),
            Node::Flat(key.clone()),
            Node::Header(key.clone(), Format::Npy),
            Node::Dataset(Key::root(), GroupFormat::Hdf5),
            Node::ViewDirectory(key.clone(), View::Unpacked),
            Node::ViewDirectory(key.clone(), View::Slices(Vec::new())),
            Node::ViewFile(key.clone(), slices.clone(), ViewedFile::Flat),
            Node::ViewFile(key.clone(), slices, ViewedFile::Header(Format::Envi)),
            layout(None),
            layout(Some(GroupFormat::Hdf5)),
            Node::Chunk(key.clone(), "c/0/1".to_string()),
            Node::Metadata(key.clone(), MetadataFile::Zarr),
            Node::Value(Key::root().join("x y")),
            Node::Ingested(Key::root().join("x.nc")),
            Node::Unreadable(key),
            Node::ControlDirectory,
            Node::Control(ControlFile::Sync),
        ] {
            assert_eq!(from_text(&to_text(&node)), Some(node));
        }
        for text in ["", "x", "h", "ha\0data.none", "Fa\0sx\0data.raw", "cа"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
