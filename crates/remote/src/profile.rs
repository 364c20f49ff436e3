//! The profiles of the AWS command line in `~/.aws/credentials` and `~/.aws/config`: keys, region,
//! endpoint, and the ways to get keys. This module does not know the meaning of the settings.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use zarrfs_base::error::Error;

/// Maximum size of a file with profiles, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The variables that name the files with profiles, and the usual names.
const FILES: [(&str, &str); 2] = [
    ("AWS_CONFIG_FILE", "config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
];

/// The settings of one profile. They have no `Debug`, so that nothing prints keys.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// Name of the profile.
    pub name: String,
    /// Whether the environment names it.
    is_chosen: bool,
    /// Settings in the file for credentials; `None` if the file lacks the profile.
    credentials: Option<HashMap<String, String>>,
    /// Settings in the file for everything else; `None` if the file lacks the profile.
    config: Option<HashMap<String, String>>,
    /// A line for each file that the environment names and that does not exist.
    pub missing_files: Vec<String>,
}

impl Profile {
    /// Loads the profile that `AWS_PROFILE` names, or `default`. A missing profile has no settings.
    /// Files that cannot be read are left out, as by the AWS command line. Relative paths begin at
    /// `directory`.
    pub fn load(directory: &Path) -> Self {
        let chosen = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let name = chosen.as_deref().unwrap_or("default");
        let [(config, no_config), (credentials, no_credentials)] =
            FILES.map(|(variable, usual)| file(variable, usual, directory));
        Profile {
            is_chosen: chosen.is_some(),
            missing_files: no_config.into_iter().chain(no_credentials).collect(),
            ..Self::read(name, &config, &credentials)
        }
    }

    fn read(name: &str, config: &str, credentials: &str) -> Self {
        Profile {
            name: name.to_string(),
            is_chosen: false,
            credentials: settings(credentials, |section| unquoted(section) == name),
            // sections of profiles begin with "profile", which the default one may lack
            config: settings(config, |section| {
                match section.split_once(char::is_whitespace) {
                    Some(("profile", rest)) => unquoted(rest) == name,
                    _ => section == name && name == "default",
                }
            }),
            missing_files: Vec::new(),
        }
    }

    /// Returns whether the environment names a profile that does not exist.
    pub fn is_missing(&self) -> bool {
        self.is_chosen && self.credentials.is_none() && self.config.is_none()
    }

    /// Returns a setting by its name. The file for credentials takes precedence.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.of_credentials(name).or_else(|| self.of_config(name))
    }

    /// Returns a setting of the file for credentials.
    pub fn of_credentials(&self, name: &str) -> Option<&str> {
        value(self.credentials.as_ref(), name)
    }

    /// Returns a setting of the other file.
    pub fn of_config(&self, name: &str) -> Option<&str> {
        value(self.config.as_ref(), name)
    }
}

/// Returns the files with profiles, and the usual directory of them, where tools replace them.
pub(super) fn paths(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let files = FILES.map(|(variable, usual)| path(variable, usual, directory));
    let usual = std::env::home_dir().map(|home| home.join(".aws"));
    files.into_iter().chain([usual]).flatten()
}

/// Returns the path of the file that a variable names, or of the usual one.
fn path(variable_name: &str, usual: &str, directory: &Path) -> Option<PathBuf> {
    match (variable(variable_name), std::env::home_dir()) {
        (Some(path), Some(home)) if path.starts_with("~/") => Some(home.join(&path[2..])),
        (Some(path), _) => Some(directory.join(path)),
        (None, home) => Some(home?.join(".aws").join(usual)),
    }
}

/// Returns the text of the file that a variable names, or of the usual one. A missing file is
/// empty; if the variable names it, this also returns a line that says so.
fn file(variable_name: &str, usual: &str, directory: &Path) -> (String, Option<String>) {
    let Some(path) = path(variable_name, usual, directory) else {
        return (String::new(), None);
    };
    let mut bytes = Vec::new();
    let mut missing = None;
    if let Err(e) = File::open(&path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)) {
        let is_missing = [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind());
        let why = format!(
            "{}: {}; its profiles are not used",
            path.display(),
            Error::from(e)
        );
        if !is_missing {
            log::warn!("{why}");
        } else if variable(variable_name).is_some() {
            missing = Some(format!("{variable_name}={why}"));
        }
    }
    (String::from_utf8_lossy(&bytes).into_owned(), missing)
}

fn value<'a>(settings: Option<&'a HashMap<String, String>>, name: &str) -> Option<&'a str> {
    settings?
        .get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

fn unquoted(name: &str) -> &str {
    let name = name.trim();
    for quote in ['"', '\''] {
        let rest = name.strip_prefix(quote);
        if let Some(inner) = rest.and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    name
}

/// Returns the settings of the sections that `is_wanted` accepts. Indented lines belong to nested
/// settings, which are ignored.
fn settings(text: &str, is_wanted: impl Fn(&str) -> bool) -> Option<HashMap<String, String>> {
    let mut found = None;
    let mut is_inside = false;
    for line in text
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '#', ';']))
    {
        if let Some(name) = line
            .trim()
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            is_inside = is_wanted(name.trim());
            if is_inside {
                found.get_or_insert_with(HashMap::new);
            }
        } else if is_inside
            && let (Some((name, value)), Some(found)) = (line.split_once(['=', ':']), &mut found)
        {
            found.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    found
}

/// Returns an environment variable that is set and not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a profile with these texts of both files.
    pub fn profile(name: &str, config: &str, credentials: &str) -> Profile {
        Profile::read(name, config, credentials)
    }

    #[test]
    fn profiles_are_read_as_the_aws_command_line_writes_them() {
        let config = "[default]\nregion = eu-west-1\n[profile lab]\nregion=us-west-2\ns3 =\n    region = no\n\
            endpoint_url = http://lab:9000\n# aws_access_key_id = no\n[profile \"my lab\"]\nregion: x\n[services lab]\n\
            region = no\n[lab]\nregion = no\n";
        let credentials = "[default]\naws_access_key_id = A\n\n[ lab ]\naws_access_key_id = B\n\
            aws_secret_access_key = b/c+d==\nregion = \n";
        let lab = profile("lab", config, credentials);
        assert_eq!(
            (
                lab.get("aws_access_key_id"),
                lab.of_config("aws_access_key_id")
            ),
            (Some("B"), None)
        );
        assert_eq!(lab.get("aws_secret_access_key"), Some("b/c+d=="));
        assert_eq!(lab.get("endpoint_url"), Some("http://lab:9000"));
        assert_eq!(
            (lab.get("region"), lab.get("s3")),
            (Some("us-west-2"), None)
        );
        let default = profile("default", config, credentials);
        assert_eq!(
            (default.get("region"), default.get("aws_access_key_id")),
            (Some("eu-west-1"), Some("A"))
        );
        assert_eq!(
            profile("my lab", config, credentials).get("region"),
            Some("x")
        );
        let none = profile("none", config, credentials);
        assert_eq!((none.credentials, none.config), (None, None));
    }
}
