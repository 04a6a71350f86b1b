//! Compares model and subject, operation by operation.

use std::collections::BTreeSet;

use pext4_fs::{AllocateMode, FileType, Time};

use super::{Body, Expected, KnownTime, Model, Node, Refusals, now};
use crate::content::Ranges;
use crate::errno::{self, E2BIG, EDQUOT, EFBIG, ENOENT, ENOSPC, ENXIO, ESTALE};
use crate::op::Op;
use crate::outcome::{Answer, Facts, Listed, Outcome, Space};

/// Seconds by which clocks may differ (the kernel stamps inodes with a coarse clock).
const SLACK: i64 = 2;

impl Model {
    /// Applies an operation of a subject to the model and reports what was wrong with its answer.
    pub fn follow(&mut self, op: &Op, observed: &Outcome) -> Result<(), String> {
        if let Err(failure) = observed
            && [ENOSPC, EDQUOT].contains(&failure.errno)
        {
            return self.excuse(op);
        }
        if let (Op::Write { length, .. }, Ok(Answer::Count(count))) = (op, observed)
            && count < length
            && self.may_fill
        {
            return self.written_short(op, *count);
        }
        if self.passes_the_end(op)
            && observed
                .as_ref()
                .is_err_and(|failure| failure.errno == EFBIG)
        {
            self.step += 1;
            return Ok(());
        }
        let number = match (op, observed) {
            (Op::Link { .. } | Op::Lookup(_), _) => None,
            (_, Ok(Answer::File(facts))) => Some(facts.inode),
            _ => None,
        };
        match (self.apply(op, number), observed) {
            (Ok(expected), observed) => self.agree(&expected, observed),
            (Err(Refusals(right)), Err(failure)) if right.contains(&failure.errno) => Ok(()),
            (Err(Refusals(right)), _) if right.is_empty() => {
                Err(format!("inode {} is in use already", number.unwrap_or(0)))
            }
            (Err(Refusals(right)), observed) => Err(format!(
                "must be refused with {}, not {}",
                errno::names(&right),
                tell(observed)
            )),
        }
    }

    /// Whether a write starts below the largest size and would end above it (Linux writes the part
    /// that fits), or a hole would (Linux refuses it). Both refusal and partial success are
    /// correct.
    fn passes_the_end(&self, op: &Op) -> bool {
        let most = self.largest_file();
        match op {
            Op::Write { offset, length, .. } => *offset < most && offset + length > most,
            Op::Allocate {
                mode: AllocateMode::PunchHole,
                offset,
                length,
                ..
            } => *length > 0 && offset + length > most,
            _ => false,
        }
    }

    /// Accepts ENOSPC for an operation that needs space, if the volume may be full.
    fn excuse(&mut self, op: &Op) -> Result<(), String> {
        self.step += 1;
        if let Op::SetXattr {
            of, name, length, ..
        } = op
            && !self.may_fill
        {
            let fits = self.xattrs_fit(of, name, (*length).into());
            return if fits {
                Err("ENOSPC, though these attributes fit".to_owned())
            } else {
                Ok(())
            };
        }
        let takes_space = !op.is_reading()
            && !matches!(
                op,
                Op::Unlink(_) | Op::RemoveDirectory(_) | Op::Release(_) | Op::Sync
            );
        if !self.may_fill || !takes_space {
            return Err("ENOSPC where space cannot be short".to_owned());
        }
        self.write_without_space(op);
        Ok(())
    }

    fn written_short(&mut self, op: &Op, count: u64) -> Result<(), String> {
        let Op::Write {
            of,
            offset,
            length,
            fill,
        } = op
        else {
            return Ok(());
        };
        self.write_without_space(op);
        self.step += 1;
        let inode = self
            .resolve(of)
            .map_err(|_| "wrote to what is not there".to_owned())?;
        let bytes = crate::content::pattern(*fill, *length as usize);
        self.write_bytes(inode, *offset, &bytes[..count as usize]);
        Ok(())
    }

    /// After ENOSPC of an [`Op::Allocate`]: the subject's size tells how far it got.
    pub fn follow_size(&mut self, op: &Op, size: u64) -> Result<(), String> {
        self.partly_allocated(op, size)
    }

    fn agree(&self, expected: &Expected, observed: &Outcome) -> Result<(), String> {
        match (expected, observed) {
            (Expected::Anything, _) => Ok(()),
            (Expected::DataFrom(inode, from), observed) => self.judge_data(*inode, *from, observed),
            (Expected::HoleFrom(inode, from), observed) => self.judge_hole(*inode, *from, observed),
            (Expected::RemovedDirectory, Ok(Answer::Entries(entries))) if entries.is_empty() => {
                Ok(())
            }
            (Expected::RemovedDirectory, Err(failure))
                if [ENOENT, ESTALE].contains(&failure.errno) =>
            {
                Ok(())
            }
            (_, Err(failure)) => Err(format!("must succeed, not fail with {failure}")),
            (Expected::Done, Ok(Answer::Done)) => Ok(()),
            (Expected::File(inode), Ok(Answer::File(facts))) => self.judge_facts(*inode, facts),
            (Expected::Bytes(right), Ok(Answer::Bytes(bytes))) => judge_bytes(right, bytes),
            (Expected::Count(right), Ok(Answer::Count(count))) if right == count => Ok(()),
            (Expected::Entries(right), Ok(Answer::Entries(entries))) => {
                judge_entries(right, entries)
            }
            (Expected::Names(right), Ok(Answer::Names(names))) => judge_names(right, names),
            (Expected::Space, Ok(Answer::Space(space))) => judge_space(space),
            (expected, Ok(answer)) => Err(format!("{answer:?} is not {expected:?}")),
        }
    }

    fn judge_data(&self, inode: u32, from: u64, observed: &Outcome) -> Result<(), String> {
        let content = &self
            .existing(inode)
            .file()
            .expect("sought in a file")
            .content;
        let found = match observed {
            Ok(Answer::Offset(found)) if (from..content.size()).contains(found) => *found,
            Err(failure) if failure.errno == ENXIO => content.size(),
            other => return Err(format!("data from {from}: {}", tell(other))),
        };
        match content.is_zero(from, found - from) {
            true => Ok(()),
            false => Err(format!(
                "data lies between {from} and {found}, which was skipped"
            )),
        }
    }

    fn judge_hole(&self, inode: u32, from: u64, observed: &Outcome) -> Result<(), String> {
        let content = &self
            .existing(inode)
            .file()
            .expect("sought in a file")
            .content;
        let Ok(Answer::Offset(found)) = observed else {
            return Err(format!("a hole from {from}: {}", tell(observed)));
        };
        if *found < from || *found > content.size() {
            return Err(format!(
                "a hole at {found}, outside {from}..={}",
                content.size()
            ));
        }
        let block_end = (found / self.block_size + 1) * self.block_size;
        match content.is_zero(*found, block_end.min(content.size()) - found) {
            true => Ok(()),
            false => Err(format!("data lies at {found}, which was called a hole")),
        }
    }

    /// Compares the results of `stat` with an inode.
    pub fn judge_facts(&self, inode: u32, facts: &Facts) -> Result<(), String> {
        let Some(node) = self.node(inode) else {
            return Ok(());
        };
        let mut wrong = Vec::new();
        let mut compare = |what: &str, right: String, told: String| {
            if right != told {
                wrong.push(format!("{what} {told}, not {right}"));
            }
        };
        compare("inode", inode.to_string(), facts.inode.to_string());
        compare(
            "kind",
            format!("{:?}", node.kind()),
            format!("{:?}", facts.kind),
        );
        compare(
            "mode",
            format!("{:o}", node.permissions),
            format!("{:o}", facts.permissions),
        );
        compare("uid", node.uid.to_string(), facts.uid.to_string());
        compare("gid", node.gid.to_string(), facts.gid.to_string());
        if !(node.overflowed && facts.links == 1) {
            compare("links", node.links.to_string(), facts.links.to_string());
        }
        let device = if let Body::Special(_, device) = node.body {
            device
        } else {
            (0, 0)
        };
        compare(
            "device",
            format!("{device:?}"),
            format!("{:?}", facts.device),
        );
        if let Some(size) = node_size(node) {
            compare("size", size.to_string(), facts.size.to_string());
        }
        for (what, right, told) in [
            ("accessed", node.accessed, facts.accessed),
            ("modified", node.modified, facts.modified),
        ] {
            if !self.is_moment(right, told) {
                wrong.push(format!("{what} {told:?}, not {right:?}"));
            }
        }
        wrong.extend(self.judge_sectors(node, facts).err());
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("; "))
        }
    }

    fn is_moment(&self, right: KnownTime, told: Time) -> bool {
        match right {
            KnownTime::Exactly(time) => time == told,
            KnownTime::Recent => (self.started - SLACK..=now() + SLACK).contains(&told.seconds),
            KnownTime::Unknown => true,
        }
    }

    /// Checks that the space taken is between what must and what may be allocated, plus the blocks
    /// of an extent tree and one attribute block, or of pointers.
    fn judge_sectors(&self, node: &Node, facts: &Facts) -> Result<(), String> {
        let sectors = |blocks: u64| blocks * self.block_size / 512;
        let may_be_inline = facts.size <= self.inline_room;
        let (least, most) = match &node.body {
            Body::Regular(file) => {
                let most = file.possible.count();
                let nodes = match file.has_block_map {
                    true => self.pointer_blocks(&file.possible),
                    false => most / 20,
                };
                (sectors(file.required.count()), sectors(most + nodes + 12))
            }
            Body::Symlink(to) if to.len() < 60 => (0, sectors(1)),
            Body::Symlink(_) => (sectors(1), sectors(2)),
            Body::Special(..) => (0, sectors(1)),
            Body::Directory { .. } => (facts.size / 512, facts.size / 512 + sectors(40)),
        };
        let values = node.xattrs.values().map(|value| value.len() as u64);
        let most = if self.has_value_inodes {
            most + sectors(values.map(|length| length.div_ceil(self.block_size)).sum())
        } else {
            most
        };
        // Each block may be alone in its cluster. (e2fsck counts exactly.)
        let most = most * self.cluster;
        // Inline data takes no block.
        let least = if may_be_inline && least <= sectors(1) {
            0
        } else {
            least
        };
        // The size of a removed directory that is still held is already zero.
        let is_gone = node.links == 0 && facts.size == 0;
        if facts.kind == FileType::Directory
            && !is_gone
            && !(may_be_inline && facts.size >= 60 && facts.size.is_multiple_of(4))
            && (facts.size == 0 || !facts.size.is_multiple_of(self.block_size))
        {
            return Err(format!("a directory of {} bytes", facts.size));
        }
        match (least..=most).contains(&facts.sectors) {
            true => Ok(()),
            false => Err(format!(
                "{} sectors, not within {least}..={most}",
                facts.sectors
            )),
        }
    }
}

impl Model {
    /// The number of pointer blocks that map these blocks of a file without extents.
    fn pointer_blocks(&self, blocks: &Ranges) -> u64 {
        let fan_out = self.block_size / 4;
        let (mut start, mut count) = (12, 0);
        for levels in 1..=3 {
            let whole = start..start + fan_out.pow(levels);
            let sizes = (1..=levels).map(|level| fan_out.pow(level));
            count += sizes.map(|size| blocks.cells(&whole, size)).sum::<u64>();
            start = whole.end;
        }
        count
    }
}

/// The size of an inode, if the model knows it.
fn node_size(node: &Node) -> Option<u64> {
    match &node.body {
        Body::Regular(file) => Some(file.content.size()),
        Body::Symlink(to) => Some(to.len() as u64),
        Body::Special(..) => Some(0),
        Body::Directory { .. } => None,
    }
}

/// A short description of an outcome.
#[must_use]
pub fn tell(outcome: &Outcome) -> String {
    match outcome {
        Ok(Answer::Bytes(bytes)) => format!("success with {} bytes", bytes.len()),
        Ok(Answer::Entries(entries)) => format!("success with {} entries", entries.len()),
        Ok(Answer::File(facts)) => format!(
            "{:?} inode {}, {} links, {} bytes",
            facts.kind, facts.inode, facts.links, facts.size
        ),
        Ok(answer) => format!("success ({answer:?})"),
        Err(failure) if failure.errno == E2BIG => "E2BIG".to_owned(),
        Err(failure) => failure.to_string(),
    }
}

fn judge_bytes(right: &[u8], bytes: &[u8]) -> Result<(), String> {
    if right.len() != bytes.len() {
        return Err(format!("{} bytes, not {}", bytes.len(), right.len()));
    }
    match right.iter().zip(bytes).position(|(one, two)| one != two) {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} is {:#04x}, not {:#04x}",
            bytes[at], right[at]
        )),
    }
}

fn judge_entries(right: &[Listed], entries: &[Listed]) -> Result<(), String> {
    let mut sorted = entries.to_vec();
    sorted.sort_by(|one, two| one.name.cmp(&two.name));
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!(
            "`{}` is listed twice",
            crate::op::text::escape(&pair[0].name)
        ));
    }
    let names = |entries: &[Listed]| -> BTreeSet<Vec<u8>> {
        entries.iter().map(|entry| entry.name.clone()).collect()
    };
    judge_names(
        &Vec::from_iter(names(right)),
        &Vec::from_iter(names(entries)),
    )?;
    match right.iter().zip(&sorted).find(|(one, two)| one != two) {
        None => Ok(()),
        Some((one, two)) => Err(format!("{two:?} is listed, not {one:?}")),
    }
}

fn judge_names(right: &[Vec<u8>], names: &[Vec<u8>]) -> Result<(), String> {
    let show = |names: Vec<&Vec<u8>>| {
        let shown = names
            .iter()
            .take(5)
            .map(|name| crate::op::text::escape(name));
        shown.collect::<Vec<_>>().join(" ")
    };
    let (right, told) = (BTreeSet::from_iter(right), BTreeSet::from_iter(names));
    let missing: Vec<_> = right.difference(&told).copied().collect();
    let extra: Vec<_> = told.difference(&right).copied().collect();
    if names.len() != told.len() {
        return Err("a name is told twice".to_owned());
    }
    if missing.is_empty() && extra.is_empty() {
        return Ok(());
    }
    Err(format!(
        "names missing: {}; too many: {}",
        show(missing),
        show(extra)
    ))
}

fn judge_space(space: &Space) -> Result<(), String> {
    if space.free_blocks > space.blocks || space.free_inodes > space.inodes {
        return Err(format!("more free than there is: {space:?}"));
    }
    Ok(())
}
