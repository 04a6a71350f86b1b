//! Random operations on the names of a casefolded directory and of a plain one beside it, compared
//! with a map. The model knows which names are equal: each is one of a few words, in any case.

use std::collections::BTreeMap;

use fastrand::Rng;
use pext4_fs::{
    CreateAttributes, DirectoryEntry, InodeNumber, Refusal, RenameMode, Result, SetAttributes,
    Volume,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::Image;

const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o755,
    uid: 0,
    gid: 0,
};
/// Letters, each in two cases of which one may be longer than the other.
const LETTERS: [(&str, &str); 8] = [
    ("a", "A"),
    ("k", "\u{212A}"),
    ("ss", "\u{1E9E}"),
    ("\u{E9}", "E\u{301}"),
    ("\u{3C9}", "\u{3A9}"),
    ("\u{436}", "\u{416}"),
    ("x", "X\u{200D}"),
    ("\u{23A}", "\u{2C65}"),
];
const WORDS: u64 = 400;

/// The place of a name: whether its directory is the folded one, and what the name is there.
type Place = (bool, Vec<u8>);

/// What is stored at each place: the name's bytes and its inode.
type Model = BTreeMap<Place, (Vec<u8>, InodeNumber)>;

struct Both {
    volume: Volume,
    folded: InodeNumber,
    plain: InodeNumber,
    model: Model,
    random: Rng,
}

/// One end of an operation.
struct End {
    place: Place,
    directory: InodeNumber,
    name: Vec<u8>,
}

impl Both {
    fn some_end(&mut self) -> End {
        let (word, is_folded) = (self.random.u64(..WORDS), self.random.u64(..4) > 0);
        let (mut name, mut key) = (format!("{word}-"), format!("{word}-"));
        for digit in 0..12 + word % 7 {
            let (small, large) = LETTERS[((word >> (digit % 9)) + digit) as usize % LETTERS.len()];
            key.push_str(small);
            name.push_str(if self.random.u64(..2) == 0 {
                small
            } else {
                large
            });
        }
        let directory = if is_folded { self.folded } else { self.plain };
        let key = if is_folded { key } else { name.clone() };
        End {
            place: (is_folded, key.into_bytes()),
            directory,
            name: name.into_bytes(),
        }
    }

    fn make(&mut self, end: End) {
        let made = match self.model.values().next() {
            Some((_, inode)) if self.random.u64(..4) == 0 => {
                self.volume.link(*inode, end.directory, &end.name)
            }
            _ => self.volume.create(end.directory, &end.name, &NEW),
        };
        let made = made.map(|made| {
            self.volume.forget(made.inode, 1);
            made.inode
        });
        match self.model.get(&end.place) {
            Some(_) => assert_refused(made, Refusal::Exists),
            None => {
                let inode = made.expect("there is room");
                self.model.insert(end.place, (end.name, inode));
            }
        }
    }

    fn remove(&mut self, end: &End) {
        let removed = self.volume.unlink(end.directory, &end.name);
        match self.model.remove(&end.place) {
            Some(_) => removed.expect("it is there"),
            None => assert_refused(removed, Refusal::NotFound),
        }
    }

    fn rename(&mut self, from: &End, to: End) {
        let modes = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ];
        let mode = modes[usize::try_from(self.random.u64(..3)).expect("one of three")];
        let (volume, model) = (&self.volume, &mut self.model);
        let moved = volume.rename(from.directory, &from.name, to.directory, &to.name, mode);
        let Some(source) = model.get(&from.place).cloned() else {
            return assert_refused(moved, Refusal::NotFound);
        };
        let target = model.get(&to.place).cloned();
        if from.place == to.place && from.name != to.name && mode != RenameMode::Exchange {
            moved.expect("it is respelt");
            model.insert(to.place, (to.name, source.1));
            return;
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => assert_refused(moved, Refusal::Exists),
            (RenameMode::Exchange, None) => assert_refused(moved, Refusal::NotFound),
            (_, Some((_, inode))) if inode == source.1 => moved.expect("one file"),
            (RenameMode::Exchange, Some(target)) => {
                moved.expect("both are there");
                model.insert(from.place.clone(), (source.0, target.1));
                model.insert(to.place, (target.0, source.1));
            }
            (_, target) => {
                moved.expect("it is moved");
                model.remove(&from.place);
                let name = target.map_or(to.name, |(stored, _)| stored);
                model.insert(to.place, (name, source.1));
            }
        }
    }

    fn step(&mut self, grows: bool) {
        let end = self.some_end();
        let found = self.volume.lookup(end.directory, &end.name);
        let found = found.map(|found| self.volume.forget_one(found.inode));
        match self.model.get(&end.place) {
            Some((_, inode)) => assert_eq!(found.expect("it is there"), *inode),
            None => assert_refused(found, Refusal::NotFound),
        }
        match self.random.u64(..8) {
            0..4 if grows => self.make(end),
            0 => self.make(end),
            1..5 => self.remove(&end),
            _ => {
                let to = self.some_end();
                // Every third move is within one name.
                let to = if self.random.u64(..3) == 0 {
                    self.respelt(&end)
                } else {
                    to
                };
                self.rename(&end, to);
            }
        }
    }

    /// The same place in another case.
    fn respelt(&mut self, end: &End) -> End {
        let (is_folded, key) = &end.place;
        let name = if *is_folded {
            key.clone()
        } else {
            end.name.clone()
        };
        End {
            place: end.place.clone(),
            directory: end.directory,
            name,
        }
    }

    fn compare(&self) {
        for (is_folded, directory) in [(true, self.folded), (false, self.plain)] {
            let mut listed = BTreeMap::new();
            let mut take = |entry: DirectoryEntry<'_>| {
                if entry.name != b"." && entry.name != b".." {
                    listed.insert(entry.name.to_vec(), entry.inode);
                }
                true
            };
            let read = self.volume.read_directory(directory, 0, &mut take);
            read.expect("it is sound");
            let here = self
                .model
                .iter()
                .filter(|((place, _), _)| *place == is_folded);
            let expected: BTreeMap<_, _> = here.map(|(_, stored)| stored.clone()).collect();
            assert_eq!(listed, expected);
        }
    }
}

/// Gives a hold back and returns the inode.
trait ForgetOne {
    fn forget_one(&self, inode: InodeNumber) -> InodeNumber;
}

impl ForgetOne for Volume {
    fn forget_one(&self, inode: InodeNumber) -> InodeNumber {
        self.forget(inode, 1);
        inode
    }
}

fn assert_refused<R: std::fmt::Debug>(result: Result<R>, refusal: Refusal) {
    match result {
        Err(error) => assert!(error.is(refusal), "{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn make_directory(volume: &Volume, name: &str) -> InodeNumber {
    let made = volume.make_directory(InodeNumber::ROOT, name.as_bytes(), &NEW);
    volume.forget_one(made.expect("a directory").inode)
}

#[test]
fn names_follow_a_map_of_folded_names() {
    for (seed, format) in [
        (1, ["-b", "1024", "-O", "casefold"]),
        (2, ["-b", "4096", "-O", "casefold"]),
        (3, ["-b", "1024", "-O", "casefold,inline_data"]),
        (4, ["-b", "1024", "-O", "casefold,^dir_index"]),
    ] {
        println!("seed {seed}");
        let Some(image) = Image::make(&format) else {
            return;
        };
        let volume = image.open();
        let (folded, plain) = (
            make_directory(&volume, "folded"),
            make_directory(&volume, "plain"),
        );
        let flags = volume.attributes(folded).expect("it is there").flags;
        let change = SetAttributes {
            flags: Some(flags | InodeFlags::CASEFOLD.bits()),
            ..SetAttributes::default()
        };
        volume.set_attributes(folded, &change).expect("it is empty");
        let mut both = Both {
            volume,
            folded,
            plain,
            model: Model::new(),
            random: Rng::with_seed(0xCA5E_F01D + seed),
        };
        for step in 0..6000 {
            both.step((step / 1500) % 2 == 0);
            if step % 500 == 0 {
                both.compare();
            }
        }
        both.compare();
        let Both { volume, .. } = both;
        let report = volume.report();
        assert_eq!(report.get("journal", "handles short of credits"), Some(0));
        volume.close().expect("it closes");
        image.assert_clean();
    }
}
