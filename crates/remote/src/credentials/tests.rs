use super::super::profile::tests::profile;
use super::*;

const ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";

fn source(config: &str, credentials: &str) -> Result<ProfileSource> {
    let config = format!("[profile lab]\n{config}\n");
    source_of(&profile("lab", &config, &format!("[lab]\n{credentials}\n")))
}

fn key(id: &str) -> AwsCredential {
    AwsCredential {
        key_id: id.into(),
        secret_key: format!("secret {id}").replace(' ', "-"),
        token: None,
    }
}

fn lines(id: &str) -> String {
    format!("{ID}={id}\n{SECRET}=secret-{id}\n")
}

/// "role, web identity, SSO, keys of the file for credentials, program, keys of the other file"
#[test]
fn the_order_is_that_of_the_aws_command_line() {
    let file = lines("FILE");
    let other = lines("OTHER");
    let process = "credential_process = /bin/keys --of lab\n";
    let sso = "sso_session = s\nsso_account_id = 1\nsso_role_name = r\n";
    let web = "web_identity_token_file = /token\nrole_arn = arn:role\n";
    let role = "role_arn = arn:role\nsource_profile = base\n";
    let is_web = |source| matches!(source, Ok(ProfileSource::WebIdentity { .. }));
    assert!(is_web(source(
        &format!("{web}{sso}{process}{other}"),
        &file
    )));
    for (config, says) in [
        (format!("{role}{sso}{process}{other}"), "role_arn"),
        (format!("{sso}{other}"), "SSO"),
    ] {
        let error = source(&config, &file).err().unwrap();
        let is_clear =
            error.message().starts_with("AWS profile lab: ") && error.message().contains(says);
        assert!(is_clear && error.errno() == libc::EACCES, "{error}");
        assert!(
            error
                .message()
                .contains("aws configure export-credentials --profile lab"),
            "{error}"
        );
        assert!(!error.message().contains("secret"), "{error}");
    }
    assert!(
        source(sso, "")
            .err()
            .unwrap()
            .message()
            .contains("run `aws sso login --profile lab`, then")
    );
    assert!(source(&format!("{process}{other}"), &file) == Ok(ProfileSource::Keys(key("FILE"))));
    let command = "/bin/keys --of lab".to_string();
    assert!(
        source(&format!("{process}{other}"), "") == Ok(ProfileSource::Process(command.clone()))
    );
    assert!(source(&other, process) == Ok(ProfileSource::Process(command)));
    assert!(source(&other, "") == Ok(ProfileSource::Keys(key("OTHER"))));
    assert!(source("region = x", "") == Ok(ProfileSource::Nothing));
    let token = source("", &(file + "aws_session_token = T"));
    assert!(
        token
            == Ok(ProfileSource::Keys(AwsCredential {
                token: Some("T".into()),
                ..key("FILE")
            }))
    );
}

#[test]
fn incomplete_and_impossible_settings_are_refused() {
    for config in [
        "aws_access_key_id = A",
        "web_identity_token_file = /x",
        "role_arn = arn:x",
        "login_session = x",
    ] {
        let error = source(config, "").err().unwrap();
        assert!(error.message().starts_with("AWS profile lab: "), "{error}");
    }
    for keys in [
        "aws_access_key_id=a b\naws_secret_access_key=s",
        "aws_access_key_id=a\naws_secret_access_key=\u{e9}",
    ] {
        assert!(
            source("", keys)
                .err()
                .unwrap()
                .message()
                .contains("characters")
        );
    }
    let token = AwsCredential {
        token: Some("a\nb".into()),
        ..key("A")
    };
    assert!(checked(&token).is_err());
}
