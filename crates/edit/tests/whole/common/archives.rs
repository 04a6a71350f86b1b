//! Archives made byte by byte, and images that they go into.

use std::path::{Path, PathBuf};

use pext4_edit::{EditOptions, EditSession, Reader};
use pext4_fs::InodeNumber;
use pext4_image::build::{Builder, Source};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::walk;

/// An empty image.
pub fn fresh(folder: &Path, name: &str) -> PathBuf {
    let image = folder.join(name);
    Format::new(16 << 20, 1024, Features::Upstream)
        .inodes(2048)
        .make(&image)
        .expect("made");
    image
}

/// All that an image holds.
pub fn tree(image: &Path) -> Tree {
    let reader = Reader::open(image).expect("a sound image");
    walk(reader.volume(), InodeNumber::ROOT).expect("a sound image")
}

/// The archive of an image.
pub fn export(image: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let reader = Reader::open(image).expect("sound");
    reader.export("/", &mut archive).expect("memory");
    assert_no_directory_with_data(&archive);
    archive
}

/// Some readers take any entry whose name ends with a slash for a directory, and expect no data.
fn assert_no_directory_with_data(archive: &[u8]) {
    let mut rest = archive;
    while let Some((header, behind)) = rest.split_first_chunk::<512>()
        && header[0] != 0
    {
        let text = |from: usize, to: usize| {
            let field = header[from..to].split(|&byte| byte == 0).next();
            String::from_utf8_lossy(field.expect("one at least")).into_owned()
        };
        let size = usize::from_str_radix(text(124, 136).trim(), 8).expect("octal digits");
        let name = text(0, 100);
        assert!(size == 0 || !name.ends_with('/'), "{name}");
        rest = &behind[size.next_multiple_of(512)..];
    }
}

/// Lays an archive over an image.
pub fn apply(image: &Path, archive: &[u8]) -> Result<(), String> {
    let mut session = EditSession::open(image, &EditOptions::default()).expect("it opens");
    session
        .apply_tar(&mut &archive[..], b"/")
        .map_err(|error| error.to_string())?;
    session
        .finish()
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Builds an image from an archive that comes as a stream, and the same one from a file.
pub fn build(image: &Path, archive: &[u8]) -> Result<(), String> {
    let file = image.with_extension("tar");
    std::fs::write(&file, archive).expect("there is room");
    let stream = Box::new(std::io::Cursor::new(archive.to_vec()));
    let sources = [
        Source::Stream("a pipe".to_owned(), stream),
        Source::Archive(file),
    ];
    let built = sources.map(|source| {
        let done = Builder::new().source(source).replace(true).build(image);
        let done = done.map_err(|error| error.to_string());
        done.map(|_| std::fs::read(image).expect("it was built"))
    });
    let [stream, file] = built;
    match (stream, file) {
        (Ok(one), Ok(other)) => {
            assert!(one == other, "a stream and a file are the same archive");
            Ok(())
        }
        (Err(error), Err(_)) => Err(error),
        (one, other) => panic!("{:?} and {:?}", one.err(), other.err()),
    }
}

/// A header for `name`; data must follow.
pub fn header(name: &str, kind: u8, size: usize, link: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[136..147].copy_from_slice(b"00000000000");
    header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// These parts and an end mark.
pub fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = parts.concat();
    archive.extend_from_slice(&[0; 1024]);
    archive
}

/// A header with other bytes at one place.
pub fn changed(mut header: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// An extended header with one record.
pub fn record(key: &str, value: &str) -> Vec<u8> {
    records(&[(key, value)])
}

/// An extended header with several records.
pub fn records(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let digits = [(9, 1), (98, 2), (997, 3)]
            .into_iter()
            .find(|(most, _)| rest < *most);
        let length = rest + digits.map_or(4, |(_, digits)| digits);
        let record = format!("{length} {key}={value}\n").into_bytes();
        assert_eq!(record.len(), length);
        data.extend(record);
    }
    let length = data.len();
    data.resize(length.next_multiple_of(512), 0);
    [header("x", b'x', length, ""), data].concat()
}
