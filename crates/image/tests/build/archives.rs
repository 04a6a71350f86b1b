//! Images from tar archives.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use pext4_image::build::{Builder, Source};

use crate::directories::everything;
use crate::oracle::{Mounted, check, compare, describe, same};

/// Packs a tree with the system's tar; `None`, with a message, if that fails.
fn pack(tree: &Path, archive: &Path, options: &[&str]) -> Option<()> {
    let output = Command::new("tar")
        .arg("-C")
        .arg(tree)
        .args(options)
        .args(["--xattrs", "--xattrs-include=*", "--sort=name", "-cf"])
        .arg(archive)
        .arg(".")
        .output();
    match output {
        Ok(output) if output.status.success() => Some(()),
        other => {
            eprintln!("SKIPPED: tar {options:?}: {other:?}");
            None
        }
    }
}

fn compressed(archive: &Path, name: &str) -> PathBuf {
    let path = archive.with_extension(name);
    let mut source = File::open(archive).unwrap();
    let target = File::create(&path).unwrap();
    match name {
        "gz" => {
            let mut encoder = flate2::write::GzEncoder::new(target, flate2::Compression::fast());
            std::io::copy(&mut source, &mut encoder).unwrap();
            encoder.finish().unwrap();
        }
        _ => {
            let mut encoder = zstd::stream::write::Encoder::new(target, 1).unwrap();
            std::io::copy(&mut source, &mut encoder).unwrap();
            encoder.finish().unwrap();
        }
    }
    path
}

#[test]
fn an_archive_of_everything_comes_back_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    // Archives contain no sockets.
    fs::remove_file(tree.join("socket")).unwrap();
    for (kind, options) in [
        ("posix", &["--format=posix"][..]),
        ("sparse", &["--format=posix", "--sparse"][..]),
    ] {
        let archive = folder.path().join(format!("{kind}.tar"));
        let Some(()) = pack(&tree, &archive, options) else {
            continue;
        };
        let image = folder.path().join(kind);
        Builder::new()
            .source(Source::Archive(archive.clone()))
            .build(&image)
            .unwrap();
        compare(&image, &tree);
        let bytes = fs::read(&image).unwrap();
        for name in ["gz", "zst"] {
            let image = folder.path().join(name);
            let path = compressed(&archive, name);
            let stream = File::open(&path).unwrap();
            Builder::new()
                .source(Source::Stream("a pipe".to_owned(), Box::new(stream)))
                .replace(true)
                .build(&image)
                .unwrap();
            assert!(fs::read(&image).unwrap() == bytes, "{kind} {name}");
            Builder::new()
                .source(Source::Archive(path))
                .replace(true)
                .build(&image)
                .unwrap();
            assert!(
                fs::read(&image).unwrap() == bytes,
                "{kind} {name} from a file"
            );
        }
    }
}

/// Data within a piece, across the border of two, behind a hole of many, and at the end.
#[test]
fn a_large_file_with_holes_is_copied_where_it_has_data() {
    use std::os::unix::fs::FileExt;
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let file = File::create(tree.join("large")).unwrap();
    file.set_len(300 * MIB + 5).unwrap();
    let data: Vec<u8> = (0..9 * MIB).map(|at| (at % 251) as u8 + 1).collect();
    file.write_all_at(&data, 25 * MIB).unwrap();
    file.write_all_at(b"within", 70 * MIB).unwrap();
    file.write_all_at(b"a border", 256 * MIB - 4).unwrap();
    file.write_all_at(b"at an end", 300 * MIB - 4).unwrap();
    drop(file);
    let image = folder.path().join("image");
    let build = |source| {
        let builder = Builder::new().source(source).replace(true);
        builder.build(&image).unwrap();
        compare(&image, &tree);
    };
    build(Source::Directory(tree.clone()));
    let archive = folder.path().join("archive");
    if pack(&tree, &archive, &["--format=posix", "--sparse"]).is_some() {
        build(Source::Archive(archive));
    }
}

#[test]
fn old_archives_keep_names_and_holes() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    everything(&tree);
    fs::remove_file(tree.join("socket")).unwrap();
    let strip = |tree: &Path| {
        // Not supported by the format: attributes, and times below a second.
        let lines = describe(tree).into_iter().map(|(path, line)| {
            let lost = ["user.", "trusted.", "security.", "system."];
            let words = line
                .split(' ')
                .filter(|word| !lost.iter().any(|prefix| word.starts_with(prefix)));
            let line: Vec<&str> = words.map(|word| word.split('.').next().unwrap()).collect();
            (path, line.join(" "))
        });
        lines.collect()
    };
    for options in [&["--format=gnu"][..], &["--format=gnu", "--sparse"][..]] {
        let archive = folder.path().join("gnu.tar");
        let output = Command::new("tar")
            .arg("-C")
            .arg(&tree)
            .args(options)
            .arg("-cf")
            .arg(&archive)
            .arg(".")
            .output();
        if !output.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: there is no tar that knows {options:?}");
            return;
        }
        let image = folder.path().join("image");
        Builder::new()
            .source(Source::Archive(archive))
            .replace(true)
            .build(&image)
            .unwrap();
        check(&image);
        if let Some(mounted) = Mounted::new(&image) {
            same(&strip(&tree), &strip(mounted.path()));
        }
    }
}

/// An archive under construction.
pub struct Packer(tar::Builder<Vec<u8>>);

impl Packer {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// Adds an entry with an unmodified name, which a strict library would refuse.
    pub fn entry(mut self, kind: u8, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.as_mut_bytes()[156] = kind;
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(b'0', name, "", content)
    }

    pub fn directory(self, name: &str) -> Self {
        self.entry(b'5', name, "", b"")
    }

    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Builds an image from the bytes of an archive.
pub fn build(bytes: Vec<u8>, image: &Path) -> pext4_image::build::Result<()> {
    let stream = Box::new(std::io::Cursor::new(bytes));
    let source = Source::Stream("the archive".to_owned(), stream);
    Builder::new().source(source).build(image).map(drop)
}

/// A stream of several parts, each compressed separately, with a checksum at its end.
fn packed(name: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        if name == "gz" {
            let mut encoder = flate2::write::GzEncoder::new(bytes, flate2::Compression::fast());
            encoder.write_all(part).unwrap();
            bytes = encoder.finish().unwrap();
        } else {
            let mut encoder = zstd::stream::write::Encoder::new(bytes, 1).unwrap();
            encoder.include_checksum(true).unwrap();
            encoder.write_all(part).unwrap();
            bytes = encoder.finish().unwrap();
        }
    }
    bytes
}

/// Builds from a stream that comes byte by byte, and from a file.
fn build_both(bytes: &[u8], image: &Path) -> [pext4_image::build::Result<()>; 2] {
    struct Slow(std::io::Cursor<Vec<u8>>);
    impl std::io::Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = buffer.len().min(1);
            self.0.read(&mut buffer[..count])
        }
    }
    let archive = image.with_extension("archive");
    fs::write(&archive, bytes).unwrap();
    let slow = Box::new(Slow(std::io::Cursor::new(bytes.to_vec())));
    let sources = [
        Source::Stream("the archive".to_owned(), slow),
        Source::Archive(archive),
    ];
    sources.map(|source| {
        Builder::new()
            .source(source)
            .replace(true)
            .build(image)
            .map(drop)
    })
}

#[test]
fn damage_is_found_by_the_last_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = Packer::new().file("a", b"content").finish();
    let padded = [&archive[..], &[0; 5 << 20]].concat();
    for name in ["gz", "zst"] {
        for bytes in [&archive, &padded] {
            let sound = packed(name, &[bytes]);
            for built in build_both(&sound, &image) {
                built.unwrap();
            }
            let mut wrong = sound.clone();
            // The checksum is the last 4 bytes of a frame, and precedes the size in a gzip member.
            let sum = wrong.len() - if name == "gz" { 8 } else { 4 };
            wrong[sum] ^= 1;
            let cut = &sound[..sound.len() - 2];
            for damaged in [&wrong[..], cut] {
                for built in build_both(damaged, &image) {
                    let error = built.expect_err(name).to_string();
                    assert!(error.contains("archive: cannot read it: "), "{error}");
                }
            }
        }
    }
}

#[test]
fn streams_may_have_parts_and_padding() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = Packer::new().file("a", b"content").finish();
    for built in build_both(&archive, &image) {
        built.unwrap();
    }
    let expected = fs::read(&image).unwrap();
    // A skippable frame of 3 bytes.
    let note = [0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for name in ["gz", "zst"] {
        let (first, second) = archive.split_at(700);
        let parts = packed(name, &[first, second, &[0; 3000]]);
        let mut noted = [
            packed(name, &[first]),
            note.to_vec(),
            packed(name, &[second]),
        ]
        .concat();
        if name == "gz" {
            noted.clone_from(&parts);
        }
        for sound in [&parts, &noted] {
            for padding in [&b""[..], &[0], &[0; 10_000], b"text"] {
                for built in build_both(&[sound, padding].concat(), &image) {
                    built.unwrap();
                }
                assert!(fs::read(&image).unwrap() == expected, "{name}");
            }
        }
        // The last part contains nothing of the archive, but is damaged all the same.
        let mut damaged = parts.clone();
        let sum = damaged.len() - if name == "gz" { 8 } else { 4 };
        damaged[sum] ^= 1;
        for built in build_both(&damaged, &image) {
            built.expect_err(name);
        }
    }
}

/// A compressed archive, followed by an endless sequence of parts.
struct Endless {
    rest: Vec<u8>,
    part: Vec<u8>,
    /// How many bytes it returns, so that a test always ends.
    left: usize,
}

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Err(std::io::Error::other("far too much was read"));
        }
        if self.rest.is_empty() {
            self.rest.clone_from(&self.part);
        }
        let count = buffer.len().min(self.rest.len()).min(self.left);
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        self.left -= count;
        Ok(count)
    }
}

#[test]
fn endless_data_behind_the_end_mark_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let archive = Packer::new().file("a", b"content").finish();
    for name in ["gz", "zst"] {
        for content in [&[0; 8 << 20][..], b""] {
            let part = packed(name, &[content]);
            let stream = Endless {
                rest: packed(name, &[&archive]),
                left: (512 << 20) / content.len().max(2048) * part.len(),
                part,
            };
            let source = Source::Stream("a pipe".to_owned(), Box::new(stream));
            let built = Builder::new().source(source).build(&image).map(drop);
            let error = built.unwrap_err().to_string();
            assert!(error.contains("behind its end mark"), "{name}: {error}");
            assert!(!image.exists());
        }
    }
}

#[test]
fn paths_of_entries_are_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let bytes = Packer::new()
        .directory("usr/lib")
        .entry(b'2', "lib", "usr/lib", b"")
        .entry(b'2', "abs", "/usr/../../usr", b"")
        .file("./lib/x", b"through a link")
        .file("abs/y", b"through another")
        .file("made/on/the/way", b"z")
        .file("made/on/the/way", b"again")
        .entry(b'1', "made/link", "lib/x", b"")
        .finish();
    build(bytes, &image).unwrap();
    check(&image);
    let Some(mounted) = Mounted::new(&image) else {
        return;
    };
    let read = |name: &str| fs::read_to_string(mounted.path().join(name)).unwrap();
    assert_eq!(read("usr/lib/x"), "through a link");
    assert_eq!(read("usr/y"), "through another");
    assert_eq!(read("made/on/the/way"), "again");
    assert_eq!(read("made/link"), "through a link");
}

#[test]
fn a_replaced_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // Each path to `here` leads through the name that the entry replaces.
    let start = |target: &str| {
        Packer::new()
            .entry(b'2', "here", target, b"")
            .file("here/before", b"x")
    };
    let bytes = start(".")
        .directory("other")
        .file("here/before", b"x")
        .entry(b'2', "here/here", "other", b"")
        .file("here/after", b"through the new link")
        .finish();
    build(bytes, &image).unwrap();
    check(&image);
    if let Some(mounted) = Mounted::new(&image) {
        assert!(!mounted.path().join("after").exists());
        let after = fs::read(mounted.path().join("other/after")).unwrap();
        assert_eq!(after, b"through the new link");
    }
    for kind in [b'0', b'1'] {
        let bytes = start(".")
            .entry(kind, "here/here", "before", b"")
            .file("here/after", b"x")
            .finish();
        let error = build(bytes, &folder.path().join("refused")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("here: it is no directory"), "{error}");
    }
}

#[test]
fn a_directory_may_lie_over_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("a.tar");
    let bytes = Packer::new()
        .file("etc/a", b"low")
        .file("etc/b", b"low")
        .finish();
    File::create(&archive).unwrap().write_all(&bytes).unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("etc")).unwrap();
    fs::write(tree.join("etc/b"), "high").unwrap();
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Archive(archive))
        .source(Source::Directory(tree))
        .build(&image)
        .unwrap();
    check(&image);
    if let Some(mounted) = Mounted::new(&image) {
        assert_eq!(fs::read(mounted.path().join("etc/a")).unwrap(), b"low");
        assert_eq!(fs::read(mounted.path().join("etc/b")).unwrap(), b"high");
    }
}

#[test]
fn ids_in_access_lists_are_mapped_as_owners_are() {
    let folder = tempfile::tempdir().unwrap();
    let with = |named: &str, lines: &str| {
        let text = format!("user::rw-,{named},group::r--,mask::rw-,other::---");
        let rest = format!(" SCHILY.acl.access={text}\n");
        let record = format!("{}{rest}", rest.len() + if rest.len() < 97 { 2 } else { 3 });
        let packer = Packer::new().entry(b'x', "header", "", record.as_bytes());
        let bytes = packer.file("file", b"content").finish();
        let image = folder.path().join("image");
        Builder::new()
            .source(Source::Stream(
                "archive".to_owned(),
                Box::new(std::io::Cursor::new(bytes)),
            ))
            .map(pext4_image::build::Map::parse(lines).unwrap())
            .uuid([1; 16])
            .hash_seed([1; 4])
            .replace(true)
            .build(&image)
            .unwrap();
        check(&image);
        fs::read(&image).unwrap()
    };
    let mapped = with(
        "user:1000:r--,user:1001:rw-,group:50:r-x",
        "uid 1000 5\nuid 1001 3\ngid 50 7",
    );
    let plain = with("user:3:rw-,user:5:r--,group:7:r-x", "");
    assert!(mapped == plain, "the images differ");
}

/// If an attribute fills its inode, the inode cannot have inline data, not even of length 0.
#[test]
fn an_empty_file_whose_inode_is_full_is_no_inline_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    for length in 40..90 {
        let value = vec![b'v'; length];
        let attribute = ("SCHILY.xattr.user.a", &value[..]);
        archive.append_pax_extensions([attribute]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        let name = format!("with {length}");
        archive.append_data(&mut header, name, &b""[..]).unwrap();
    }
    let stream = std::io::Cursor::new(archive.into_inner().unwrap());
    let image = folder.path().join("image");
    Builder::new()
        .source(Source::Stream("a pipe".to_owned(), Box::new(stream)))
        .features(["inline_data"])
        .build(&image)
        .unwrap();
    check(&image);
}
