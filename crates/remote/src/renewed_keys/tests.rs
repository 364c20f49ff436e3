use super::*;
use crate::runtime;
use KeyOrigin::{File, Program};
use Refusal::{OfKeys, Unclear};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use tokio::sync::Semaphore;

const HOUR: u64 = 3600;

/// A program whose runs the test permits, and whose keys it chooses.
#[derive(Clone)]
struct FakeProgram {
    id: Arc<Mutex<Option<&'static str>>>,
    /// Seconds until the keys expire.
    lasts: u64,
    runs: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
    /// Milliseconds since `start`.
    clock: Arc<AtomicU64>,
    start: SystemTime,
}

#[async_trait]
impl KeySource for FakeProgram {
    async fn read(&self) -> Result<NewKeys> {
        self.runs.fetch_add(1, SeqCst);
        self.permits.acquire().await.unwrap().forget();
        let id = lock(&self.id).ok_or_else(|| Error::denied("signed out"))?;
        let expires = self.now() + Duration::from_secs(self.lasts);
        Ok(NewKeys {
            credential: Arc::new(key(id)),
            expires: Some(expires),
            origin: Program,
        })
    }
}

impl FakeProgram {
    fn new() -> Self {
        FakeProgram {
            id: Arc::new(Mutex::new(Some("A"))),
            lasts: HOUR,
            runs: Arc::default(),
            permits: Arc::new(Semaphore::new(1)),
            clock: Arc::default(),
            start: SystemTime::now(),
        }
    }

    fn keys(&self) -> RenewedKeys {
        let program = self.clone();
        RenewedKeys::with_clock(self.clone(), move || program.now())
    }

    fn now(&self) -> SystemTime {
        self.start + Duration::from_millis(self.clock.load(SeqCst))
    }

    fn pass(&self, seconds: u64) {
        self.clock.fetch_add(seconds * 1000, SeqCst);
    }

    fn print(&self, id: Option<&'static str>) {
        *lock(&self.id) = id;
    }

    fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }
}

fn key(id: &str) -> AwsCredential {
    AwsCredential {
        key_id: id.to_string(),
        secret_key: "secret".to_string(),
        token: None,
    }
}

async fn id(keys: &RenewedKeys) -> String {
    keys.current().await.map_or_else(
        |e| e.message().to_string(),
        |credential| credential.key_id.clone(),
    )
}

/// Permits the reading in flight, and waits for its end.
async fn finish(program: &FakeProgram, keys: &RenewedKeys) {
    let reading = lock(&keys.0.state).reading.clone();
    program.permits.add_permits(1);
    end_of(reading.unwrap()).await;
}

fn run(test: impl Future<Output = ()>) {
    runtime::block_on(async {
        test.await;
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_first_requests_wait_for_one_reading() {
    run(async {
        let program = FakeProgram::new();
        let mut waiting = tokio::task::JoinSet::new();
        let keys = Arc::new(program.keys());
        for _ in 0..8 {
            let keys = keys.clone();
            waiting.spawn(async move { id(&keys).await });
        }
        while let Some(id) = waiting.join_next().await {
            assert_eq!(id.unwrap(), "A");
        }
        assert_eq!(program.runs(), 1);
    });
}

#[test]
fn keys_that_expire_soon_are_renewed_beside_the_requests() {
    run(async {
        let program = FakeProgram::new();
        let keys = program.keys();
        assert_eq!(id(&keys).await, "A");
        program.print(Some("B"));
        program.pass(HOUR - 300);
        for _ in 0..3 {
            assert_eq!(id(&keys).await, "A", "the reading has not ended");
        }
        finish(&program, &keys).await;
        assert_eq!((id(&keys).await.as_str(), program.runs()), ("B", 2));
        // after an hour without requests the keys have expired
        program.print(Some("C"));
        program.pass(HOUR);
        program.permits.add_permits(1);
        assert_eq!((id(&keys).await.as_str(), program.runs()), ("C", 3));
    });
}

#[test]
fn only_refused_requests_wait_for_a_reading() {
    run(async {
        let program = FakeProgram::new();
        let keys = Arc::new(program.keys());
        assert_eq!(id(&keys).await, "A");
        program.print(Some("B"));
        assert!(
            keys.instead_of(&key("A"), Refusal::OfKeys).await.is_none(),
            "they were read a moment ago"
        );
        program.pass(10);
        let mut refused = tokio::task::JoinSet::new();
        for refusal in [Refusal::OfKeys, Refusal::Unclear, Refusal::OfKeys] {
            let keys = keys.clone();
            refused.spawn(async move {
                keys.instead_of(&key("A"), refusal)
                    .await
                    .map(|c| c.key_id.clone())
            });
            // the first one begins the reading
            while program.runs() < 2 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(id(&keys).await, "A", "others go on with the keys they have");
        finish(&program, &keys).await;
        while let Some(other) = refused.join_next().await {
            assert_eq!(other.unwrap().as_deref(), Some("B"));
        }
        // a request that was sent with the old keys
        let other = keys.instead_of(&key("A"), Refusal::Unclear).await;
        assert!(other.is_some_and(|other| *other == key("B")));
        assert_eq!(program.runs(), 2);
    });
}

#[test]
fn a_failure_is_shared_and_not_repeated_at_once() {
    run(async {
        let program = FakeProgram::new();
        let keys = program.keys();
        program.print(None);
        assert_eq!(
            (id(&keys).await.as_str(), program.runs()),
            ("signed out", 1)
        );
        assert_eq!(
            (id(&keys).await.as_str(), program.runs()),
            ("signed out", 1)
        );
        program.print(Some("A"));
        program.pass(5);
        program.permits.add_permits(1);
        assert_eq!((id(&keys).await.as_str(), program.runs()), ("A", 2));
        // valid keys are used after a renewal that fails, until they expire
        program.print(None);
        program.pass(HOUR - 10);
        assert_eq!(id(&keys).await, "A");
        finish(&program, &keys).await;
        assert_eq!((id(&keys).await.as_str(), program.runs()), ("A", 3));
        program.pass(10);
        program.permits.add_permits(1);
        assert_eq!(
            (id(&keys).await.as_str(), program.runs()),
            ("signed out", 4)
        );
    });
}

#[test]
fn a_refusal_after_a_failed_reading_keeps_the_keys() {
    run(async {
        let program = FakeProgram::new();
        let keys = program.keys();
        assert_eq!(id(&keys).await, "A");
        program.print(None);
        program.pass(10);
        program.permits.add_permits(1);
        assert!(keys.instead_of(&key("A"), Refusal::OfKeys).await.is_none());
        assert_eq!((id(&keys).await.as_str(), program.runs()), ("A", 2));
    });
}

#[test]
fn a_reading_that_panics_ends() {
    struct Broken;
    #[async_trait]
    impl KeySource for Broken {
        async fn read(&self) -> Result<NewKeys> {
            panic!("a panic on purpose");
        }
    }
    run(async {
        let keys = RenewedKeys::new(Broken);
        for _ in 0..2 {
            assert_eq!(id(&keys).await, "the credentials could not be read");
        }
    });
}

/// The state under test, and a clock that only the test moves.
struct Held {
    state: KeysState,
    now: SystemTime,
    /// Number of different keys so far.
    keys: usize,
}

impl Held {
    /// Creates the state after the first reading of keys of this origin.
    fn new(origin: KeyOrigin, expires: Option<u64>) -> Self {
        let mut held = Held::without_keys();
        held.read(origin, true, expires, None);
        held
    }

    fn without_keys() -> Self {
        Held {
            state: KeysState::default(),
            now: SystemTime::now(),
            keys: 0,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Records a reading of keys, which expire after so many seconds.
    fn read(
        &mut self,
        origin: KeyOrigin,
        are_other: bool,
        expires: Option<u64>,
        cause: Option<Refusal>,
    ) {
        self.keys += usize::from(are_other);
        let read = NewKeys {
            credential: Arc::new(key(&self.keys.to_string())),
            expires: expires.map(|seconds| self.now + Duration::from_secs(seconds)),
            origin,
        };
        self.state.record(Ok(read), cause, self.now);
    }

    fn fail(&mut self, cause: Option<Refusal>) {
        self.state
            .record(Err(Error::denied("signed out")), cause, self.now);
    }

    /// Checks that a refusal causes a reading after so many seconds, and not before.
    #[track_caller]
    fn assert_due_after(&mut self, seconds: u64, refusal: Refusal) {
        self.pass(Duration::from_secs(seconds) - Duration::from_millis(1));
        assert!(!self.state.is_due(refusal, self.now), "before {seconds} s");
        self.pass(Duration::from_millis(1));
        assert!(self.state.is_due(refusal, self.now), "after {seconds} s");
    }

    fn validity(&self) -> Validity {
        self.state.validity(self.now)
    }

    fn is_paused(&self) -> bool {
        self.state.recent_failure(self.now).is_some()
    }
}

#[test]
fn a_file_is_read_again_once_a_second() {
    let mut held = Held::new(File, None);
    for are_other in [false, false, false, true, false] {
        held.assert_due_after(1, OfKeys);
        held.read(File, are_other, None, Some(OfKeys));
    }
}

/// "10 s to 5 min, while readings return the same keys"
#[test]
fn a_program_runs_again_less_and_less_often_while_it_prints_the_same_keys() {
    let mut held = Held::new(Program, None);
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        held.assert_due_after(seconds, OfKeys);
        held.read(Program, false, None, Some(OfKeys));
    }
    held.assert_due_after(300, OfKeys);
    held.read(Program, true, None, Some(OfKeys));
    held.assert_due_after(10, OfKeys);
}

/// "1 s to 10 s, while readings return the same keys"
#[test]
fn a_file_is_read_again_less_often_after_unclear_refusals() {
    let mut held = Held::new(File, None);
    for seconds in [1, 2, 4, 8, 10, 10] {
        held.assert_due_after(seconds, Unclear);
        held.read(File, false, None, Some(Unclear));
    }
    // an answer that names the keys
    held.assert_due_after(1, OfKeys);
    held.read(File, true, None, Some(OfKeys));
    held.assert_due_after(1, Unclear);
}

/// "5 min to 1 h"
#[test]
fn a_service_with_new_keys_each_time_is_rarely_asked_after_unclear_refusals() {
    let mut held = Held::new(Program, None);
    for minutes in [5, 10, 20, 40, 60, 60] {
        held.assert_due_after(minutes * 60, Unclear);
        held.read(Program, true, None, Some(Unclear));
    }
    held.state.record_use();
    held.assert_due_after(300, Unclear);
    // readings for other reasons
    held.read(Program, true, None, Some(OfKeys));
    held.read(Program, true, None, None);
    held.assert_due_after(300, Unclear);
}

/// "If a program has returned the same keys again, an answer that may mean the keys causes no
/// reading"
#[test]
fn an_unclear_refusal_of_keys_that_a_program_printed_twice_does_not_run_it() {
    let mut held = Held::new(Program, None);
    held.assert_due_after(300, Unclear);
    held.read(Program, false, None, Some(Unclear));
    held.pass(Duration::from_secs(1_000_000));
    assert!(!held.state.is_due(Unclear, held.now));
    assert!(held.state.is_due(OfKeys, held.now));
    held.read(Program, true, None, Some(OfKeys));
    held.pass(Duration::from_secs(3600));
    assert!(held.state.is_due(Unclear, held.now), "other keys");
}

#[test]
fn a_failed_reading_starts_the_pause_and_keeps_the_keys() {
    let mut held = Held::new(Program, None);
    for _ in 0..3 {
        held.assert_due_after(10, OfKeys);
        held.fail(Some(OfKeys));
    }
    held.assert_due_after(300, Unclear);
    assert_eq!(
        held.validity(),
        Validity::Valid,
        "a failure does not take the keys away"
    );
}

#[test]
fn missing_keys_are_read_at_once_and_again_after_a_pause() {
    let mut held = Held::without_keys();
    assert_eq!((held.validity(), held.is_paused()), (Validity::None, false));
    held.fail(None);
    held.pass(AFTER_FAILURE - Duration::from_millis(1));
    assert_eq!((held.validity(), held.is_paused()), (Validity::None, true));
    held.pass(Duration::from_millis(1));
    assert!(!held.is_paused());
}

#[test]
fn keys_are_renewed_before_they_expire() {
    // keys that are valid for an hour, and for less than `EARLY`
    for (seconds, renewal) in [(3600, 3300), (100, 75)] {
        let mut held = Held::new(Program, Some(seconds));
        held.pass(Duration::from_secs(renewal) - Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Valid);
        held.pass(Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Expiring);
        held.pass(Duration::from_secs(seconds - renewal) - Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Expiring);
        held.pass(Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::None);
        held.read(Program, true, Some(3600), None);
        assert_eq!(held.validity(), Validity::Valid);
    }
}

#[test]
fn a_renewal_that_fails_or_changes_nothing_is_repeated_after_a_pause() {
    let mut held = Held::new(Program, Some(3600));
    held.pass(Duration::from_secs(3300));
    held.fail(None);
    assert_eq!(held.validity(), Validity::Valid);
    held.pass(AFTER_FAILURE);
    assert_eq!(held.validity(), Validity::Expiring);
    // the program prints the same keys until 12 s before their expiry
    held.pass(Duration::from_secs(283));
    held.read(Program, false, Some(12), None);
    held.pass(Duration::from_millis(11_999));
    assert_eq!(
        held.validity(),
        Validity::Valid,
        "it was run for the same keys a moment ago"
    );
    held.pass(Duration::from_millis(1));
    assert_eq!(held.validity(), Validity::None);
}

#[test]
fn a_profile_may_change_from_keys_to_a_program() {
    let mut held = Held::new(File, None);
    held.assert_due_after(1, OfKeys);
    held.read(Program, true, None, Some(OfKeys));
    held.assert_due_after(10, OfKeys);
    held.assert_due_after(290, Unclear);
}

/// "used as they are, until the mount ends"
#[test]
fn keys_that_never_change_have_no_others() {
    run(async {
        let keys = RenewedKeys::new(Arc::new(key("A")));
        assert_eq!(id(&keys).await, "A");
        for refusal in [OfKeys, Unclear] {
            lock(&keys.0.state).read = None;
            assert!(keys.instead_of(&key("A"), refusal).await.is_none());
        }
        assert_eq!(id(&keys).await, "A");
    });
}
