//! Hostile or changing sources: one error that names the path, and nothing left behind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use pext4_image::Progress;
use pext4_image::build::{Builder, Error, Size, Source};

use crate::archives::{Packer, build};

/// Far longer than anything here takes.
const HANG: std::time::Duration = std::time::Duration::from_secs(120);

/// Checks that the directory is empty.
fn is_bare(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn refused(bytes: Vec<u8>, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let error = build(bytes, &folder.path().join("image"))
        .unwrap_err()
        .to_string();
    for word in words {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
    is_bare(folder.path());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    refused(
        Packer::new().file("../out", b"x").finish(),
        &["../out", "`..`"],
    );
    refused(
        Packer::new().file("a/../../out", b"x").finish(),
        &["a/../../out"],
    );
    refused(
        Packer::new().file("/etc/passwd", b"x").finish(),
        &["/etc/passwd", "absolute"],
    );
    let link = Packer::new()
        .entry(b'1', "link", "../../etc/passwd", b"")
        .finish();
    refused(link, &["link", "../../etc/passwd"]);
    let link = Packer::new()
        .entry(b'1', "link", "/etc/passwd", b"")
        .finish();
    refused(link, &["link", "absolute"]);
}

#[test]
fn links_out_of_the_image_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let target = format!("../../../../../../../..{}", outside.display());
    if target.len() > 90 {
        eprintln!("SKIPPED: the temporary folder's name is too long for a header");
        return;
    }
    let bytes = Packer::new()
        .entry(b'2', "out", &target, b"")
        .file("out/file", b"x")
        .finish();
    build(bytes, &folder.path().join("image")).unwrap();
    is_bare(&outside);
}

#[test]
fn links_must_lead_somewhere() {
    let early = Packer::new()
        .entry(b'1', "link", "file", b"")
        .file("file", b"x")
        .finish();
    refused(early, &["link", "hard link"]);
    let directory = Packer::new()
        .directory("dir")
        .entry(b'1', "link", "dir", b"")
        .finish();
    refused(directory, &["link", "directory"]);
    refused(
        Packer::new().entry(b'2', "link", "", b"").finish(),
        &["link", "nowhere"],
    );
    let circle = Packer::new()
        .entry(b'2', "a", "b", b"")
        .entry(b'2', "b", "a", b"")
        .file("a/x", b"")
        .finish();
    refused(circle, &["a", "no directory", "circle"]);
    let below = Packer::new()
        .file("file", b"")
        .file("file/below", b"")
        .finish();
    refused(below, &["file/below: file: it is no directory"]);
}

#[test]
fn truncated_or_damaged_archives_are_refused() {
    let whole = Packer::new()
        .file("first", b"x")
        .file("second", &[7; 5000])
        .finish();
    refused(
        whole[..whole.len() - 924].to_vec(),
        &["inside a header", "cut short"],
    );
    refused(whole[..2048 + 100].to_vec(), &["second", "ends inside"]);
    refused(Vec::new(), &["cut short"]);
    // Less than a header is not accepted as an archive, compressed or not.
    for length in [0, 5, 511] {
        let words = vec![b'w'; length];
        refused(words.clone(), &["less than a header", "no tar archive"]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&words).expect("memory");
        let gzip = gzip.finish().expect("memory");
        refused(gzip, &["less than a header", "no tar archive"]);
    }
    // A small archive that is packed in another way has less than a header.
    for (start, command) in [(&b"\xfd7zXZ\0"[..], "xz -dc"), (b"BZh91AY", "bzip2 -dc")] {
        refused(start.to_vec(), &["compressed", command]);
        refused([start, &[7; 600]].concat(), &["compressed", command]);
    }
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    refused(damaged, &["sum"]);
    refused(b"no archive at all".repeat(100), &["sum"]);
    let mut packed = zstd::encode_all(&whole[..], 3).unwrap();
    packed.truncate(packed.len() / 2);
    refused(packed, &["cannot read it"]);
    refused(
        Packer::new().entry(b'Z', "odd", "", b"").finish(),
        &["odd", "type `Z`"],
    );
}

#[test]
fn a_stream_without_an_end_is_not_read_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let endless = |start: Vec<u8>| {
        let stream = std::io::Read::chain(std::io::Cursor::new(start), std::io::repeat(b'x'));
        let source = Source::Stream("the archive".to_owned(), Box::new(stream));
        Builder::new().source(source).build(&image)
    };
    assert!(endless(b"no archive".to_vec()).is_err());
    is_bare(folder.path());
    endless(Packer::new().file("file", b"x").finish()).unwrap();
    crate::oracle::check(&image);
}

/// A header without its content.
fn claim(size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path("bomb").unwrap();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn announced_sizes_are_not_trusted() {
    refused(claim(1 << 40), &["bomb", "ends inside"]);
    refused(claim(u64::MAX >> 1), &["more than any file"]);
    let mut extension = claim(1 << 30);
    extension[156] = b'x';
    let mut header = tar::Header::from_byte_slice(&extension).clone();
    header.set_cksum();
    refused(header.as_bytes().to_vec(), &["extension", "believed"]);
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let zeroes = vec![0; 64 << 20];
    let bytes = Packer::new().file("bomb", &zeroes).finish();
    let bomb = zstd::encode_all(&bytes[..], 1).unwrap();
    drop((zeroes, bytes));
    let with = |builder: Builder| {
        let stream = Box::new(std::io::Cursor::new(bomb.clone()));
        let source = Source::Stream("the archive".to_owned(), stream);
        builder
            .source(source)
            .build(&image)
            .unwrap_err()
            .to_string()
    };
    let error = with(Builder::new().limit(1 << 20));
    assert!(error.contains("bomb") && error.contains("limit"), "{error}");
    let error = with(Builder::new().size(Size::Bytes(16 << 20)));
    assert!(error.contains("bomb") && error.contains("limit"), "{error}");
    is_bare(folder.path());
    let many = (0..100).fold(Packer::new(), |packer, number| {
        packer.file(&number.to_string(), b"")
    });
    let stream = Box::new(std::io::Cursor::new(many.finish()));
    let source = Source::Stream("the archive".to_owned(), stream);
    let error = Builder::new()
        .inodes(50)
        .source(source)
        .build(&image)
        .unwrap_err();
    assert!(error.to_string().contains("entries"), "{error}");
}

/// An archive with a sparse file of so many pieces of one byte.
fn pieces(count: u32) -> Vec<u8> {
    let map: Vec<String> = (0..count).map(|piece| format!("{},1", 2 * piece)).collect();
    let size = (2 * count).to_string();
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_pax_extensions([
            ("GNU.sparse.size", size.as_bytes()),
            ("GNU.sparse.map", map.join(",").as_bytes()),
        ])
        .unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(count.into());
    header.set_mode(0o644);
    header.set_cksum();
    let content = vec![1; count as usize];
    archive
        .append_data(&mut header, "sparse", &content[..])
        .unwrap();
    archive.into_inner().unwrap()
}

/// The map stays in memory, with 16 bytes for a piece of one.
#[test]
fn the_map_of_a_sparse_file_counts_against_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let build = |limit: u64| {
        let stream = Box::new(std::io::Cursor::new(pieces(5000)));
        let source = Source::Stream("the archive".to_owned(), stream);
        Builder::new()
            .source(source)
            .limit(limit)
            .replace(true)
            .build(&image)
            .map(drop)
    };
    build(17 * 5000).unwrap();
    std::fs::remove_file(&image).unwrap();
    let error = build(17 * 5000 - 1).unwrap_err().to_string();
    for part in [
        "sparse",
        "its 5000 bytes and the 80000 bytes of its map",
        "limit",
    ] {
        assert!(error.contains(part), "{error}");
    }
    is_bare(folder.path());
}

#[test]
fn attributes_whose_names_hold_a_nul_byte_are_refused() {
    for key in ["SCHILY.xattr.user.a\0b", "LIBARCHIVE.xattr.user.a%00b"] {
        let mut archive = tar::Builder::new(Vec::new());
        archive
            .append_pax_extensions([(key, &b"dg=="[..])])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_cksum();
        archive.append_data(&mut header, "laden", &b""[..]).unwrap();
        let bytes = archive.into_inner().unwrap();
        refused(
            bytes,
            &["laden: the name of its attribute user.a", "NUL byte"],
        );
    }
}

/// Each link leads to what lies deep below the one before it: without a bound an entry behind forty
/// of them costs eighty thousand steps, and its directory is as deep.
#[test]
fn links_do_not_add_up_to_paths_without_end() {
    let deep = |start: &str, depth: usize| format!("{start}{}", "/d".repeat(depth));
    let chain = |links: usize| {
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |kind: u8, path: &str, target: &str| {
            archive
                .append_pax_extensions([("path", path.as_bytes()), ("linkpath", target.as_bytes())])
                .unwrap();
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[156] = kind;
            header.as_mut_bytes()[0] = b'x';
            header.set_size(0);
            header.set_mode(0o755);
            header.set_cksum();
            archive.append(&header, &b""[..]).unwrap();
        };
        add(b'5', &deep("top", 1500), "");
        let mut below = deep("top", 1500);
        for link in 0..links {
            let name = format!("link{link}");
            add(b'2', &name, &below);
            add(b'5', &deep(&name, 1500), "");
            below = deep(&name, 1500);
        }
        archive.into_inner().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    build(chain(2), &folder.path().join("image")).unwrap();
    refused(
        chain(4),
        &["link2", "symbolic links", "more than 4096 directories"],
    );
}

#[test]
fn sparse_maps_are_judged() {
    for (pieces, real_size) in [
        (vec![(0, 512), (100, 512)], 4096),
        (vec![(0, 1024), (8192, 0)], 512),
        (vec![(0, 4096)], 8192),
        (vec![(u64::MAX >> 1, 1024)], u64::MAX >> 1),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_path("sparse").unwrap();
        header.set_entry_type(tar::EntryType::GNUSparse);
        header.set_size(1024);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(real_size);
        for (slot, (offset, length)) in gnu.sparse.iter_mut().zip(pieces) {
            slot.set_offset(offset);
            slot.set_length(length);
        }
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(vec![1; 1024 + 1024]);
        refused(bytes, &["sparse", "map"]);
    }
}

#[test]
fn errors_name_missing_sources_and_existing_targets() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let image = folder.path().join("image");
    let from = |source| {
        Builder::new()
            .source(source)
            .build(&image)
            .unwrap_err()
            .to_string()
    };
    assert!(from(Source::Directory(missing.clone())).contains("missing"));
    assert!(from(Source::Archive(missing.clone())).contains("missing"));
    is_bare(folder.path());
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(&image, "precious").unwrap();
    let error = from(Source::Directory(tree.clone()));
    assert!(
        error.contains("image") && error.contains("--force"),
        "{error}"
    );
    assert_eq!(fs::read(&image).unwrap(), b"precious");
    // Detected before anything is read: the source does not exist.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("no/such/image", &link).unwrap();
    let early = Builder::new().source(Source::Archive(missing.clone()));
    let error = early.build(&link).unwrap_err().to_string();
    assert!(error.contains("leads nowhere"), "{error}");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let nowhere = folder.path().join("no/such/folder/image");
    let builder = Builder::new().source(Source::Directory(tree.clone()));
    assert!(matches!(builder.build(&nowhere), Err(Error::Output { .. })));
    let onto = Builder::new()
        .replace(true)
        .source(Source::Directory(tree.clone()));
    assert!(matches!(onto.build(&tree), Err(Error::Output { .. })));
}

#[test]
fn a_failed_build_leaves_the_old_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    fs::write(&image, [0; 9]).unwrap();
    let stream = Box::new(std::io::Cursor::new(b"no archive".repeat(200)));
    let error = Builder::new()
        .source(Source::Stream("the archive".to_owned(), stream))
        .replace(true)
        .build(&image)
        .unwrap_err();
    assert!(error.to_string().starts_with("the archive: "), "{error}");
    assert_eq!(fs::read(&image).unwrap(), [0; 9]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_build_stops_when_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let progress = Arc::new(Progress::default());
    progress.stop();
    let builder = Builder::new().source(Source::Directory(tree));
    let builder = builder.progress(progress);
    let error = builder.build(folder.path().join("image")).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_ext4_cannot_hold_is_named() {
    let long = "n".repeat(99) + "/";
    let name = long.repeat(3);
    let path = format!("{}{}", name, "x".repeat(256));
    let extension = format!("{} path={path}\n", path.len() + 10);
    let mut header = tar::Header::new_ustar();
    header.set_path("x").unwrap();
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_size(extension.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(extension.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(Packer::new().file("y", b"").finish());
    refused(bytes, &["255", "256 bytes"]);
    let lost = Packer::new().file("lost+found", b"").finish();
    refused(lost, &["lost+found", "directory"]);
}

/// Oversized attributes of one entry end the build at once, not after all entries were read.
#[test]
fn attributes_beyond_every_image_are_refused_where_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let value = vec![b'x'; 1 << 20];
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_pax_extensions([("SCHILY.xattr.user.huge", &value[..])])
        .unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_cksum();
    archive.append_data(&mut header, "laden", &b""[..]).unwrap();
    let mut bytes = archive.into_inner().unwrap();
    // The rest is invalid, so reading on fails differently.
    bytes.truncate(bytes.len() - 1024);
    bytes.extend_from_slice(&[b'?'; 2048]);
    let error = build(bytes, &image).unwrap_err().to_string();
    assert!(
        error.contains("laden: its attribute user.huge of 1048576 bytes"),
        "{error}"
    );
    assert!(error.contains("--exclude-xattr"), "{error}");
}

/// A stream that returns a few bytes and then blocks until the test is over.
struct Stalling {
    given: std::io::Cursor<Vec<u8>>,
    is_over: std::sync::mpsc::Receiver<()>,
    progress: Arc<Progress>,
    stops: bool,
}

impl std::io::Read for Stalling {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.given.read(into)?;
        if count == 0 {
            if self.stops {
                self.progress.stop();
            }
            let _ = self.is_over.recv();
        }
        Ok(count)
    }
}

/// Errors and stop requests do not wait for a stalled stream.
#[test]
fn a_stalled_stream_does_not_block_the_build() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let sound = Packer::new().file("a", b"x").finish();
    for (given, stops, word) in [
        (vec![b'?'; 1024], false, "checksum"),
        (Vec::new(), true, "interrupted"),
        (sound[..700].to_vec(), true, "interrupted"),
        (sound.clone(), true, "interrupted"),
    ] {
        let (over, is_over) = std::sync::mpsc::channel();
        let progress = Arc::new(Progress::default());
        let builder = Builder::new().progress(Arc::clone(&progress));
        let stream = Stalling {
            given: std::io::Cursor::new(given),
            is_over,
            progress,
            stops,
        };
        let source = Source::Stream("a pipe".to_owned(), Box::new(stream));
        let error = builder.source(source).build(&image).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        is_bare(folder.path());
        drop(over);
    }
}

/// Whoever opens a pipe waits for a writer. The request to stop comes before that here, since
/// nothing shows when the wait begins; nothing looks for it in between.
#[test]
fn a_pipe_without_a_writer_does_not_block_the_build() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let pipe = tempfile::tempdir().unwrap();
    let pipe = pipe.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let progress = Arc::new(Progress::default());
    progress.stop();
    let builder = Builder::new().progress(progress);
    let builder = builder.source(Source::Archive(pipe.clone()));
    let (done, is_done) = std::sync::mpsc::channel();
    let built = std::thread::spawn(move || drop(done.send(builder.build(&image))));
    let error = is_done.recv_timeout(HANG).expect("it ends").unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
    built.join().unwrap();
    is_bare(folder.path());
    // The thread that opens it waits for this.
    drop(fs::File::options().write(true).open(&pipe).unwrap());
}

/// A frame of zstd says how much memory its window takes: here twice what an unknown archive gets.
#[test]
fn a_window_that_is_too_large_is_refused_with_the_command_that_reads_it() {
    const FRAME: [u8; 9] = [0x28, 0xB5, 0x2F, 0xFD, 0, 18 << 3, 1, 0, 0];
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let told = crate::archives::build(FRAME.to_vec(), &image).unwrap_err();
    let told = told.to_string();
    assert!(told.contains("`zstd -dc --long=31`"), "{told}");
    assert!(!image.exists());
}
