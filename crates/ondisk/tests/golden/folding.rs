//! Folded names beside debugfs, which hashes them: equal hashes of equal foldings, for every
//! character, assigned or not, and for names of characters that affect each other.

use std::fmt::Write as _;
use std::path::Path;

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::dirhash::{Hash, HashVersion, Hasher, Signedness};

use crate::{tools, value_after};

const HASHER: Hasher = Hasher {
    version: HashVersion::HalfMd4,
    signedness: Signedness::Signed,
    seed: [0; 4],
    naming: Naming::Folded,
};
/// Characters that move, join, vanish or multiply when they are decomposed and folded.
const MIXED: [char; 28] = [
    'a',
    'Q',
    '\u{DF}',
    '\u{130}',
    '\u{149}',
    '\u{1F0}',
    '\u{300}',
    '\u{308}',
    '\u{323}',
    '\u{327}',
    '\u{345}',
    '\u{34F}',
    '\u{AD}',
    '\u{200D}',
    '\u{390}',
    '\u{1F80}',
    '\u{1FB7}',
    '\u{FB03}',
    '\u{AC01}',
    '\u{1100}',
    '\u{1161}',
    '\u{F73}',
    '\u{1D160}',
    '\u{2FA1D}',
    '\u{1DFA}',
    '\u{2C2F}',
    '\u{378}',
    '\u{2065}',
];

/// Characters that the parser of debugfs takes as they are.
fn is_plain(character: char) -> bool {
    !character.is_control() && !matches!(character, ' ' | '"' | '\\' | '/' | '#' | '\'')
}

fn characters(range: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = char> {
    range
        .filter_map(char::from_u32)
        .filter(|&character| is_plain(character))
}

/// Names of all characters, except for most of those for private use: one that folds in another way
/// changes the hash. Behind each there is a letter that must be folded, and a mark that may move.
fn names_of_all() -> Vec<String> {
    let private = [0xE100..=0xF8F0, 0xF_0100..=0xF_FF00, 0x10_0100..=0x10_FF00];
    let all: Vec<char> = characters(0x21..=0x10_FFFF)
        .filter(|&character| {
            !private
                .iter()
                .any(|range| range.contains(&u32::from(character)))
        })
        .collect();
    let spelt = |some: &[char]| {
        let spelt = some
            .iter()
            .flat_map(|&character| [character, 'A', '\u{301}']);
        spelt.collect()
    };
    all.chunks(30).map(spelt).collect()
}

/// Names of several marks, letters and what is dropped, in any order.
fn mixed_names() -> Vec<String> {
    let mut state = 0x9E37_79B9_u32;
    let mut pick = || {
        state = state.wrapping_mul(0x0019_660D).wrapping_add(0x3C6E_F35F);
        MIXED[(state >> 16) as usize % MIXED.len()]
    };
    (0..8000)
        .map(|number| (0..2 + number % 9).map(|_| pick()).collect())
        .collect()
}

fn by_debugfs(folder: &Path, image: &Path, names: &[String]) -> Vec<Hash> {
    let mut commands = String::new();
    for name in names {
        writeln!(commands, "dx_hash -h half_md4 -c -e utf8 \"{name}\"").expect("a string grows");
    }
    let printed = tools::debugfs(folder, image, false, commands.as_bytes());
    let answers = printed.lines().filter(|line| line.starts_with("Hash of"));
    let answers = answers.map(|line| Hash {
        major: value_after(line, " is ").expect("a hash"),
        minor: value_after(line, "(minor ").expect("a minor hash"),
    });
    answers.collect()
}

#[test]
fn folded_names_have_the_hashes_of_the_standard_tools() {
    if !tools::has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let image = tools::empty_file(folder.path(), 1);
    let path = image.to_str().expect("a plain path");
    tools::run("mke2fs", ["-q", "-F", path], |status| status == 0);
    for names in [names_of_all(), mixed_names()] {
        assert!(names.len() > 500, "there are more");
        let answers = by_debugfs(folder.path(), &image, &names);
        assert_eq!(answers.len(), names.len());
        for (answer, name) in answers.iter().zip(&names) {
            let hash = HASHER.hash(name.as_bytes()).expect("no key");
            assert_eq!(
                *answer,
                hash,
                "{} folds in another way",
                name.escape_unicode()
            );
        }
    }
}
