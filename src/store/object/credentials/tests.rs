use super::super::profile::tests::profile;
use super::*;
use crate::store::object::runtime;
use std::sync::Mutex as Lock;

const ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";

fn source(config: &str, credentials: &str) -> Result<ProfileSource> {
    let config = format!("[profile lab]\n{config}\n");
    source_of(&profile("lab", &config, &format!("[lab]\n{credentials}\n")))
}

fn key(id: &str) -> AwsCredential {
    AwsCredential { key_id: id.into(), secret_key: format!("secret {id}").replace(' ', "-"), token: None }
}

fn lines(id: &str) -> String {
    format!("{ID}={id}\n{SECRET}=secret-{id}\n")
}

/// "role, web identity, SSO, keys of the file for credentials, program, keys of the other file"
#[test]
fn the_order_is_that_of_the_aws_command_line() {
    let (file, other) = (lines("FILE"), lines("OTHER"));
    let process = "credential_process = /bin/keys --of lab\n";
    let sso = "sso_session = s\nsso_account_id = 1\nsso_role_name = r\n";
    let web = "web_identity_token_file = /token\nrole_arn = arn:role\n";
    let role = "role_arn = arn:role\nsource_profile = base\n";
    let is_web = |source| matches!(source, Ok(ProfileSource::WebIdentity { .. }));
    assert!(is_web(source(&format!("{web}{sso}{process}{other}"), &file)));
    for (config, says) in [(format!("{role}{sso}{process}{other}"), "role_arn"), (format!("{sso}{other}"), "SSO")] {
        let error = source(&config, &file).unwrap_err();
        let is_clear = error.message().starts_with("AWS profile lab: ") && error.message().contains(says);
        assert!(is_clear && error.errno() == libc::EACCES, "{error}");
        assert!(error.message().contains("aws configure export-credentials --profile lab"), "{error}");
        assert!(!error.message().contains("secret"), "{error}");
    }
    assert!(source(sso, "").unwrap_err().message().contains("run `aws sso login --profile lab`, then"));
    assert_eq!(source(&format!("{process}{other}"), &file), Ok(ProfileSource::Keys(key("FILE"))));
    let command = "/bin/keys --of lab".to_string();
    assert_eq!(source(&format!("{process}{other}"), ""), Ok(ProfileSource::Process(command.clone())));
    assert_eq!(source(&other, process), Ok(ProfileSource::Process(command)));
    assert_eq!(source(&other, ""), Ok(ProfileSource::Keys(key("OTHER"))));
    assert_eq!(source("region = x", ""), Ok(ProfileSource::Nothing));
    let token = source("", &(file + "aws_session_token = T"));
    assert_eq!(token, Ok(ProfileSource::Keys(AwsCredential { token: Some("T".into()), ..key("FILE") })));
}

#[test]
fn incomplete_and_impossible_settings_are_refused() {
    for config in ["aws_access_key_id = A", "web_identity_token_file = /x", "role_arn = arn:x", "login_session = x"] {
        let error = source(config, "").unwrap_err();
        assert!(error.message().starts_with("AWS profile lab: "), "{error}");
    }
    for keys in ["aws_access_key_id=a b\naws_secret_access_key=s", "aws_access_key_id=a\naws_secret_access_key=\u{e9}"]
    {
        assert!(source("", keys).unwrap_err().message().contains("characters"));
    }
    let token = AwsCredential { token: Some("a\nb".into()), ..key("A") };
    assert!(checked(&token).is_err());
}

/// The files of the tests below, which run one after the other.
static FILES: Lock<(String, u32)> = Lock::new((String::new(), 0));
static ONE_TEST: Lock<()> = Lock::new(());

fn load(_: &Path) -> Profile {
    let mut files = FILES.lock().unwrap();
    files.1 += 1;
    profile("lab", &files.0, "")
}

fn set(settings: &str) {
    *FILES.lock().unwrap() = (format!("[profile lab]\n{settings}"), 0);
}

fn loads() -> u32 {
    FILES.lock().unwrap().1
}

/// Makes the loaded keys as old as `age`, or younger than any limit however long the test takes.
fn set_age(keys: &ProfileKeys, age: Option<Duration>) {
    let now = Instant::now();
    let mut state = keys.state.blocking_lock();
    state.loaded.as_mut().unwrap().at = match age {
        Some(age) => now.checked_sub(age).unwrap(),
        None => now + Duration::from_secs(3600),
    };
}

#[test]
fn refused_keys_are_read_again_once_a_second() {
    let _one = ONE_TEST.lock();
    set(&lines("A"));
    let keys = ProfileKeys::new(load, PathBuf::from("/"), Duration::from_secs(5));
    let current = || runtime::block_on(keys.current()).unwrap();
    let instead_of = |id| runtime::block_on(async { Ok(keys.instead_of(&key(id)).await) }).unwrap();
    assert_eq!((*current() == key("A"), *current() == key("A"), loads()), (true, true, 1));
    set(&lines("B"));
    set_age(&keys, None);
    assert_eq!((instead_of("A"), loads()), (None, 0));
    set_age(&keys, Some(FILE_AGE));
    assert_eq!(instead_of("A").as_deref(), Some(&key("B")));
    // a request that was sent with the old keys
    assert_eq!((instead_of("A").as_deref(), loads()), (Some(&key("B")), 1));
    set_age(&keys, None);
    assert_eq!((instead_of("B"), *current() == key("B"), loads()), (None, true, 1));
    set_age(&keys, Some(FILE_AGE));
    set("");
    assert_eq!((instead_of("B"), *current() == key("B"), loads()), (None, true, 1));
}

#[test]
fn keys_of_a_program_are_renewed_before_they_expire() {
    let _one = ONE_TEST.lock();
    let directory = tempfile::tempdir().unwrap();
    let count = directory.path().join("count");
    let print = |seconds: u32, then: &str| {
        let text = concat!(
            r#"{\"Version\": 1, \"AccessKeyId\": \"$n\", \"SecretAccessKey\": \"s\", "#,
            r#"\"Expiration\": \"$end\"}"#
        );
        let file = count.display();
        set(&format!(
            "credential_process = echo x >> {file}; n=$(wc -l < {file}); end=$(date -u -d '+{seconds} seconds' \
             +%Y-%m-%dT%H:%M:%S.%NZ); {then} echo \"{text}\"\n"
        ));
    };
    let runs = || std::fs::read_to_string(&count).map_or(0, |text| text.lines().count());
    print(8, "");
    let keys = ProfileKeys::new(load, PathBuf::from("/"), Duration::from_secs(5));
    let current = || runtime::block_on(keys.current());
    assert_eq!((current().unwrap().key_id.as_str(), runs()), ("1", 1));
    assert_eq!((current().unwrap().key_id.as_str(), runs()), ("1", 1));
    // three quarters of the time
    std::thread::sleep(Duration::from_millis(6100));
    // a failure is not repeated at once, and the keys are used while they are valid
    print(8, "[ $n = 3 ] || { echo broken >&2; exit 1; };");
    assert_eq!((current().unwrap().key_id.as_str(), runs()), ("1", 2));
    assert_eq!((current().unwrap().key_id.as_str(), runs()), ("1", 2));
    std::thread::sleep(Duration::from_secs(2));
    let error = current().unwrap_err();
    let expected = "AWS profile lab: credential_process: exit status: 1: broken";
    assert_eq!((error.message(), runs()), (expected, 2));
    std::thread::sleep(AFTER_FAILURE);
    assert_eq!((current().unwrap().key_id.as_str(), runs()), ("3", 3));
}

#[test]
fn waiting_requests_share_the_failure_of_a_program_that_hangs() {
    let _one = ONE_TEST.lock();
    set("credential_process = sleep 100\n");
    let keys = ProfileKeys::new(load, PathBuf::from("/"), Duration::from_secs(1));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(runtime::block_on(keys.current()).is_err()));
        }
    });
    // eight runs would last eight seconds
    assert_eq!(loads(), 1);
}
