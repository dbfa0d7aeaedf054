//! A file of the configuration, edited in the ways of editors, orchestrators and accidents. The module records the
//! file's content and the versions that were ever valid. It does not depend on a coordinator's use of them.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model_boss_tests::Dice;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::time::sleep;

/// A length in bytes beyond the limit for such files.
const TOO_LONG: usize = (1 << 20) + 100;
/// The longest time that a half-written file exists, in milliseconds: the coordinator may read the file several times
/// meanwhile, or not at all.
const PAUSE_MS: u64 = 500;

/// The content of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stands {
    /// The content is this version, complete and valid.
    Good(u64),
    /// Invalid content, which is to be reported in these words.
    Bad(String),
    /// No file, where none is required.
    Absent,
}

/// The valid versions that were ever written.
#[derive(Debug, Default)]
pub(super) struct Good {
    written: Mutex<BTreeSet<u64>>,
    /// The newest version that was seen in use: no older version may return.
    seen: AtomicU64,
}

impl Good {
    /// Whether a coordinator may use version `number`, when `seen` was in use before.
    pub(super) fn allows(&self, number: u64, seen: u64) -> bool {
        number >= seen && self.written.lock().unwrap().contains(&number)
    }

    /// The newest version that was seen in use.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Records that version `number` is in use.
    pub(super) fn saw(&self, number: u64) {
        self.seen.fetch_max(number, Ordering::AcqRel);
    }
}

/// A kind of file.
pub(super) struct Kind {
    /// The text of a version, different for each number.
    pub(super) text: fn(u64) -> String,
    /// Faults: the number of a line, its replacement, and the message after the file's name.
    pub(super) faults: &'static [(usize, &'static str, &'static str)],
    /// The messages for a file that is no text, too long, empty, absent, or a folder.
    pub(super) words: [&'static str; 5],
    /// Whether the file may be absent without harm to any request.
    pub(super) may_vanish: bool,
    /// The state of the file when it is absent.
    pub(super) absence: fn(name: &str) -> Stands,
}

/// A file that is edited.
pub(super) struct Edited {
    kind: Kind,
    folder: PathBuf,
    name: &'static str,
    number: u64,
    stands: Stands,
    good: Arc<Good>,
}

impl Edited {
    /// Writes the first version.
    pub(super) fn new(folder: &Path, name: &'static str, kind: Kind) -> Self {
        let (folder, stands) = (folder.to_owned(), Stands::Absent);
        let mut edited = Self { kind, folder, name, number: 0, stands, good: Arc::default() };
        let first = edited.next();
        fs::write(edited.path(), (edited.kind.text)(first)).unwrap();
        edited
    }

    /// The path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    /// The content of the file.
    pub(super) const fn stands(&self) -> &Stands {
        &self.stands
    }

    /// The valid versions.
    pub(super) fn good(&self) -> Arc<Good> {
        Arc::clone(&self.good)
    }

    /// Writes a new valid version, in a random way.
    pub(super) async fn mend(&mut self, dice: &mut Dice) {
        self.clear();
        let number = self.next();
        self.write(&(self.kind.text)(number).into_bytes(), dice).await;
    }

    /// Makes a random edit; returns its name.
    pub(super) async fn edit(&mut self, dice: &mut Dice) -> &'static str {
        self.clear();
        let is_whole = fs::metadata(self.path()).is_ok_and(|about| about.is_file());
        match dice.below(16) {
            6 => {
                let number = self.next_bad();
                let text = (self.kind.text)(number);
                let cut = cut(&text, dice);
                self.stands = Stands::Bad(format!("{}:", self.name));
                self.write(&text.into_bytes()[..cut], dice).await;
                "truncated"
            }
            7..=8 => {
                let number = self.next_bad();
                let (line, with, told) = *dice.one_of(self.kind.faults);
                let text = (self.kind.text)(number);
                let lines = text.lines().enumerate().map(|(at, old)| if at + 1 == line { with } else { old });
                let text: String = lines.map(|line| format!("{line}\n")).collect();
                self.stands = Stands::Bad(format!("{}{told}", self.name));
                self.write(text.as_bytes(), dice).await;
                "faulty"
            }
            9 => {
                let number = self.next_bad();
                let mut bytes = (self.kind.text)(number).into_bytes();
                let kind = usize::try_from(dice.below(3)).unwrap();
                match kind {
                    0 => bytes[10] = 0xff,
                    1 => bytes.resize(TOO_LONG, b'\n'),
                    _ => bytes.clear(),
                }
                self.bad(self.kind.words[kind]);
                self.write(&bytes, dice).await;
                ["not a text", "too long", "empty"][kind]
            }
            10 if is_whole && self.kind.may_vanish => {
                fs::remove_file(self.path()).unwrap();
                self.stands = (self.kind.absence)(self.name);
                if dice.below(2) == 0 {
                    return "deleted";
                }
                pause(dice).await;
                self.mend(dice).await;
                "deleted and put back"
            }
            11 => self.replace_by_no_file(dice),
            12 if is_whole => {
                fs::set_permissions(self.path(), Permissions::from_mode(0o000)).unwrap();
                // A user who may read everything, like root, can still read the file.
                if fs::File::open(self.path()).is_err() {
                    self.bad(": cannot be read");
                }
                "chmod 0"
            }
            13 if is_whole && self.kind.may_vanish => {
                let elsewhere = self.beside("moved");
                fs::rename(self.path(), &elsewhere).unwrap();
                pause(dice).await;
                fs::rename(elsewhere, self.path()).unwrap();
                "moved away and back"
            }
            14 if is_whole => {
                let bytes = fs::read(self.path()).unwrap();
                self.write(&bytes, dice).await;
                "the same again"
            }
            _ => {
                self.mend(dice).await;
                "new"
            }
        }
    }

    /// Renames the whole folder, so that its files are absent. The next edit moves it back.
    pub(super) fn move_folder_away(&self) {
        self.bring_folder_back();
        fs::rename(&self.folder, away(&self.folder)).unwrap();
    }

    fn bring_folder_back(&self) {
        if away(&self.folder).exists() {
            fs::rename(away(&self.folder), &self.folder).unwrap();
        }
    }

    fn bad(&mut self, told: &str) {
        self.stands = Stands::Bad(format!("{}{told}", self.name));
    }

    fn next_bad(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn next(&mut self) -> u64 {
        let number = self.next_bad();
        // The version is recorded before it is written: a coordinator may read it from its first byte on.
        self.good.written.lock().unwrap().insert(number);
        self.stands = Stands::Good(number);
        number
    }

    /// A path beside the file that no reader of the folder takes for one of its own.
    fn beside(&self, what: &str) -> PathBuf {
        self.folder.join(format!(".{}.{what}", self.name))
    }

    /// Removes a folder, a link or a pipe, so that a file can be written.
    fn clear(&self) {
        self.bring_folder_back();
        let path = self.path();
        match fs::metadata(&path) {
            Ok(about) if about.is_file() => {
                if about.permissions().mode() & 0o777 == 0 {
                    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
                }
            }
            Ok(about) if about.is_dir() => fs::remove_dir(path).unwrap(),
            // The path is a pipe, a dangling link, or no file at all.
            _ => drop(fs::remove_file(path)),
        }
    }

    fn replace_by_no_file(&mut self, dice: &mut Dice) -> &'static str {
        let beside = self.beside("odd");
        let put = |path: PathBuf| fs::rename(&beside, path).unwrap();
        match dice.below(4) {
            0 if self.kind.may_vanish => {
                drop(fs::remove_file(self.path()));
                fs::create_dir(self.path()).unwrap();
                self.stands = match self.kind.words[4] {
                    "" => Stands::Absent,
                    told => Stands::Bad(format!("{}{told}", self.name)),
                };
                "a folder in its place"
            }
            1 => {
                symlink("nowhere", &beside).unwrap();
                put(self.path());
                self.bad(self.kind.words[3]);
                "a link to nowhere"
            }
            2 => {
                symlink(self.name, &beside).unwrap();
                put(self.path());
                self.bad(": cannot be read");
                "a link to itself"
            }
            _ => {
                mkfifo(&beside, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
                put(self.path());
                self.bad(": cannot be read: it is not a file");
                "a pipe in its place"
            }
        }
    }

    /// Writes these bytes as one of several programs would.
    async fn write(&self, bytes: &[u8], dice: &mut Dice) {
        let (path, beside) = (self.path(), self.beside("new"));
        match dice.below(6) {
            // VS Code, nano and a shell write in place, through a link if there is one.
            0..=1 => fs::write(path, bytes).unwrap(),
            // The file is written in two pieces, as on a slow disk.
            2 => {
                let half = std::str::from_utf8(bytes).ok().filter(|text| text.contains('"'));
                let half = half.map_or(bytes.len() / 2, |text| cut(text, dice));
                fs::write(&path, &bytes[..half]).unwrap();
                pause(dice).await;
                fs::write(path, bytes).unwrap();
            }
            // vim does this: the old file is renamed to a backup, the new one is written, and the backup is deleted.
            3 if self.kind.may_vanish && path.exists() => {
                let backup = self.folder.join(format!("{}~", self.name));
                fs::rename(&path, &backup).unwrap();
                fs::write(&path, bytes).unwrap();
                fs::remove_file(backup).unwrap();
            }
            // Kubernetes does this: the file is a link through a link to a folder, and the latter is replaced.
            4 => self.turn_link(bytes),
            // emacs, git and most careful programs do this: the new file is renamed over the old one.
            _ => {
                fs::write(&beside, bytes).unwrap();
                fs::rename(beside, path).unwrap();
            }
        }
    }

    fn turn_link(&self, bytes: &[u8]) {
        let (data, new) = (format!("..data-{}", self.name), format!("..{}-{}", self.number, self.name));
        let (data_at, beside) = (self.folder.join(&data), self.beside("link"));
        let old = fs::read_link(&data_at).ok();
        if old.as_deref() == Some(Path::new(&new)) {
            // The same version is written again.
            return fs::write(self.path(), bytes).unwrap();
        }
        fs::create_dir(self.folder.join(&new)).unwrap();
        fs::write(self.folder.join(&new).join(self.name), bytes).unwrap();
        symlink(&new, &beside).unwrap();
        fs::rename(&beside, data_at).unwrap();
        symlink(Path::new(&data).join(self.name), &beside).unwrap();
        fs::rename(&beside, self.path()).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.folder.join(old)).unwrap();
        }
    }
}

/// The path of a folder that was renamed.
pub(super) fn away(folder: &Path) -> PathBuf {
    folder.with_extension("away")
}

/// An offset at which `text` can be cut so that the rest is invalid: inside a quoted word.
fn cut(text: &str, dice: &mut Dice) -> usize {
    let mut inside = false;
    let mut cuts = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        inside ^= byte == b'"';
        if inside {
            cuts.push(at + 1);
        }
    }
    *dice.one_of(&cuts)
}

/// A pause between two steps of an edit, as long as a person may take.
async fn pause(dice: &mut Dice) {
    sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
}
