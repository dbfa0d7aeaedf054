//! One contract, held by both stores.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

fn put(name: &str, text: &str) -> RecordChange {
    RecordChange::Put { name: name.to_owned(), text: text.to_owned() }
}

fn delete(name: &str) -> RecordChange {
    RecordChange::Delete { name: name.to_owned() }
}

fn row(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}

/// The contract of every store. `open` gives a fresh handle of the same store, as another process has it.
fn holds_the_contract(mut open: impl FnMut() -> Box<dyn RecordStore>, may_overlap: bool) {
    let mut first = open();
    assert_eq!(first.take_over().unwrap(), []);
    first.commit(&[put("job/b", "2"), put("job/a", "1"), put("file/x", "{\"ü\":1}")]).unwrap();
    first.commit(&[put("job/b", "3"), delete("job/a"), delete("job/never")]).unwrap();
    if !may_overlap {
        drop(first);
        let mut second = open();
        assert_eq!(second.take_over().unwrap(), [row("file/x", "{\"ü\":1}"), row("job/b", "3")]);
        return;
    }
    let mut second = open();
    assert_eq!(second.take_over().unwrap(), [row("file/x", "{\"ü\":1}"), row("job/b", "3")]);
    // The process that was replaced has stopped for a while, and goes on.
    let refused = first.commit(&[put("job/b", "late")]).unwrap_err();
    assert!(matches!(refused, JobStoreError::TakenOver { .. }) && refused.is_lasting(), "{refused}");
    second.commit(&(0..1_000).map(|n| put(&format!("job/{n:04}"), "x")).collect::<Vec<_>>()).unwrap();
    drop((first, second));
    let mut third = open();
    let records = third.take_over().unwrap();
    assert_eq!(records.len(), 1_002);
    assert!(records.contains(&row("job/b", "3")) && records.is_sorted());
}

#[test]
fn rc_26_the_embedded_store_holds_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    // Two processes cannot have the file open at the same time.
    holds_the_contract(|| Box::new(RedbRecords::new(folder.path())), false);
}

#[test]
fn rc_26_redis_holds_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(folder.path()) else { return };
    holds_the_contract(|| Box::new(RedisRecords::new(&server.url, "here").unwrap()), true);
    let mut elsewhere = RedisRecords::new(&server.url, "there").unwrap();
    assert_eq!(elsewhere.take_over().unwrap(), [], "the jobs of another folder are not its own");
    assert!(elsewhere.describe().starts_with("Redis at "));
}

#[test]
fn jb_1_a_store_of_a_later_release_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = RedbRecords::new(folder.path());
    store.take_over().unwrap();
    store.commit(&[put("job/a", "1")]).unwrap();
    drop(store);
    let path = folder.path().join(RedbRecords::FILE);
    let set_form = |form: u64| {
        let database = redb::Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        let numbers: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("numbers");
        transaction.open_table(numbers).unwrap().insert("form", form).unwrap();
        transaction.commit().unwrap();
    };
    set_form(SCHEMA + 1);
    let refused = RedbRecords::new(folder.path()).take_over().unwrap_err();
    assert!(refused.is_lasting(), "{refused}");
    assert!(refused.to_string().contains("later release"), "{refused}");
    set_form(SCHEMA);
    assert_eq!(RedbRecords::new(folder.path()).take_over().unwrap(), [row("job/a", "1")]);

    let Some(server) = Server::start(folder.path()) else { return };
    let set = |form: u64| {
        let mut connection = redis::Client::open(server.url.as_str()).unwrap().get_connection().unwrap();
        redis::cmd("HSET").arg("mb:jobs:here").arg("form").arg(form).exec(&mut connection).unwrap();
    };
    let open = || RedisRecords::new(&server.url, "here").unwrap();
    let mut store = open();
    store.take_over().unwrap();
    store.commit(&[put("job/a", "1")]).unwrap();
    set(SCHEMA + 1);
    assert!(matches!(open().take_over().unwrap_err(), JobStoreError::Newer { .. }));
    set(SCHEMA);
    assert_eq!(open().take_over().unwrap(), [row("job/a", "1")]);
}

/// A real server in a folder, which ends with this value.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    /// `None`, with a printed reason, where none is installed.
    fn start(folder: &Path) -> Option<Self> {
        let socket = folder.join("redis.sock");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "yes", "--dir"])
            .arg(folder)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            eprintln!("skipped: redis-server is not installed");
            return None;
        };
        let server = Self { process, url: format!("redis+unix://{}", socket.display()) };
        let client = redis::Client::open(server.url.as_str()).unwrap();
        while client.get_connection().and_then(|mut c| redis::cmd("PING").exec(&mut c)).is_err() {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
