//! The profiles of the AWS command line in `~/.aws/credentials` and `~/.aws/config`: keys, region, endpoint.

use std::collections::HashMap;
use std::path::PathBuf;

/// The settings of one profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile(HashMap<String, String>);

impl Profile {
    /// Loads the profile that `AWS_PROFILE` names, or `default`. A missing profile is empty.
    pub fn load() -> Self {
        let name = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let name = name.as_deref().unwrap_or("default");
        let file = |variable_name, usual: &str| {
            let path = variable(variable_name).map(PathBuf::from);
            let path = path.or_else(|| Some(std::env::home_dir()?.join(".aws").join(usual)))?;
            std::fs::read_to_string(path).ok()
        };
        let config = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default();
        Self::read(name, &config, &credentials)
    }

    /// Merges the settings of both files. The credentials file takes precedence.
    fn read(name: &str, config: &str, credentials: &str) -> Self {
        // in the config file, all sections but the default one begin with "profile"
        let section = if name == "default" { name.to_string() } else { format!("profile {name}") };
        let mut settings = settings(config, &section);
        settings.extend(self::settings(credentials, name));
        Profile(settings)
    }

    /// Returns a setting by its name in the file.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Returns the settings of one section. Indented lines belong to nested settings, which are ignored.
fn settings(text: &str, section: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut is_wanted = false;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_wanted = name.split_whitespace().eq(section.split_whitespace());
        } else if is_wanted && let Some((name, value)) = line.split_once('=') {
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
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_as_the_aws_command_line_writes_them() {
        let config = "[default]\nregion = eu-west-1\n[profile lab]\nregion=us-west-2\ns3 =\n    region = no\n\
            endpoint_url = http://lab:9000\n# aws_access_key_id = no\n";
        let credentials = "[default]\naws_access_key_id = A\n\n[ lab ]\naws_access_key_id = B\n\
            aws_secret_access_key = b/c+d==\nregion = \n";
        let lab = Profile::read("lab", config, credentials);
        assert_eq!(lab.get("aws_access_key_id"), Some("B"));
        assert_eq!(lab.get("aws_secret_access_key"), Some("b/c+d=="));
        assert_eq!(lab.get("endpoint_url"), Some("http://lab:9000"));
        assert_eq!((lab.get("region"), lab.get("s3")), (None, None));
        let default = Profile::read("default", config, credentials);
        assert_eq!((default.get("region"), default.get("aws_access_key_id")), (Some("eu-west-1"), Some("A")));
        assert_eq!(Profile::read("none", config, credentials), Profile::default());
    }
}
