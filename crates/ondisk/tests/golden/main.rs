//! The decoders on images of the standard tools: every superblock, descriptor, bitmap, inode,
//! extent node, directory block, attribute block, orphan block and multiple-mount block of several
//! file systems is decoded, its checksum recomputed, and encoded to the same bytes. Without the
//! tools the tests pass and report that they compared nothing.

mod built;
mod checks;
mod folding;
mod image;
mod tools;

use std::fmt::Write as _;

use image::Image;
use pext4_ondisk::dirhash::{Hash, HashVersion, Signedness, hash};
use tools::Recipe;

/// Makes an image and checks all of it; `None` without the tools.
fn seen(recipe: &Recipe) -> Option<checks::Seen> {
    if !tools::has_tools() {
        return None;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let source = tools::make_source(folder.path());
    let path = tools::make_image(folder.path(), &source, recipe);
    let seen = checks::check(&Image::open(&path));
    println!("{}: {seen:?}", recipe.name);
    Some(seen)
}

macro_rules! golden {
    ($name:ident, $mebibytes:literal, [$($argument:literal),*], $commands:literal, $insist:expr) => {
        #[test]
        fn $name() {
            let recipe = Recipe {
                name: stringify!($name),
                mebibytes: $mebibytes,
                arguments: &["-t", "ext4", $($argument),*],
                commands: $commands,
            };
            if let Some(seen) = seen(&recipe) {
                let insist: fn(&checks::Seen) -> bool = $insist;
                assert!(insist(&seen), "some kind of structure was missing: {seen:?}");
            }
        }
    };
}

golden!(
    four_kib_blocks_long_descriptors,
    300,
    [
        "-b",
        "4096",
        "-O",
        "64bit,metadata_csum,metadata_csum_seed,orphan_file"
    ],
    "",
    |seen| seen.extent_nodes > 1
        && seen.index_roots > 0
        && seen.orphan_blocks > 0
        && seen.attribute_blocks > 0
        && seen.superblocks == 2
);
golden!(
    one_kib_blocks_long_descriptors,
    64,
    ["-b", "1024", "-O", "64bit,metadata_csum,orphan_file"],
    "",
    |seen| seen.extent_nodes > 8
        && seen.index_nodes > 1
        && seen.orphan_blocks > 0
        && seen.attribute_areas > 0
        && seen.bitmap_checksums > 1
        && seen.superblocks == 5
);
golden!(
    one_kib_blocks_short_descriptors,
    64,
    ["-b", "1024", "-O", "^64bit,metadata_csum"],
    "",
    |seen| seen.index_nodes > 1 && seen.bitmap_checksums > 1 && seen.descriptor_copies > 8
);
golden!(
    descriptors_with_crc16,
    64,
    ["-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"],
    "",
    |seen| seen.index_nodes > 1 && seen.bitmap_checksums == 0 && seen.descriptor_copies > 8
);
golden!(
    no_checksums_at_all,
    64,
    [
        "-b",
        "2048",
        "-O",
        "^64bit,^metadata_csum,^uninit_bg,^flex_bg"
    ],
    "",
    |seen| seen.index_roots > 0 && seen.attribute_blocks > 0
);
golden!(
    spread_descriptors,
    64,
    [
        "-b",
        "1024",
        "-g",
        "1024",
        "-O",
        "64bit,metadata_csum,meta_bg,^resize_inode"
    ],
    "",
    |seen| seen.descriptor_copies > 100
);
golden!(
    two_backups,
    64,
    [
        "-b",
        "1024",
        "-O",
        "64bit,metadata_csum,sparse_super2,^resize_inode"
    ],
    "",
    |seen| seen.superblocks == 3 && seen.descriptor_copies == 16
);
golden!(
    backups_everywhere,
    64,
    [
        "-b",
        "1024",
        "-O",
        "metadata_csum,^sparse_super,^resize_inode"
    ],
    "",
    |seen| seen.superblocks == 8
);
golden!(
    block_maps_and_small_inodes,
    64,
    [
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "^extent,^64bit,^metadata_csum,^flex_bg,^extra_isize"
    ],
    "",
    |seen| seen.extent_nodes == 0 && seen.attribute_blocks > 0 && seen.index_nodes > 1
);
golden!(
    small_inodes_with_checksums,
    64,
    [
        "-b",
        "1024",
        "-I",
        "128",
        "-O",
        "^extra_isize,metadata_csum,64bit"
    ],
    "",
    |seen| seen.attribute_blocks > 0
);
golden!(
    large_inodes,
    64,
    ["-b", "4096", "-I", "1024", "-O", "metadata_csum,64bit"],
    "",
    |seen| seen.attribute_areas > 1
);
golden!(
    clusters,
    64,
    [
        "-b",
        "1024",
        "-C",
        "16384",
        "-O",
        "64bit,metadata_csum,bigalloc,^resize_inode"
    ],
    "",
    |seen| seen.extent_nodes > 1 && seen.bitmap_checksums > 0
);
golden!(
    blocks_of_64_kib,
    96,
    [
        "-b",
        "65536",
        "-O",
        "64bit,metadata_csum,^has_journal,^resize_inode,^orphan_file"
    ],
    "",
    |seen| seen.index_roots > 0
);
golden!(
    rarer_features,
    96,
    [
        "-b",
        "4096",
        "-O",
        "64bit,metadata_csum,quota,project,ea_inode,inline_data,large_dir"
    ],
    "ea_set -f HUGE /file user.huge\n",
    |seen| seen.value_inodes == 1 && seen.attribute_areas > 3
);
golden!(
    unsigned_names,
    64,
    ["-b", "1024", "-O", "64bit,metadata_csum"],
    "set_super_value flags 2\n",
    |seen| seen.index_nodes > 1
);
golden!(
    tea_names,
    64,
    ["-b", "1024", "-O", "64bit,metadata_csum"],
    "set_super_value def_hash_version tea\nset_super_value flags 2\n",
    |seen| seen.index_nodes > 1
);

/// A separate test, because tools that write to such an image first wait for other users.
#[test]
fn multiple_mount_protection() {
    if !tools::has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = tools::empty_file(folder.path(), 16);
    let path_text = path.to_str().expect("a plain path");
    for checksums in ["metadata_csum", "^metadata_csum"] {
        let features = format!("64bit,mmp,{checksums}");
        let arguments = [
            "-q", "-F", "-t", "ext4", "-b", "1024", "-O", &features, path_text,
        ];
        tools::run("mke2fs", arguments, |status| status == 0);
        let seen = checks::check_frame(&Image::open(&path));
        assert_eq!((seen.mmp_blocks, seen.superblocks), (1, 2));
    }
}

/// The number after a word in a line of debugfs.
fn value_after(line: &str, word: &str) -> Option<u32> {
    let (_, rest) = line.split_once(word)?;
    let digits: String = rest
        .strip_prefix("0x")?
        .chars()
        .take_while(char::is_ascii_hexdigit)
        .collect();
    u32::from_str_radix(&digits, 16).ok()
}

#[test]
fn hashes_are_those_of_the_standard_tools() {
    if !tools::has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let image = tools::empty_file(folder.path(), 1);
    tools::run(
        "mke2fs",
        ["-q", "-F", image.to_str().expect("a plain path")],
        |status| status == 0,
    );
    let names: Vec<String> = (1u32..120)
        .map(|length| {
            (0..length)
                .map(|i| char::from_u32(97 + (i * 7 + length) % 26).expect("a letter"))
                .collect()
        })
        .chain([
            "n\u{e4}me".to_owned(),
            "\u{fc}\u{20ac}".repeat(20),
            ".".to_owned(),
        ])
        .collect();
    let kinds = [
        ("legacy", HashVersion::Legacy),
        ("half_md4", HashVersion::HalfMd4),
        ("tea", HashVersion::Tea),
    ];
    let seeds = [
        ("", [0; 4]),
        (
            "-s 01020304-0506-0708-090a-0b0c0d0e0f10",
            [0x0403_0201, 0x0807_0605, 0x0C0B_0A09, 0x100F_0E0D],
        ),
    ];
    let (mut commands, mut expected) = (String::new(), Vec::new());
    for name in &names {
        for (kind, version) in kinds {
            for (option, seed) in seeds {
                writeln!(commands, "dx_hash -h {kind} {option} {name}").expect("a string grows");
                let hash = hash(version, Signedness::Signed, seed, name.as_bytes());
                expected.push((kind, name, hash.expect("no key")));
            }
        }
    }
    let printed = tools::debugfs(folder.path(), &image, false, commands.as_bytes());
    let answers = printed
        .lines()
        .filter(|line| line.starts_with("Hash of"))
        .map(|line| Hash {
            major: value_after(line, " is ").expect("a hash"),
            minor: value_after(line, "(minor ").expect("a minor hash"),
        });
    let answers: Vec<Hash> = answers.collect();
    assert_eq!(answers.len(), expected.len(), "{printed}");
    for (answer, (kind, name, hash)) in answers.into_iter().zip(expected) {
        assert_eq!(answer, hash, "{kind} of {name}");
    }
}
