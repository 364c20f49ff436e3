//! `--ingest` and `--ingest-options`: which files become groups and arrays of a mount, and how they
//! are stored, in the words of `zarrfs put`.

use super::migrate::shard_shape;
use super::{WRITING, compressor};
use crate::array::hierarchy::{DocumentFormat, ShardShape};
use crate::fs::tree::IngestRules;
use crate::ingest::IngestLayout;
use clap::Args;
use zarrfs_format::metadata::CodecConfig;
use zarrfs_ingest::FileFormat;

/// The word for all formats.
const ALL: &str = "all";

/// Options of every verb that mounts.
#[derive(Args)]
#[command(next_help_heading = WRITING)]
pub struct MountIngestArgs {
    /// Make files that programs write groups and arrays
    ///
    /// --ingest=all, the default, or some of nc,npy,h5,tif: a netCDF file NAME.nc or an HDF5
    /// file NAME.h5 becomes the group NAME when it is closed, and NAME.npy or NAME.tif becomes the
    /// array NAME. From then on the file shows the group or array.
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true,
        default_missing_value = ALL, value_parser = parse_formats)]
    ingest: Option<Formats>,
    /// Set chunks, shards and compressor of --ingest
    ///
    /// Words such as chunks=auto shards=auto compressor=zstd:5, which mean what the options of
    /// `zarrfs put` mean, with spaces between them.
    #[arg(long, value_name = "WORDS", value_parser = parse_layout)]
    ingest_options: Option<LayoutWords>,
}

#[derive(Clone, Debug)]
struct Formats(Vec<FileFormat>);

/// The values that the words of `--ingest-options` give.
#[derive(Clone, Debug, Default)]
struct LayoutWords {
    chunks: Option<ShardShape>,
    shards: Option<ShardShape>,
    /// `None` without such a word.
    compressor: Option<Option<CodecConfig>>,
}

fn parse_formats(text: &str) -> Result<Formats, String> {
    if text == ALL {
        return Ok(Formats(FileFormat::ALL.to_vec()));
    }
    let formats = text.split([',', ':']).map(|word| {
        let known = FileFormat::ALL
            .into_iter()
            .find(|format| format.id() == word);
        known.ok_or_else(|| format!("{word:?} is not one of all, nc, npy, h5, tif"))
    });
    formats.collect::<Result<_, _>>().map(Formats)
}

fn parse_layout(text: &str) -> Result<LayoutWords, String> {
    let mut layout = LayoutWords::default();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some(("chunks", shape)) => layout.chunks = Some(shard_shape(shape)?),
            Some(("shards", shape)) => layout.shards = Some(shard_shape(shape)?),
            Some(("compressor", codec)) => layout.compressor = Some(compressor::parse(codec)?.0),
            _ => {
                return Err(format!(
                    "{word:?} is not chunks=N,N, shards=N,N or compressor=CODEC"
                ));
            }
        }
    }
    Ok(layout)
}

impl MountIngestArgs {
    /// Returns the rules by which the mount ingests files; `None` without the option. Chunks that
    /// hold only the fill value are not stored if `drops_empty`.
    ///
    /// # Errors
    ///
    /// A line for the user, if this build lacks the default compressor.
    pub fn rules(&self, drops_empty: bool) -> Result<Option<IngestRules>, String> {
        let Some(Formats(formats)) = &self.ingest else {
            return match self.ingest_options {
                Some(_) => {
                    Err("--ingest-options: nothing is made of files without --ingest".into())
                }
                None => Ok(None),
            };
        };
        let LayoutWords {
            chunks,
            shards,
            compressor,
        } = self.ingest_options.clone().unwrap_or_default();
        let layout = IngestLayout {
            format: DocumentFormat::V2,
            chunks,
            shards,
            compressor: match compressor {
                Some(compressor) => compressor,
                None => compressor::parse("blosc")?.0,
            },
            drops_empty,
        };
        let formats = formats.clone();
        Ok(Some(IngestRules { formats, layout }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_the_options_of_put_say() {
        let layout = parse_layout("chunks=2,3 shards=auto compressor=none").unwrap();
        assert!(matches!(layout.chunks, Some(ShardShape::Lengths(lengths)) if lengths == [2, 3]));
        assert!(matches!(layout.shards, Some(ShardShape::Auto)));
        assert_eq!(layout.compressor, Some(None));
        let auto = parse_layout("chunks=auto").unwrap().chunks;
        assert!(matches!(auto, Some(ShardShape::Auto)));
        for (text, why) in [
            ("chunks", "not chunks=N,N"),
            ("chunks=0", "not a length"),
            ("compressor=snappy", "no compressor"),
        ] {
            let said = parse_layout(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        let formats = |text| parse_formats(text).map(|Formats(formats)| formats);
        assert_eq!(
            formats("npy,tif"),
            Ok(vec![FileFormat::Npy, FileFormat::Tiff])
        );
        assert_eq!(formats("all").unwrap().len(), FileFormat::ALL.len());
        assert!(formats("tiff").unwrap_err().contains("not one of all"));
    }
}
