use super::*;
use crate::store::object::runtime;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;

const HOUR: u64 = 3600;

/// A program whose runs the test permits, and whose keys it chooses.
#[derive(Clone)]
struct Program {
    id: Arc<Mutex<Option<&'static str>>>,
    /// Seconds until the keys expire.
    lasts: u64,
    runs: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
    /// Milliseconds since `start`.
    clock: Arc<AtomicU64>,
    start: KeyMoment,
}

#[async_trait]
impl KeySource for Program {
    async fn read(&self) -> Result<NewKeys> {
        self.runs.fetch_add(1, SeqCst);
        self.permits.acquire().await.unwrap().forget();
        let id = lock(&self.id).ok_or_else(|| Error::denied("signed out"))?;
        let expires = self.now().time + Duration::from_secs(self.lasts);
        Ok(NewKeys {
            credential: Arc::new(key(id)),
            expires: Some(expires),
            origin: KeyOrigin::Program,
        })
    }
}

impl Program {
    fn new() -> Self {
        Program {
            id: Arc::new(Mutex::new(Some("A"))),
            lasts: HOUR,
            runs: Arc::default(),
            permits: Arc::new(Semaphore::new(1)),
            clock: Arc::default(),
            start: KeyMoment::now(),
        }
    }

    fn keys(&self) -> RenewedKeys {
        let program = self.clone();
        RenewedKeys::with_clock(self.clone(), move || program.now())
    }

    fn now(&self) -> KeyMoment {
        let passed = Duration::from_millis(self.clock.load(SeqCst));
        KeyMoment {
            instant: self.start.instant + passed,
            time: self.start.time + passed,
        }
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
async fn finish(program: &Program, keys: &RenewedKeys) {
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
        let program = Program::new();
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
        let program = Program::new();
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
        let program = Program::new();
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
        let program = Program::new();
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
        let program = Program::new();
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
