//! Edits that are killed, at a random moment or at each of their steps: each is made or not made.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use super::images::{cat, image, on};
use crate::common::traced::{STEPS, can_trace, killed_at};
use crate::common::{Place, has, run, succeed};

/// How many edits are killed at a random moment.
const RANDOM_KILLS: usize = 12;
/// After so many edits that were killed at once, none of which was still at work, something else is
/// wrong.
const MAX_KILLS_AT_ONCE: usize = 50;
/// More calls than the edit makes of one name.
const MAX_CALLS: usize = 100;
/// Bytes of each file that the edit puts.
const FILE_SIZE: usize = 20_000;

/// A number from the seed that the environment gives, or another one each time.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("PEXT4_SEED").ok();
    let given = given.and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("PEXT4_SEED={seed}");
    seed
}

/// An image, and an edit of it that replaces the directory `old` by `new` with files.
struct Edited {
    place: Place,
    original: Vec<u8>,
    script: PathBuf,
    way: &'static str,
    files: usize,
    /// How many edits were killed and left the old and the new state.
    killed: [usize; 2],
    finished: usize,
}

impl Edited {
    fn new(way: &'static str, files: usize) -> Self {
        let place = image("64M");
        let tree = place.point.join("tree");
        fs::create_dir(&tree).expect("a fresh place");
        for number in 0..files {
            fs::write(tree.join(number.to_string()), vec![1; FILE_SIZE]).expect("there is room");
        }
        let script = place.point.join("script");
        let text = format!("put '{}' /new\nrm -r /old\n", tree.display());
        fs::write(&script, text).expect("a fresh place");
        succeed(&mut on(&place, "mkdir", &["/old"]));
        let original = fs::read(&place.image).expect("readable");
        Self {
            place,
            original,
            script,
            way,
            files,
            killed: [0; 2],
            finished: 0,
        }
    }

    /// The edit, of the image as it was at first.
    fn command(&self) -> Command {
        fs::write(&self.place.image, &self.original).expect("there is room");
        let mut edit = on(&self.place, "edit", &["-q", "--by", self.way, "-f"]);
        edit.arg(&self.script);
        edit
    }

    /// Checks what an edit has left, and counts it. e2fsck replays a journal even if the superblock
    /// does not ask for that, and must see what our own replay sees.
    fn check(&mut self, ended: ExitStatus) {
        let place = &self.place;
        assert!(ended.success() || ended.signal() == Some(9), "{ended}");
        let names = succeed(&mut on(place, "ls", &["/"]));
        if has("e2fsck") {
            let told = run(Command::new("e2fsck").arg("-fy").arg(&place.image));
            assert!(matches!(told.status.code(), Some(0 | 1)), "{told:?}");
        }
        assert_eq!(names, succeed(&mut on(place, "ls", &["/"])));
        let (old, new) = (names.contains("old"), names.contains("new"));
        assert_ne!(old, new, "one of them: {names}");
        if new {
            let last = cat(place, &format!("/new/{}", self.files - 1));
            assert_eq!(last.len(), FILE_SIZE);
        }
        place.check();
        match ended.success() {
            true => {
                assert!(new, "a finished edit is made");
                self.finished += 1;
            }
            false => self.killed[usize::from(new)] += 1,
        }
    }

    fn kill_after(&mut self, delay: Duration) {
        let mut child = self.command().spawn().expect("it starts");
        std::thread::sleep(delay);
        // It may have ended by itself.
        let _ = child.kill();
        let ended = child.wait().expect("it ends");
        self.check(ended);
    }

    fn show(&self) {
        let [old, new] = self.killed;
        let (way, finished) = (self.way, self.finished);
        println!("{way}: killed with the old state {old}, the new one {new}; finished {finished}");
    }

    /// A clone that was left beside the image does not matter.
    fn check_leftovers(&self) {
        let place = &self.place;
        succeed(&mut on(place, "touch", &["--by", self.way, "/last"]));
        let directory = place.image.parent().unwrap_or(Path::new("/"));
        let left = fs::read_dir(directory).expect("there").count();
        assert_eq!(left, 2, "the image and the directory beside it");
    }
}

/// The time that a whole edit takes is what moments are drawn from, on any machine.
fn kill_at_random(way: &'static str) {
    let mut edited = Edited::new(way, 400);
    let mut edit = edited.command();
    let start = Instant::now();
    let ended = edit.status().expect("it starts");
    let whole = start.elapsed();
    edited.check(ended);
    let mut random = seed();
    for _ in 0..RANDOM_KILLS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let share = (random >> 33) as f64 / (1u64 << 31) as f64;
        edited.kill_after(whole.mul_f64(share));
    }
    for _ in 0..MAX_KILLS_AT_ONCE {
        if edited.killed[0] > 0 {
            break;
        }
        edited.kill_after(Duration::ZERO);
    }
    edited.show();
    assert!(edited.killed[0] > 0, "no edit was killed before its end");
    assert!(edited.finished > 0, "no edit has ended");
    edited.check_leftovers();
}

/// Each write to the image, each flush and each rename is a moment to be killed. Before the first
/// one nothing is made, and before the last one all is, though the command has not ended.
fn kill_at_each_step(way: &'static str) {
    if !can_trace() {
        return;
    }
    let mut edited = Edited::new(way, 4);
    for call in STEPS {
        let finished = edited.finished;
        for number in 1..=MAX_CALLS {
            let mut edit = killed_at(&edited.command(), call, number);
            let ended = edit.status().expect("it starts");
            edited.check(ended);
            if edited.finished > finished {
                break;
            }
        }
        assert!(
            edited.finished > finished,
            "the edit has fewer calls {call}"
        );
    }
    edited.show();
    assert!(edited.killed[0] > 0, "a step before the edit is made");
    assert!(edited.killed[1] > 0, "a step after that");
    edited.check_leftovers();
}

#[test]
fn a_killed_edit_is_made_or_not_by_the_journal() {
    kill_at_random("journal");
}

#[test]
fn a_killed_edit_is_made_or_not_by_a_clone() {
    kill_at_random("clone");
}

#[test]
fn an_edit_by_the_journal_is_made_or_not_at_each_step() {
    kill_at_each_step("journal");
}

#[test]
fn an_edit_by_a_clone_is_made_or_not_at_each_step() {
    kill_at_each_step("clone");
}
