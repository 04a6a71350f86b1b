//! Casefolded directories on images of mke2fs: what is equal, what is refused, what is inherited,
//! and that e2fsck finds the indexes and names as it would make them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use pext4_block::{Device, RamDevice};
use pext4_fs::{
    CreateAttributes, DirectoryEntry, InodeNumber, MountOptions, Refusal, RenameMode, Result,
    SetAttributes, Volume, Whiteout,
};
use pext4_ondisk::inode::InodeFlags;

use crate::images::{Image, inode};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o755,
    uid: 0,
    gid: 0,
};
const STRICT: [&str; 6] = [
    "-b",
    "1024",
    "-O",
    "casefold",
    "-E",
    "encoding_flags=strict",
];

/// Alphabets in both cases, letter by letter.
const SCRIPTS: [(&str, &str); 7] = [
    ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    (
        "\u{E0}\u{E9}\u{EE}\u{F5}\u{FC}\u{111}\u{142}\u{15F}",
        "\u{C0}\u{C9}\u{CE}\u{D5}\u{DC}\u{110}\u{141}\u{15E}",
    ),
    (
        "\u{3B1}\u{3B2}\u{3B3}\u{3B4}\u{3C9}",
        "\u{391}\u{392}\u{393}\u{394}\u{3A9}",
    ),
    (
        "\u{430}\u{431}\u{432}\u{433}\u{44F}",
        "\u{410}\u{411}\u{412}\u{413}\u{42F}",
    ),
    ("\u{561}\u{562}\u{563}", "\u{531}\u{532}\u{533}"),
    (
        "\u{3042}\u{5B57}\u{AC01}\u{1F600}",
        "\u{3042}\u{5B57}\u{AC01}\u{1F600}",
    ),
    ("\u{10428}\u{10429}", "\u{10400}\u{10401}"),
];

fn flags(volume: &Volume, inode: InodeNumber) -> InodeFlags {
    let attributes = volume.attributes(inode).expect("it is there");
    InodeFlags::from_bits_retain(attributes.flags)
}

fn set_flag(volume: &Volume, inode: InodeNumber, folds: bool) -> Result<()> {
    let mut flags = flags(volume, inode);
    flags.set(InodeFlags::CASEFOLD, folds);
    let change = SetAttributes {
        flags: Some(flags.bits()),
        ..SetAttributes::default()
    };
    volume.set_attributes(inode, &change).map(drop)
}

fn make_directory(volume: &Volume, parent: InodeNumber, name: &str) -> InodeNumber {
    let made = volume.make_directory(parent, name.as_bytes(), &NEW);
    made.expect("a directory").inode
}

/// A new casefolded directory in the root.
fn folded(volume: &Volume, name: &str) -> InodeNumber {
    let directory = make_directory(volume, ROOT, name);
    set_flag(volume, directory, true).expect("it is empty");
    directory
}

fn names(volume: &Volume, directory: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    let mut take = |entry: DirectoryEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
        }
        true
    };
    let listed = volume.read_directory(directory, 0, &mut take);
    listed.expect("it is sound");
    names.sort();
    names
}

fn assert_refused<R: std::fmt::Debug>(result: Result<R>, refusal: Refusal, what: &str) {
    match result {
        Err(error) => assert!(error.is(refusal), "{what}: {error}"),
        Ok(_) => panic!("{what}: it was not refused"),
    }
}

#[test]
fn what_differs_in_case_is_one_name_and_stays_as_it_was_given() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "casefold"]) else {
        return;
    };
    let volume = image.open();
    assert!(!volume.is_read_only(), "{:?}", volume.notes());
    let directory = folded(&volume, "folded");
    let file = volume
        .create(directory, b"ReadMe", &NEW)
        .expect("a file")
        .inode;
    let found = volume.lookup(directory, b"README").expect("it is found");
    assert_eq!(found.inode, file);
    assert_eq!(inode(&volume, "/folded/readME"), file);
    assert_refused(
        volume.lookup(ROOT, b"FOLDED"),
        Refusal::NotFound,
        "in the root",
    );
    assert_refused(
        volume.create(directory, b"readme", &NEW),
        Refusal::Exists,
        "a file",
    );
    assert_refused(
        volume.link(file, directory, b"README"),
        Refusal::Exists,
        "a link",
    );
    let composed = "\u{C5}ngstr\u{F6}m".as_bytes();
    let apart = "A\u{30A}NGSTRO\u{308}M".as_bytes();
    let other = volume
        .create(directory, composed, &NEW)
        .expect("a file")
        .inode;
    assert_eq!(
        volume.lookup(directory, apart).expect("one name").inode,
        other
    );
    // What replaces a file gets its name as it was.
    volume
        .rename(directory, b"README", directory, apart, RenameMode::Replace)
        .expect("moved");
    assert_eq!(names(&volume, directory), ["\u{C5}ngstr\u{F6}m"]);
    volume.unlink(directory, apart).expect("it is there");
    assert_eq!(names(&volume, directory), [""; 0]);
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_move_may_change_the_case_alone() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "casefold"]) else {
        return;
    };
    let volume = image.open();
    let (directory, plain) = (
        folded(&volume, "folded"),
        make_directory(&volume, ROOT, "plain"),
    );
    let mut previous = "name".to_owned();
    let file = volume
        .create(directory, b"name", &NEW)
        .expect("a file")
        .inode;
    let below = make_directory(&volume, directory, "below");
    for (new, mode) in [
        ("NAME", RenameMode::Replace),
        ("Name", RenameMode::NoReplace),
        ("name\u{200D}", RenameMode::Replace),
    ] {
        let moved = volume.rename(
            directory,
            previous.as_bytes(),
            directory,
            new.as_bytes(),
            mode,
        );
        moved.expect("moved");
        assert_eq!(
            names(&volume, directory),
            BTreeSet::from([new, "below"])
                .into_iter()
                .collect::<Vec<_>>()
        );
        assert_eq!(
            volume.lookup(directory, b"nAmE").expect("there").inode,
            file
        );
        previous = new.to_owned();
    }
    let moved = volume.rename(
        directory,
        b"below",
        directory,
        b"BELOW",
        RenameMode::Replace,
    );
    moved.expect("a directory");
    assert_eq!(
        volume.lookup(directory, b"below").expect("there").inode,
        below
    );
    // These change nothing: the name itself takes its place.
    let white = Whiteout::default();
    let replace = RenameMode::Replace;
    let left =
        volume.rename_leaving_whiteout(directory, b"name", directory, b"NAME", replace, &white);
    left.expect("nothing to do");
    let exchanged = volume.rename(directory, b"name", directory, b"NAME", RenameMode::Exchange);
    exchanged.expect("nothing to do");
    assert_eq!(names(&volume, directory), ["BELOW", "name\u{200D}"]);
    // Elsewhere they are two names.
    let _ = volume.create(plain, b"name", &NEW).expect("a file");
    volume
        .rename(directory, b"NAME", plain, b"NAME", RenameMode::NoReplace)
        .expect("moved");
    assert_eq!(names(&volume, plain), ["NAME", "name"]);
    let back = volume.rename(plain, b"NAME", directory, b"below", RenameMode::Replace);
    assert_refused(back, Refusal::IsADirectory, "a file over a directory");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn the_flag_is_set_on_empty_directories_and_inherited() {
    for features in ["casefold", "casefold,inline_data"] {
        let Some(image) = Image::make(&["-b", "1024", "-O", features]) else {
            return;
        };
        let volume = image.open();
        let outer = folded(&volume, "outer");
        let inner = make_directory(&volume, outer, "Inner");
        assert!(flags(&volume, inner).contains(InodeFlags::CASEFOLD));
        let file = volume.create(inner, b"File", &NEW).expect("a file").inode;
        assert!(!flags(&volume, file).contains(InodeFlags::CASEFOLD));
        assert_eq!(inode(&volume, "/outer/INNER/file"), file);
        assert_refused(
            set_flag(&volume, inner, false),
            Refusal::NotEmpty,
            "it has a name",
        );
        assert_refused(set_flag(&volume, ROOT, true), Refusal::NotEmpty, "the root");
        assert_refused(
            set_flag(&volume, file, true),
            Refusal::NotSupported,
            "a file",
        );
        set_flag(&volume, inner, true).expect("it has the flag");
        volume.unlink(inner, b"FILE").expect("it is there");
        set_flag(&volume, inner, false).expect("it is empty");
        let _ = volume.create(inner, b"a", &NEW).expect("a file");
        let _ = volume.create(inner, b"A", &NEW).expect("another");
        assert_eq!(names(&volume, inner), ["A", "a"]);
        volume.close().expect("it closes");
        image.assert_clean();
    }
    let Some(image) = Image::make(&["-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let directory = make_directory(&volume, ROOT, "directory");
    assert_refused(
        set_flag(&volume, directory, true),
        Refusal::NotSupported,
        "the feature",
    );
}

#[test]
fn a_strict_encoding_refuses_what_is_no_text_where_case_does_not_matter() {
    let bad = b"not-\xFF-text".as_slice();
    for (arguments, is_strict) in [(&STRICT[..], true), (&STRICT[..4], false)] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        let directory = folded(&volume, "folded");
        let file = volume
            .create(ROOT, bad, &NEW)
            .expect("it is not folded")
            .inode;
        let good = volume
            .create(directory, b"good", &NEW)
            .expect("a file")
            .inode;
        if is_strict {
            let refused = |result: Result<()>, what| assert_refused(result, Refusal::Invalid, what);
            refused(volume.create(directory, bad, &NEW).map(drop), "a file");
            refused(volume.link(file, directory, bad).map(drop), "a link");
            refused(volume.lookup(directory, bad).map(drop), "a lookup");
            refused(volume.unlink(directory, bad), "a removal");
            refused(volume.remove_directory(directory, bad), "a removal");
            let moved = volume.rename(directory, b"good", directory, bad, RenameMode::Replace);
            refused(moved, "a move");
        } else {
            let _ = volume.link(good, directory, bad).expect("it is opaque");
            assert_eq!(volume.lookup(directory, bad).expect("there").inode, good);
            let other = volume.lookup(directory, &bad.to_ascii_uppercase());
            assert_refused(other, Refusal::NotFound, "bytes of another case");
        }
        let dots = ".\u{200D}.".as_bytes();
        assert_refused(
            volume.create(directory, dots, &NEW),
            Refusal::Exists,
            "like dots",
        );
        assert_refused(
            volume.lookup(directory, dots),
            Refusal::NotFound,
            "like dots",
        );
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

/// A name in one of the scripts, and the same in other cases.
fn spelt(number: u64, random: &mut Rng) -> (String, String) {
    let (small, large) = SCRIPTS[(number % 7) as usize];
    let (small, large): (Vec<char>, Vec<char>) = (small.chars().collect(), large.chars().collect());
    let (mut name, mut other) = (format!("{number}-"), format!("{number}-"));
    for _ in 0..random.u64(..20) {
        let letter = usize::try_from(random.u64(..small.len() as u64)).expect("few");
        let mut pick = || {
            if random.u64(..2) == 0 {
                small[letter]
            } else {
                large[letter]
            }
        };
        name.push(pick());
        other.push(pick());
    }
    (name, other)
}

#[test]
fn thousands_of_names_are_where_e2fsck_looks_for_them() {
    for (block, seed) in [("1024", 0xF01D_0001), ("4096", 0xF01D_0002)] {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let Some(image) = Image::make(&["-b", block, "-N", "16384", "-O", "casefold"]) else {
            return;
        };
        let volume = image.open();
        let directory = folded(&volume, "folded");
        let mut others = BTreeMap::new();
        for number in 0..6000 {
            let (name, other) = spelt(number, &mut random);
            let made = volume
                .create(directory, name.as_bytes(), &NEW)
                .expect("a file")
                .inode;
            others.insert(other, made);
            if number % 3 == 0 {
                let (other, _) = others.pop_first().expect("there are some");
                volume
                    .unlink(directory, other.as_bytes())
                    .expect("it is there");
            }
        }
        let find = |volume: &Volume| {
            for (other, file) in &others {
                let found = volume
                    .lookup(directory, other.as_bytes())
                    .expect("it is there");
                assert_eq!(found.inode, *file, "{other}");
            }
            assert_eq!(names(volume, directory).len(), others.len());
        };
        find(&volume);
        assert!(flags(&volume, directory).contains(InodeFlags::INDEX));
        volume.close().expect("it closes");
        image.assert_clean();
        // Indexes as e2fsck makes them.
        image.rebuild_indexes();
        let volume = image.open();
        find(&volume);
        for other in others.keys() {
            volume
                .unlink(directory, other.as_bytes())
                .expect("it is there");
        }
        volume.close().expect("it closes");
        image.assert_clean();
    }
}

#[test]
fn an_unknown_encoding_is_refused_and_keyed_names_are_only_read() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "casefold,^metadata_csum"]) else {
        return;
    };
    image.change(|bytes| bytes[1024 + 0x27C] = 2);
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let refused = Volume::open(device, MountOptions::default());
    let error = refused.expect_err("the encoding is unknown").to_string();
    assert!(error.contains("encoding 2"), "{error}");
    let format = ["-b", "1024", "-O", "casefold,encrypt,^metadata_csum"];
    let Some(image) = Image::with_file(&format, b"text", &["mkdir vault", "mkdir Plain"]) else {
        return;
    };
    image.debugfs_write("sif Plain flags 0x40080000");
    image.debugfs_write("ln file Plain/File");
    image.debugfs_write("ln file vault/ciphertext-A-name");
    image.encrypt("vault");
    image.debugfs_write("sif vault flags 0x40080800");
    let volume = image.open();
    assert!(volume.is_read_only());
    let notes = volume.notes().join("\n");
    assert!(notes.contains("encrypt, casefold"), "{notes}");
    assert_eq!(inode(&volume, "/Plain/fILE"), inode(&volume, "/file"));
    let vault = inode(&volume, "/vault");
    assert_eq!(names(&volume, vault), ["ciphertext-A-name"]);
    let found = volume
        .lookup(vault, b"ciphertext-A-name")
        .expect("as it is stored");
    assert_eq!(found.inode, inode(&volume, "/file"));
    let other = volume.lookup(vault, b"ciphertext-a-name");
    assert_refused(other, Refusal::NotFound, "opaque names");
}

/// Bytes of blocks of a folded directory are changed at random: names that are no text, that are
/// equal to others, that are in the wrong leaf, and nodes that lead anywhere.
#[test]
fn damaged_directories_give_errors_or_answers() {
    let Some(image) = Image::make(&["-b", "1024", "-O", "casefold,^metadata_csum"]) else {
        return;
    };
    let volume = image.open();
    let directory = folded(&volume, "folded");
    let mut random = Rng::with_seed(0xF01D_0003);
    let all: Vec<(String, String)> = (0..400).map(|at| spelt(at, &mut random)).collect();
    for (name, _) in &all {
        let made = volume.create(directory, name.as_bytes(), &NEW);
        volume.forget(made.expect("a file").inode, 1);
    }
    volume.close().expect("it closes");
    let told = image.debugfs("blocks folded");
    let words = told.split_whitespace().filter_map(|word| word.parse().ok());
    let blocks: Vec<u64> = words.collect();
    assert!(blocks.len() > 10, "{told}");
    let sound = RamDevice::load(&image.path).expect("the image");
    for round in 0..150 {
        println!("round {round}");
        let device = Arc::new(sound.fork());
        for _ in 0..1 + random.u64(..4) {
            let block = blocks[usize::try_from(random.u64(..blocks.len() as u64)).expect("few")];
            let byte = [u8::try_from(random.u64(..256)).expect("a byte")];
            let at = block * 1024 + random.u64(..1024);
            device.write_at(at, &byte).expect("it lies within");
        }
        let Ok(volume) = Volume::open(device, MountOptions::default()) else {
            continue;
        };
        for (number, (_, other)) in (0..40).zip(&all) {
            let name = other.as_bytes();
            let _ = volume.lookup(directory, name);
            let new = format!("{number}-NEW");
            let replace = RenameMode::Replace;
            let _ = match number % 4 {
                0 => volume.unlink(directory, name),
                1 => volume.rename(directory, name, directory, new.as_bytes(), replace),
                2 => volume.create(directory, new.as_bytes(), &NEW).map(drop),
                _ => volume.rename(
                    directory,
                    name,
                    directory,
                    other.to_uppercase().as_bytes(),
                    replace,
                ),
            };
        }
        let _ = volume.read_directory(directory, 0, &mut |_| true);
        let _ = volume.close();
    }
}
