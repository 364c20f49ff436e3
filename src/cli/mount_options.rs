//! The options of `-o`, as in fstab: every long option of `mount`, its words joined by `_` or `-`,
//! and those options of mount(8), fstab and systemd that don't concern a file system. This module
//! reads the table of options that clap has, and must not know what they do.

use super::{CommandFailure, CommandResult, StoreLocation};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;

/// Names of mount(8) for options of zarrfs.
const SYNONYMS: [(&str, &str); 1] = [("ro", "read-only")];

/// Options of mount(8), and the earlier option that each of them undoes.
const OPPOSITES: [(&str, &str); 3] = [("rw", "read-only"), ("exec", "noexec"), ("async", "sync")];

/// Options for other programs, and those that hold for every mount of zarrfs: it has no devices and
/// no setuid programs, the kernel checks modes, access times are not kept, and names are stored
/// immediately.
const WITHOUT_EFFECT: &str = "defaults auto noauto user nouser users group owner uhelper helper nofail _netdev comment dev nodev suid \
    nosuid dirsync atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime \
    nolazytime mand nomand silent loud default_permissions nonempty";

/// Options of other file systems that zarrfs refuses, with the reasons.
const REFUSED: [(&str, &str); 5] = [
    (
        "remount",
        "a mount can't be changed; unmount it, and mount again",
    ),
    ("context", LABELS),
    ("fscontext", LABELS),
    ("defcontext", LABELS),
    ("rootcontext", LABELS),
];
/// The option whose values may hold credentials.
const HEADER: &str = "header";

/// Value name of the options that take a list.
const LIST: &str = "LIST";

const LABELS: &str = "the policy labels mounts of FUSE, as fusefs_t";

/// Returns the lists of `-o` as words of a command line, by the options of `command`. With
/// `sloppy`, unknown options are left out.
pub fn expand(lists: &[String], sloppy: bool, command: &Command) -> CommandResult<Vec<OsString>> {
    let options: Vec<&str> = lists.iter().flat_map(|list| split(list)).collect();
    let sloppy = sloppy || options.contains(&"sloppy");
    let mut words: Vec<(&str, String)> = Vec::new();
    for option in options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(unquoted(value))),
            None => (option, None),
        };
        if let Some((_, undone)) = OPPOSITES.iter().find(|(n, _)| *n == name) {
            words.retain(|(known, _)| known != undone);
        } else if let Some((_, why)) = REFUSED.iter().find(|(n, _)| *n == name) {
            return Err(refused(option, why));
        } else if let Some(longer) = last_list_with(command, &words, option) {
            words.pop();
            words.push(longer);
        } else if let Some(known) = find(command, name) {
            words.push((
                known.get_long().unwrap_or_default(),
                word(command, known, value).map_err(|why| refused(option, &why))?,
            ));
        } else if !(sloppy || is_without_effect(name, value.as_deref())) {
            return Err(refused(option, "unknown option"));
        }
    }
    Ok(words.into_iter().map(|(_, word)| word.into()).collect())
}

/// Returns a list of `-o` without the options of these names.
pub fn without(list: &str, names: &[&str]) -> String {
    let name_of = |option: &str| option.split('=').next().unwrap_or_default().to_string();
    split(list)
        .filter(|option| !names.contains(&name_of(option).as_str()))
        .collect::<Vec<_>>()
        .join(",")
}

fn refused(option: &str, why: &str) -> CommandFailure {
    CommandFailure::wrong_use(format!("-o {option}: {why}"))
}

/// Returns the last option of `words` with `item` added to its list, since commas separate options
/// as well as the items of a list. Returns `None` if that option takes no list or no such item, or
/// if there is an option of this name.
fn last_list_with<'a>(
    command: &Command,
    words: &[(&'a str, String)],
    item: &str,
) -> Option<(&'a str, String)> {
    let (name, word_so_far) = words.last()?;
    let arg = find(command, name).filter(|_| find(command, item).is_none())?;
    let is_list = arg
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| name.as_str() == LIST));
    let (_, list) = word_so_far.split_once('=').filter(|_| is_list)?;
    word(command, arg, Some(format!("{list},{item}")))
        .ok()
        .map(|longer| (*name, longer))
}

/// Returns the option of `command` with this name.
fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let synonym = SYNONYMS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, long)| *long);
    let long = synonym.map_or_else(|| name.replace('_', "-"), str::to_string);
    command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(&long))
}

/// Returns an option as a word of a command line.
///
/// # Errors
///
/// The reason why the option doesn't take the value.
fn word(command: &Command, arg: &Arg, value: Option<String>) -> Result<String, String> {
    let long = arg.get_long().unwrap_or_default();
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
    let word = match value {
        Some(_) if !takes_value => return Err("takes no value".to_string()),
        Some(value) => format!("--{long}={value}"),
        None => format!("--{long}"),
    };
    // parse it alone, so that the message names this option
    let alone =
        command
            .clone()
            .no_binary_name(true)
            .try_get_matches_from([word.as_str(), "--", ".", "."]);
    match alone {
        Ok(_) => Ok(word),
        Err(e) => {
            let said = e.to_string();
            let first = said.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_string())
        }
    }
}

/// Returns the options that a command line has given, as in fstab and without secrets, or
/// `defaults`.
pub fn given(command: &Command, matches: &ArgMatches) -> String {
    let mut options = Vec::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(long) = arg.get_long() else {
            continue;
        };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            options.push(long.to_string());
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let value = without_secrets(long, &value.to_string_lossy());
            let is_plain = !value.contains(',');
            options.push(if is_plain {
                format!("{long}={value}")
            } else {
                format!("{long}=\"{value}\"")
            });
        }
    }
    if options.is_empty() {
        return "defaults".to_string();
    }
    options.join(",")
}

/// Returns the value of an option without what only its server may know.
fn without_secrets(long: &str, value: &str) -> String {
    if long == HEADER && !value.starts_with('@') {
        let name = value.split(':').next().unwrap_or_default();
        return format!("{name}:***");
    }
    StoreLocation::from(OsString::from(value)).to_string()
}

fn is_without_effect(name: &str, value: Option<&str>) -> bool {
    let of_others = ["x-", "X-"].iter().any(|prefix| name.starts_with(prefix));
    name.is_empty()
        || of_others
        || WITHOUT_EFFECT.split(' ').any(|known| known == name)
        || (name, value) == ("subtype", Some("zarrfs"))
}

/// Splits a list at commas, except those in double quotes or after a backslash.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    list.split(move |c| {
        let ends = c == ',' && !quoted && !escaped;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

/// Returns a value without the quotes around it, or without the backslashes before commas and
/// backslashes.
fn unquoted(value: &str) -> String {
    if let Some(inside) = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        return inside.to_string();
    }
    let mut plain = String::with_capacity(value.len());
    let mut rest = value.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('\\', Some(&next @ (',' | '\\'))) => {
                plain.push(next);
                rest.next();
            }
            _ => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::super::mount::MountArgs;
    use super::*;
    use clap::Args;

    fn words(list: &str, sloppy: bool) -> Result<Vec<String>, String> {
        let command = MountArgs::augment_args(Command::new("mount"));
        let expanded = expand(&[list.to_string()], sloppy, &command).map_err(|e| e.message)?;
        Ok(expanded
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect())
    }

    fn assert_words(list: &str, expected: &[&str]) {
        assert_eq!(
            words(list, false).unwrap_or_else(|e| panic!("{list}: {e}")),
            expected,
            "{list}"
        );
    }

    #[test]
    fn every_long_option_of_mount_is_found() {
        let command = MountArgs::augment_args(Command::new("mount"));
        let longs: Vec<&str> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .collect();
        assert!(longs.len() > 30, "{longs:?}");
        for long in longs {
            let arg = find(&command, &long.replace('-', "_")).unwrap();
            assert_eq!(arg.get_long(), Some(long));
        }
        assert_words(
            "cache_size=1G,cache-size=2G",
            &["--cache-size=1G", "--cache-size=2G"],
        );
        assert_words(
            "anon,resize,uid=7,umask=027",
            &["--anon", "--resize", "--uid=7", "--umask=027"],
        );
        assert_words(
            "log_journal,log_journal=/s",
            &["--log-journal", "--log-journal=/s"],
        );
        assert_words(
            "endpoint_url=http://127.0.0.1:9000/?a=b",
            &["--endpoint-url=http://127.0.0.1:9000/?a=b"],
        );
    }

    #[test]
    fn given_options_are_those_of_fstab_without_secrets() {
        let given = |words: &[&str]| {
            let command = MountArgs::augment_args(Command::new("mount"));
            let all = ["mount"].iter().chain(words).chain(&["store", "mnt"]);
            let matches = command.clone().try_get_matches_from(all).unwrap();
            super::given(&command, &matches)
        };
        assert_eq!(given(&[]), "defaults");
        assert_eq!(
            given(&["--resize", "--cache-size", "1G", "--headers=npy,nrrd"]),
            "cache-size=1G,resize,headers=\"npy,nrrd\""
        );
        let secret = [
            "--header=Authorization: Bearer secret",
            "--header=@/etc/token",
            "--endpoint-url=https://user:secret@host/?key=secret",
            "--allow-reference=https://host/a?signature=secret",
        ];
        assert_eq!(
            given(&secret),
            "allow-reference=https://host/a,endpoint-url=https://host/,header=Authorization:***,header=@/etc/token"
        );
    }

    #[test]
    fn repeated_options_add_up_or_the_last_one_counts() {
        let parsed = |list: &str, more: &[&str]| {
            let words = words(list, false).unwrap();
            let all = ["mount"]
                .into_iter()
                .chain(words.iter().map(String::as_str))
                .chain(more.iter().copied());
            MountArgs::augment_args(Command::new("mount")).get_matches_from(all)
        };
        let matches = parsed(
            "header=A:1,header=B:2,resize,resize,uid=1",
            &["--header", "C:3", "--uid=2", "x", "y"],
        );
        assert_eq!(
            matches.get_raw("headers").unwrap().count(),
            3,
            "of these all count"
        );
        assert_eq!(
            matches.get_one::<u32>("uid"),
            Some(&2),
            "of others the last one, and the command line comes last"
        );
    }

    #[test]
    fn options_of_other_programs_are_ignored() {
        let others = "defaults,rw,nofail,_netdev,noauto,user=me,x-systemd.automount,X-mount.mkdir=755,comment=a b,\
                      subtype=zarrfs,nosuid,nodev,relatime,,default_permissions";
        assert_words(others, &[]);
        for list in ["bogus", "netdev", "subtype=x", "fsname=x", "x", "o=ro", "s"] {
            assert_eq!(
                words(list, false),
                Err(format!("-o {list}: unknown option"))
            );
            assert_eq!(words(list, true), Ok(vec![]));
        }
        assert_words("bogus,sloppy", &["--sloppy"]);
        for list in ["remount", "context=system_u:object_r:x:s0"] {
            assert!(
                words(list, true)
                    .unwrap_err()
                    .starts_with(&format!("-o {list}: "))
            );
        }
    }

    #[test]
    fn the_last_of_opposite_options_counts() {
        assert_words("ro,rw,noexec,exec,sync,async", &[]);
        assert_words("rw,ro", &["--read-only"]);
        assert_words("defaults,noexec,async,sync", &["--noexec", "--sync"]);
    }

    #[test]
    fn options_can_be_left_out() {
        let list = "ro,sync,fsname=a\\,sync,log_file=\"/a,sync\",synchronizer=x,sync=1";
        assert_eq!(
            without(list, &["sync", "fsname"]),
            "ro,log_file=\"/a,sync\",synchronizer=x"
        );
        assert_eq!(without("sync", &["sync"]), "");
    }

    #[test]
    fn commas_in_values_may_be_quoted() {
        for list in ["log_file=\"/a,b\",ro", "log_file=/a\\,b,ro"] {
            assert_words(list, &["--log-file=/a,b", "--read-only"]);
        }
        assert_words("log_file=/a\\\\,ro", &["--log-file=/a\\", "--read-only"]);
        assert_words("log_file=/a\\b\"c", &["--log-file=/a\\b\"c"]);
    }

    #[test]
    fn commas_in_lists_separate_items() {
        assert_words(
            "containers=nc,tif,ro",
            &["--containers=nc,tif", "--read-only"],
        );
        assert_words(
            "ro,headers=npy,vrt,containers=tif:nc,nii,uid=1",
            &[
                "--read-only",
                "--headers=npy,vrt",
                "--containers=tif:nc,nii",
                "--uid=1",
            ],
        );
        for (list, unknown) in [
            ("containers=nc,npy", "npy"),
            ("tif,containers=nc", "tif"),
            ("containers=nc,ro,tif", "tif"),
        ] {
            assert_eq!(
                words(list, false),
                Err(format!("-o {unknown}: unknown option"))
            );
        }
    }

    #[test]
    fn errors_of_values_name_the_option() {
        for (list, why) in [
            ("uid=x", "invalid value 'x' for '--uid <UID>'"),
            ("uid", "a value is required"),
            ("uid=", "invalid value ''"),
            ("resize=1", "takes no value"),
            ("ro=1", "takes no value"),
            ("umask=999", "not an octal mode"),
            ("v1_order=2", "invalid value '2'"),
        ] {
            let said = words(list, true).unwrap_err();
            assert!(
                said.starts_with(&format!("-o {list}: ")) && said.contains(why),
                "{said}"
            );
            assert_eq!(said.lines().count(), 1);
        }
    }
}
