//! `zarrfs man`: manual pages, made of the help and of what a help has no room for: exit codes, files, environment, examples.

use super::{Cli, EXIT_CODES, Failure};
use crate::check::Fault;
use crate::error::Error;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// What `man` takes.
#[derive(Args)]
#[command(after_help = "To read one: zarrfs man check | man -l -")]
pub struct ManArgs {
    /// The verb that the page is about [default: all of zarrfs]
    verb: Option<String>,
    /// Write all pages into this directory, as zarrfs.1 and zarrfs-VERB.1
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    all: Option<PathBuf>,
}

/// Names, and what each is.
type Table = &'static [(&'static str, &'static str)];

const FILES: Table = &[
    (
        ".zarrfs/stats, .zarrfs/stats.json",
        "At the root of a mount, by name, never listed: what it has done, and the problems it met.",
    ),
    (".zarrfs/sync", "Opening it stores everything that was written. It names what could not be stored."),
    ("/etc/fuse.conf", "With a line user_allow_other users who are not root may mount with --allow-other."),
];

const ENVIRONMENT: Table = &[
    ("TMPDIR", "Where decoded chunks wait whose row does not fit into the cache; /var/tmp unless set."),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL",
        "Credentials, region and server of S3, as the provider's own tools take them; without them the files in ~/.aws.",
    ),
    ("GOOGLE_APPLICATION_CREDENTIALS", "The file with the credentials of Google Cloud Storage."),
    (
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN",
        "The account of Azure Blob Storage.",
    ),
    ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "Proxies for stores on servers."),
    ("LC_ALL, LC_CTYPE, LANG", "info --map draws in plain ASCII unless the locale is UTF-8."),
];

/// What a line of help doesn't tell, by verb; of zarrfs itself under the empty name.
const DESCRIPTIONS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "A mount is the same hierarchy with the codecs taken off: every array is a directory with its decoded chunks as \
         files, its flat bytes as one file data.raw, and headers that let other programs open that file. Whatever can read \
         raw binary reads a compressed, chunked array, and changes it in place.",
            "Stores are directories, zip archives (PATH.zip), URLs of web servers (http://, https://), and buckets (s3://, gs://, \
         az://, abfs://). Names may lead on to a group or array in the store.",
        ],
    ),
    (
        "check",
        &[
            "Every group, array and stored chunk is looked at: whether documents are valid and .zmetadata says the same, whether \
         chunks have a size that they can have or, with --deep, can be decoded, and what else lies in the store.",
            "Each finding is one line: how much it matters, where it is, what it is and what can be done. With --json it is an \
         object with level, path, kind and message, in the list findings.",
        ],
    ),
    (
        "info",
        &[
            "A map shows the chunk grid: the last dimension from left to right, the last but one downwards, a panel for each \
         index of those before. Where the grid is larger than the picture a cell stands for several chunks, and the map says \
         for how many.",
        ],
    ),
    (
        "ls",
        &[
            "Names that begin with a dot are listed, too. A directory has a slash after its name. What an array takes in the \
         store is exact up to 1024 chunks, and an estimate beyond that.",
        ],
    ),
];

/// Of each verb; of zarrfs itself under the empty name.
const EXAMPLES: &[(&str, Table)] = &[
    (
        "",
        &[
            ("zarrfs mount x.zarr mnt", "Show the store x.zarr below the directory mnt."),
            ("dd if=mnt/air/data.raw bs=1M | md5sum", "Read an array as plain bytes."),
            ("zarrfs umount mnt", "Store what was written, and unmount."),
        ],
    ),
    (
        "mount",
        &[
            ("zarrfs mount -o ro x.zarr mnt", "Mount for reading alone."),
            ("zarrfs mount --anon s3://BUCKET/x.zarr mnt", "Mount a store in a public bucket."),
            (
                "zarrfs mount --containers nc x.zarr mnt; ncdump -h mnt/dataset.nc",
                "Show each group as a netCDF file, too.",
            ),
        ],
    ),
    ("umount", &[("zarrfs umount --lazy mnt", "Unmount also while a program has a file open.")]),
    (
        "info",
        &[
            ("zarrfs info x.zarr", "All groups and arrays, with shape, dtype, codecs and sizes."),
            ("zarrfs info --map x.zarr/air", "Which chunks are stored, and how large they are."),
            ("zarrfs info --json x.zarr | jq -r '.[].path'", "The paths of them all."),
        ],
    ),
    (
        "ls",
        &[
            ("zarrfs ls -l x.zarr/air", "The files of an array with their sizes, decoded and stored."),
            ("zarrfs ls -R s3://BUCKET/x.zarr", "All names of a store."),
        ],
    ),
    (
        "check",
        &[
            ("zarrfs check x.zarr", "Look at all documents, names and sizes."),
            (
                "zarrfs check --deep --json x.zarr | jq '.findings[] | select(.kind == \"chunk\") | .path'",
                "The chunks that can't be decoded.",
            ),
        ],
    ),
    (
        "cat",
        &[(
            "zarrfs cat x.zarr/air --offset 16 --length 2 | od -An -td2",
            "The ninth item of an array of 16-bit integers.",
        )],
    ),
    ("put", &[("zarrfs put x.zarr/air < new.raw", "Replace the values of an array.")]),
    (
        "create",
        &[(
            "zarrfs create x.zarr/t --shape 62,37,53 --chunks 24,16,24 --dtype '<i2' --from-raw t.raw",
            "Make an array of a file of flat bytes.",
        )],
    ),
    ("stats", &[("zarrfs stats mnt --watch 1s", "What a mount does, each second.")]),
    (
        "completions",
        &[("zarrfs completions bash > ~/.local/share/bash-completion/completions/zarrfs", "Install them for bash.")],
    ),
    ("man", &[("zarrfs man --all ~/.local/share/man/man1", "Install all pages.")]),
];

/// Runs the verb.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    // each page tells what `zarrfs help VERB` would
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &args.all {
        return write_all(&command, directory).map_err(|e| Error::from(e).context(directory.display()).into());
    }
    let page = match &args.verb {
        None => page(&command, ""),
        Some(verb) => {
            let found = command.find_subcommand(verb);
            let found = found.ok_or_else(|| Failure::new(2, format!("{verb:?} is no verb of zarrfs")))?;
            page(found, found.get_name())
        }
    };
    match page.and_then(|page| std::io::stdout().write_all(&page)) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::from(e).into()),
        _ => Ok(()),
    }
}

fn write_all(command: &Command, directory: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("zarrfs.1"), page(command, "")?)?;
    for verb in command.get_subcommands() {
        std::fs::write(directory.join(format!("zarrfs-{}.1", verb.get_name())), page(verb, verb.get_name())?)?;
    }
    Ok(())
}

/// The page of a verb; of zarrfs itself where `verb` is empty.
fn page(command: &Command, verb: &str) -> std::io::Result<Vec<u8>> {
    let (man, mut out) = (Man::new(command.clone()), Vec::new());
    let title = if verb.is_empty() { "zarrfs".to_string() } else { format!("zarrfs-{verb}") };
    // no date: it would have to be kept
    writeln!(out, ".TH {title} 1 \"\" \"zarrfs {}\" \"User commands\"", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if let Some((_, paragraphs)) = DESCRIPTIONS.iter().find(|(of, _)| *of == verb) {
        let mut roff = Roff::new();
        for paragraph in *paragraphs {
            roff.control("PP", []).text([roman(*paragraph)]);
        }
        roff.to_writer(&mut out)?;
    }
    man.render_options_section(&mut out)?;
    if verb.is_empty() {
        man.render_subcommands_section(&mut out)?;
    }
    if verb == "check" {
        let findings =
            Fault::ALL.map(|fault| (format!("{} ({})", fault.name(), fault.level().name()), fault.meaning()));
        section("FINDINGS", findings.iter().map(|(name, what)| (name.as_str(), *what))).to_writer(&mut out)?;
    }
    section("EXIT STATUS", EXIT_CODES.lines().filter_map(|line| line.trim().split_once("  "))).to_writer(&mut out)?;
    if verb.is_empty() || verb == "mount" {
        section("FILES", FILES.iter().copied()).to_writer(&mut out)?;
        section("ENVIRONMENT", ENVIRONMENT.iter().copied()).to_writer(&mut out)?;
    }
    if let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == verb) {
        section("EXAMPLES", examples.iter().copied()).to_writer(&mut out)?;
    }
    if !verb.is_empty() {
        Roff::new().control("SH", ["SEE ALSO"]).text([bold("zarrfs"), roman("(1)")]).to_writer(&mut out)?;
    }
    Ok(out)
}

fn section<'a>(title: &str, rows: impl Iterator<Item = (&'a str, &'a str)>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, what) in rows {
        roff.control("TP", []).text([bold(name)]).text([roman(what)]);
    }
    roff
}
