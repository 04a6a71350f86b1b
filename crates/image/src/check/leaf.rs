//! Pass 2, one block of directory entries.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::casefold;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{self, Entry, Format, HEADER_SIZE, Record, is_valid_name};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::xattr::{self, INDEX_SYSTEM, Value, ValueBytes};

use super::catalogue::Kind;
use super::directories::{DirectorySubject, ThreadState};
use super::encryption;
use super::htree::Leaf;
use super::names;

/// The size of the parent's inode number at the start of an inline directory.
const PARENT_SIZE: usize = 4;
/// The size of the hash after the name, in records of directories that are encrypted and fold case.
/// It can be computed only with the key.
const HASHES_SIZE: usize = 8;
/// The minimum length of a record, even a free one: a header and a padded name of one byte.
const MIN_RECORD: usize = directory::record_length(1);

/// The leaf's range of hashes in the index, and the hash function of the index.
pub(super) type Expected<'a> = Option<(&'a Leaf, Option<Hasher>)>;

/// Checks a block of directory entries. Returns whether its chain of records is whole.
pub(super) fn block(
    subject: &DirectorySubject<'_>,
    thread: &mut ThreadState,
    logical: u32,
    block: u64,
    bytes: &[u8],
    expected: Expected<'_>,
) -> bool {
    let format = check_checksum(subject, block, bytes);
    if logical == 0 {
        check_dot_names(subject, block, bytes);
    }
    let mut position = if logical == 0 { 0 } else { 2 };
    let mut is_whole = true;
    for record in directory::records(bytes, format) {
        let record = match record {
            Ok(record) => record,
            Err(corrupt) => {
                is_whole = false;
                subject.report(Kind::DirectoryRecord, Some(block), || {
                    corrupt.problem().to_owned()
                });
                continue;
            }
        };
        match (position, record.entry()) {
            (0 | 1, entry) => {
                check_file_type(subject, &record, bytes, Some(block));
                check_dot_record(subject, position, entry.as_ref(), block);
                if position == 0 {
                    check_dot_length(subject, record.length, block);
                }
            }
            (_, entry) => {
                check_record_length(subject, &record, bytes, Some(block));
                check_file_type(subject, &record, bytes, Some(block));
                if let Some(entry) = entry {
                    name(subject, thread, &entry, Some(block), expected);
                }
            }
        }
        position += 1;
    }
    if position < 2 && is_whole {
        subject.report(Kind::DirectoryDotDot, Some(block), || {
            "there is none".to_owned()
        });
    }
    is_whole
}

/// Checks the checksum in a block's tail. Without a tail, records extend to the end of the block.
fn check_checksum(subject: &DirectorySubject<'_>, block: u64, bytes: &[u8]) -> Format {
    let volume = &subject.tree.examination.volume;
    let Some(seed) = volume.seed else {
        return volume.format;
    };
    if !directory::has_tail(bytes) {
        subject.report(Kind::DirectoryTail, Some(block), || {
            "its end holds something else".to_owned()
        });
        return Format {
            has_tail: false,
            ..volume.format
        };
    }
    let generation = subject.directory.generation;
    if let Err(corrupt) =
        directory::verify_leaf(InodeSeed::new(seed, subject.number(), generation), bytes)
    {
        subject.report(Kind::DirectoryChecksum, Some(block), || {
            corrupt.problem().to_owned()
        });
    }
    volume.format
}

/// Checks the first two records of a directory: their file type must be a directory or unknown, and
/// a zero must follow each name.
pub(super) fn check_dot_names(subject: &DirectorySubject<'_>, block: u64, bytes: &[u8]) {
    let has_kinds = subject.tree.examination.volume.format.has_file_types;
    let names: [(&[u8], usize, _); 2] = [
        (b".", 0, Kind::DirectoryDot),
        (b"..", 12, Kind::DirectoryDotDot),
    ];
    for (name, at, kind) in names {
        let Some(record) = bytes.get(at..at + 12) else {
            return;
        };
        // Other records in this place are reported elsewhere.
        if usize::from(record[6]) != name.len() || !record[8..].starts_with(name) {
            return;
        }
        if record[8 + name.len()] != 0 {
            subject.report(kind, Some(block), || "no zero behind its name".to_owned());
        }
        if has_kinds && !matches!(record[7], 0 | 2) {
            subject.report(Kind::EntryFileType, Some(block), || {
                let name = name.escape_ascii();
                format!("'{name}': kind {}, it is a directory", record[7])
            });
        }
    }
}

/// Checks whether a record is long enough. A mount reads only the length of a free record, but
/// e2fsck also requires that it has room for its former name.
fn check_record_length(
    subject: &DirectorySubject<'_>,
    record: &Record<'_>,
    bytes: &[u8],
    block: Option<u64>,
) {
    let name_length = bytes.get(record.offset + 6).copied().map_or(0, usize::from);
    let hashes = match subject.directory.folds_case && subject.policy.is_some() {
        true => HASHES_SIZE,
        false => 0,
    };
    let need = MIN_RECORD.max(HEADER_SIZE + name_length) + hashes;
    if record.length < need {
        subject.report(Kind::DirectoryRecord, block, || {
            let (offset, length) = (record.offset, record.length);
            format!("at byte {offset}: record of {length} bytes, it needs {need}")
        });
    }
}

/// Checks the file type byte: it must be a known type or zero, and zero without the `filetype`
/// feature.
fn check_file_type(
    subject: &DirectorySubject<'_>,
    record: &Record<'_>,
    bytes: &[u8],
    block: Option<u64>,
) {
    let Some(entry) = record.entry() else {
        return;
    };
    let has_kinds = subject.tree.examination.volume.format.has_file_types;
    let byte = bytes.get(record.offset + 7).copied().unwrap_or(0);
    if byte != 0 && (!has_kinds || entry.file_type.is_none()) {
        subject.report(Kind::EntryFileType, block, || {
            let (name, inode) = (entry.name.escape_ascii(), entry.inode);
            format!("'{name}', inode {inode}: unknown kind {byte}")
        });
    }
}

/// Checks one of the first two records of a directory.
fn check_dot_record(
    subject: &DirectorySubject<'_>,
    position: u32,
    entry: Option<&Entry<'_>>,
    block: u64,
) {
    let (expected, kind): (&[u8], _) = if position == 0 {
        (b".", Kind::DirectoryDot)
    } else {
        (b"..", Kind::DirectoryDotDot)
    };
    match entry {
        Some(entry) if entry.name == expected && position == 0 => {
            subject.dot(entry.inode, Some(block));
        }
        Some(entry) if entry.name == expected => subject.dot_dot(entry.inode),
        _ => subject.report(kind, Some(block), || {
            let found = entry.map_or("nothing".to_owned(), |entry| {
                format!("'{}'", entry.name.escape_ascii())
            });
            format!("{found} in its place")
        }),
    }
}

/// Notes a record of '.' that e2fsck would split: what is behind the name would make a record.
fn check_dot_length(subject: &DirectorySubject<'_>, length: usize, block: u64) {
    if length > 2 * MIN_RECORD {
        subject.report(Kind::DirectoryDotLong, Some(block), || {
            format!("{length} bytes")
        });
    }
}

fn name(
    subject: &DirectorySubject<'_>,
    thread: &mut ThreadState,
    entry: &Entry<'_>,
    block: Option<u64>,
    expected: Expected<'_>,
) {
    let text = entry.name;
    let is_dot = matches!(text, b"." | b"..");
    if is_dot || (!subject.directory.is_encrypted && !is_possible(subject, text)) {
        subject.report(Kind::NameBad, block, || {
            format!("'{}', inode {}", text.escape_ascii(), entry.inode)
        });
    }
    if subject.policy.is_some() && !is_dot && text.len() < encryption::MIN_NAME {
        subject.report(Kind::NameShort, block, || {
            format!("'{}', inode {}", text.escape_ascii(), entry.inode)
        });
    }
    // The names of one hash are compared by what stands for them: those that are equal when folded
    // are one name.
    let text = &*subject.directory.naming().key(text);
    let key = match hash(entry.name, subject, expected) {
        Some(hash) => {
            let (leaf, _) = expected.expect("a hash comes from an index");
            if !leaf.covers(hash.major) {
                subject.report(Kind::HtreeHash, block, || {
                    format!("'{}' has hash {:#010x}", text.escape_ascii(), hash.major)
                });
            }
            u64::from(hash.major) << 32 | u64::from(hash.minor)
        }
        None => names::key(text),
    };
    if !thread.seen.add(key, text) {
        subject.stop_comparing();
    }
    subject.entry(entry.name, entry.inode, entry.file_type, block);
}

/// Whether an unencrypted name is possible. If the directory folds case and the encoding is strict,
/// the name must be valid in the encoding, and UTF-8 is the only one.
fn is_possible(subject: &DirectorySubject<'_>, name: &[u8]) -> bool {
    let superblock = &subject.tree.examination.volume.superblock;
    let is_strict =
        subject.directory.folds_case && superblock.encoding_flags & casefold::STRICT != 0;
    is_valid_name(name) && (!is_strict || casefold::is_encoded(name))
}

/// The name's hash in the index, if it can be computed here.
fn hash(
    name: &[u8],
    subject: &DirectorySubject<'_>,
    expected: Expected<'_>,
) -> Option<pext4_ondisk::dirhash::Hash> {
    let (_, hasher) = expected?;
    let hasher = hasher?;
    let signedness_matters = !name.is_ascii();
    let superblock = &subject.tree.examination.volume.superblock;
    let is_unsettled = superblock.hash_signedness().is_none();
    if signedness_matters && is_unsettled {
        return None;
    }
    hasher.hash(name)
}

/// Checks an inline directory: the parent's number and entries in the inode, then more entries in
/// an attribute.
pub(super) fn inline(subject: &DirectorySubject<'_>, thread: &mut ThreadState) {
    let examination = subject.tree.examination;
    let Ok(inode) = examination
        .volume
        .inode(&examination.groups, subject.number())
    else {
        return;
    };
    let (parent, first) = inode.block.split_at(PARENT_SIZE);
    let parent = parent
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word));
    subject.dot_dot(InodeNumber(parent));
    region(subject, thread, first);
    region(subject, thread, &inline_rest(&inode));
}

/// The part of the inline data that is stored as an attribute.
fn inline_rest(inode: &Inode) -> ValueBytes {
    let list = xattr::decode_inode_area(&inode.tail).unwrap_or_default();
    let rest = list
        .into_iter()
        .find_map(|attribute| match attribute.value {
            Value::Inline(ref value) if attribute.is_named(INDEX_SYSTEM, b"data") => {
                Some(value.clone())
            }
            _ => None,
        });
    rest.unwrap_or_default()
}

fn region(subject: &DirectorySubject<'_>, thread: &mut ThreadState, bytes: &[u8]) {
    let format = subject.tree.examination.volume.format.inline();
    for record in directory::records(bytes, format) {
        match record {
            Ok(record) => {
                check_record_length(subject, &record, bytes, None);
                check_file_type(subject, &record, bytes, None);
                if let Some(entry) = record.entry() {
                    name(subject, thread, &entry, None, None);
                }
            }
            Err(corrupt) => {
                subject.report(Kind::DirectoryRecord, None, || corrupt.problem().to_owned())
            }
        }
    }
}
