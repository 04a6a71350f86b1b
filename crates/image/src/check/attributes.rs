//! Pass 1: extended attributes, in inodes, in shared blocks and in inodes of their own.
//!
//! Many inodes may share an attribute block, and many attributes may share a value inode. Both
//! kinds of users are counted during the pass and compared with the stored counts after it. A block
//! is checked and claimed for the first inode that refers to it.

use std::collections::{HashMap, HashSet};

use pext4_ondisk::acl;
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::xattr::{self, Attribute, INDEX_SYSTEM, Value};
use pext4_ondisk::{BlockNumber, InodeNumber};
use pext4_sync::{Class, Mutex};

use super::Examination;
use super::catalogue::Kind;
use super::encryption::Context;
use super::findings::Place;
use super::inode::InodeSubject;
use super::volume::InodeError;

/// The number of locks, each for a part of the counts.
const SHARDS: usize = 16;

/// How often something is used, and its stored reference count.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    found: u64,
    /// The stored count; `None` if it cannot be read.
    stored: Option<u64>,
}

/// Counts uses, by block or inode number, for many threads.
pub(super) struct UseCounts {
    shards: Vec<Mutex<HashMap<u64, Uses>>>,
}

impl UseCounts {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(Class::Leaf, HashMap::new());
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
        }
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Uses>> {
        &self.shards[(number % SHARDS as u64) as usize]
    }

    /// Counts a use. True if it is the first.
    fn add(&self, number: u64) -> bool {
        let mut shard = self.shard(number).lock();
        let uses = shard.entry(number).or_default();
        uses.found += 1;
        uses.found == 1
    }

    fn set_stored(&self, number: u64, stored: u64) {
        self.shard(number).lock().entry(number).or_default().stored = Some(stored);
    }

    /// The number of uses found so far.
    pub(super) fn found(&self, number: u64) -> u64 {
        self.shard(number)
            .lock()
            .get(&number)
            .map_or(0, |uses| uses.found)
    }

    /// Everything whose stored count is wrong: its number, the stored count, the uses found.
    fn wrong(&self) -> Vec<(u64, u64, u64)> {
        let mut wrong = Vec::new();
        // Of many findings only the first are kept, so their order must not be that of a hash map.
        for shard in &self.shards {
            for (number, uses) in shard.lock().iter() {
                if let Some(stored) = uses.stored.filter(|&stored| stored != uses.found) {
                    wrong.push((*number, stored, uses.found));
                }
            }
        }
        wrong.sort_unstable();
        wrong
    }
}

/// A summary of an inode's attributes.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    /// The number of clusters that they use, including values in inodes of their own.
    pub(super) clusters: u64,
    /// The number of values in inodes of their own.
    pub(super) values: u64,
    /// Not all attributes could be read, so the counts have no meaning.
    pub(super) is_partial: bool,
    /// The length of the inline data that is stored as an attribute.
    pub(super) inline: Option<usize>,
}

impl Attributes {
    /// Counts the values in inodes of their own, which are charged to each user.
    fn count_values(&mut self, examination: &Examination, list: &[Attribute]) {
        let geometry = &examination.volume.geometry;
        let cluster = u64::from(geometry.block_size) << geometry.cluster_bits;
        for attribute in list {
            if let Value::Inode { size, .. } = attribute.value {
                self.clusters += u64::from(size).div_ceil(cluster);
                self.values += 1;
            }
        }
    }
}

/// Checks an inode's attributes.
pub(super) fn check(subject: &InodeSubject<'_>) -> Attributes {
    let mut attributes = Attributes::default();
    let examination = subject.examination;
    let place = Place::inode(subject.number);
    let is_encrypted = subject.inode.flags.contains(InodeFlags::ENCRYPT);
    let own = match xattr::decode_inode_area(&subject.inode.tail) {
        Ok(list) => list,
        Err(corrupt) => {
            attributes.is_partial = true;
            let findings = &examination.findings;
            findings.corrupt(Kind::XattrEntry, place.clone(), &corrupt);
            Vec::new()
        }
    };
    let mut context = Context::among(&own);
    attributes.inline = own.iter().find_map(inline_length);
    if attributes.inline.is_some() {
        check_empty_values(subject);
    }
    attributes.count_values(examination, &own);
    let is_hash_valid = Attribute::has_valid_hash_in_inode;
    check_list(examination, &own, &place, is_hash_valid);
    let block = subject.inode.attribute_block;
    if block.get() != 0 {
        check_reference(subject, block, &own, &mut attributes);
        if is_encrypted && context.is_none() {
            context = context_in(examination, block);
        }
    }
    if is_encrypted {
        check_context(subject, context);
    }
    attributes
}

fn context_in(examination: &Examination, block: BlockNumber) -> Option<Context> {
    let bytes = examination.volume.block(block).ok()?;
    let decoded = xattr::Block::decode(&bytes).ok()?;
    Context::among(&decoded.attributes)
}

/// Checks and records the encryption context of an inode that is marked as encrypted.
fn check_context(subject: &InodeSubject<'_>, context: Option<Context>) {
    match context {
        None => subject.report(Kind::InodeFlags, || {
            "encrypted, without the attribute that tells how".to_owned()
        }),
        Some(Context::Wrong) => subject.report(Kind::EncryptionContext, || {
            "its version or its length is wrong".to_owned()
        }),
        Some(Context::Policy(_) | Context::Elsewhere) => {}
    }
    subject.examination.policies.note(subject.number, context);
}

fn inline_length(attribute: &Attribute) -> Option<usize> {
    match &attribute.value {
        Value::Inline(value) if attribute.is_named(INDEX_SYSTEM, b"data") => Some(value.len()),
        _ => None,
    }
}

/// Checks the places of empty values beside inline content, which may be empty itself. The decoder
/// ignores the place of a value without bytes, as Linux does; e2fsck takes a list with a wrong one
/// for unreadable, and cuts the file.
fn check_empty_values(subject: &InodeSubject<'_>) {
    // As decoded: the magic number, then entries with a head of 16 bytes and a name, padded.
    let list = subject.inode.tail.get(4..).unwrap_or_default();
    let mut rest = list;
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let [length, index, low, high, ..] = *head;
        if [length, index, low, high] == [0; 4] {
            return;
        }
        let start = u16::from_le_bytes([low, high]);
        // No inode with the value, and no bytes of it.
        let is_empty = head[4..12] == [0; 8];
        if is_empty && usize::from(start) > list.len() {
            subject.report(Kind::InlineData, || {
                format!("an empty value beside system.data is at {start}, behind the end")
            });
        }
        rest = behind
            .get(usize::from(length).next_multiple_of(4)..)
            .unwrap_or_default();
    }
}

/// Checks an inode's reference to a block of attributes; `own` are those in the inode.
fn check_reference(
    subject: &InodeSubject<'_>,
    block: BlockNumber,
    own: &[Attribute],
    attributes: &mut Attributes,
) {
    if !subject.features().has_compat(Compat::EXT_ATTR) {
        subject.report(Kind::FeatureMissing, || {
            format!("attributes in block {block}, without ext_attr")
        });
    }
    let examination = subject.examination;
    if !examination.volume.contains(block, 1) {
        attributes.is_partial = true;
        let place = Place::inode(subject.number);
        let text = || format!("attributes in block {block}");
        return examination.findings.add(Kind::BlockOutside, place, text);
    }
    attributes.clusters += 1;
    if examination.attribute_blocks.add(block.get()) {
        examination.claims.claim(block, 1);
        check_block(examination, subject.number, block);
    }
    let has_values = subject.features().has_incompat(Incompat::EA_INODE);
    if !has_values && own.is_empty() {
        return;
    }
    let bytes = examination.volume.block(block).ok();
    let Some(decoded) = bytes.and_then(|bytes| xattr::Block::decode(&bytes).ok()) else {
        attributes.is_partial |= has_values;
        return;
    };
    // Each user of a block counts the values of all its entries.
    if has_values {
        attributes.count_values(examination, &decoded.attributes);
    }
    check_hidden(subject, block, own, &decoded.attributes);
}

/// Notes attributes of a block whose names are also in the inode, where they are looked for first.
fn check_hidden(
    subject: &InodeSubject<'_>,
    block: BlockNumber,
    own: &[Attribute],
    others: &[Attribute],
) {
    let names: HashSet<(u8, &[u8])> = own.iter().map(name_of).collect();
    for hidden in others
        .iter()
        .filter(|other| names.contains(&name_of(other)))
    {
        let place = Place::inode(subject.number).block(block);
        let findings = &subject.examination.findings;
        findings.add(Kind::XattrHidden, place, || shown(hidden));
    }
}

fn name_of(attribute: &Attribute) -> (u8, &[u8]) {
    (attribute.index, &attribute.name)
}

fn shown(attribute: &Attribute) -> String {
    format!("{}:{}", attribute.index, attribute.name.escape_ascii())
}

/// Checks an attribute block, for its first user only.
fn check_block(examination: &Examination, number: InodeNumber, block: BlockNumber) {
    let place = || Place::inode(number).block(block);
    let findings = &examination.findings;
    let bytes = match examination.volume.block(block) {
        Ok(bytes) => bytes,
        Err(error) => {
            let text = || format!("extended attributes: {error}");
            return findings.add(Kind::Unreadable, place(), text);
        }
    };
    let references = match xattr::references(&bytes) {
        Ok(references) => references,
        Err(corrupt) => return findings.corrupt(Kind::XattrHeader, place(), &corrupt),
    };
    if let Some(seed) = examination.volume.seed
        && let Err(corrupt) = xattr::verify_block(seed, block, &bytes)
    {
        findings.corrupt(Kind::XattrChecksum, place(), &corrupt);
    }
    examination
        .attribute_blocks
        .set_stored(block.get(), u64::from(references));
    match xattr::Block::decode(&bytes) {
        Ok(decoded) => {
            let list = &decoded.attributes;
            if let Some(attribute) = list.iter().find(|attribute| attribute.index == 0) {
                findings.add(Kind::XattrEntry, place(), || {
                    let name = attribute.name.escape_ascii();
                    format!("the prefix of `{name}` has the number 0")
                });
            }
            check_list(examination, list, &place(), Attribute::has_valid_hash);
        }
        Err(corrupt) => findings.corrupt(Kind::XattrEntry, place(), &corrupt),
    }
}

/// Why an access control list cannot be read; `None` if it can, or the attribute is none. A value
/// in an inode of its own is not looked at.
fn list_problem(attribute: &Attribute) -> Option<String> {
    let Value::Inline(value) = &attribute.value else {
        return None;
    };
    // Most attributes have a name after the prefix.
    let is_list = attribute.name.is_empty()
        && xattr::full_name(attribute.index, b"").is_some_and(|name| acl::is_list(&name));
    if !is_list {
        return None;
    }
    let corrupt = acl::decode(value).err()?;
    Some(corrupt.problem().to_owned())
}

/// Checks a list of attributes; `is_hash_valid` depends on where it lies.
fn check_list(
    examination: &Examination,
    list: &[Attribute],
    place: &Place,
    is_hash_valid: impl Fn(&Attribute) -> bool,
) {
    let findings = &examination.findings;
    for attribute in list {
        if !is_hash_valid(attribute) {
            findings.add(Kind::XattrHash, place.clone(), || shown(attribute));
        }
        if xattr::is_unnameable(attribute.index, &attribute.name) {
            findings.add(Kind::XattrName, place.clone(), || shown(attribute));
        }
        if let Some(problem) = list_problem(attribute) {
            findings.add(Kind::XattrList, place.clone(), || {
                format!("{}: {problem}", shown(attribute))
            });
        }
        if let Value::Inode { inode, size } = attribute.value
            && let Err(problem) = check_value(examination, attribute, inode, size)
        {
            findings.add(Kind::XattrValueInode, place.clone(), || {
                format!("{}, in inode {inode}: {problem}", shown(attribute))
            });
        }
    }
    let mut names: Vec<(u8, &[u8])> = list.iter().map(name_of).collect();
    names.sort_unstable();
    for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
        findings.add(Kind::XattrDuplicate, place.clone(), || {
            format!("{}:{}", pair[0].0, pair[0].1.escape_ascii())
        });
    }
}

/// Checks and counts a reference to a value that is stored in an inode.
fn check_value(
    examination: &Examination,
    attribute: &Attribute,
    number: InodeNumber,
    size: u32,
) -> Result<(), String> {
    let volume = &examination.volume;
    if !volume.geometry.features.has_incompat(Incompat::EA_INODE) {
        return Err("without the feature".to_owned());
    }
    let inode = match volume.inode(&examination.groups, number) {
        Ok(inode) => inode,
        Err(InodeError::Absent) => return Err("there is no such inode".to_owned()),
        Err(InodeError::Io(error)) => return Err(error.to_string()),
        Err(InodeError::Corrupt(corrupt)) => return Err(corrupt.problem().to_owned()),
    };
    if !inode.flags.contains(InodeFlags::EA_INODE) {
        return Err("it holds no value".to_owned());
    }
    examination.values.add(u64::from(number.get()));
    if inode.size != u64::from(size) {
        return Err(format!("{} bytes, not {size}", inode.size));
    }
    if !attribute.has_valid_hash_of_value_inode(inode.value_hash()) {
        let hash = xattr::entry_hash_of_value_inode(&attribute.name, inode.value_hash());
        let stored = attribute.hash;
        return Err(format!("hash is {stored:#010X}, it makes {hash:#010X}"));
    }
    Ok(())
}

/// Reports blocks whose reference counts are wrong. Runs after the pass.
pub(super) fn check_counts(examination: &Examination) {
    for (block, stored, found) in examination.attribute_blocks.wrong() {
        let place = Place::whole().block(BlockNumber(block));
        examination.findings.add(Kind::XattrReferences, place, || {
            format!("counts {stored} users, has {found}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::UseCounts;

    #[test]
    fn wrong_counts_are_in_the_order_of_their_numbers() {
        let counts = UseCounts::new();
        for number in (0..1000).rev() {
            counts.add(number);
            counts.set_stored(number, 1 + number % 2);
        }
        let wrong = counts.wrong();
        assert_eq!(wrong.len(), 500);
        assert_eq!(wrong[0], (1, 2, 1));
        assert!(wrong.is_sorted());
    }
}
