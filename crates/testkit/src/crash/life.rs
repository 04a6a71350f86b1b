//! What happens on a volume after a power cut: it has to go on, not only to be read.
//!
//! Another run works in a new directory of the recovered volume, and is cut as the first was: then
//! the log holds what both have left, the cut transactions of the first too. And everything that
//! was recovered is removed, so that its maps, attributes and names have to be sound.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{FileType, InodeNumber};

use super::recording::Recording;
use super::window::Budget;
use super::{LIMIT, examine_lives};
use crate::Random;
use crate::campaign::{Stage, catching_panics, check_device};
use crate::effort;
use crate::op::generate::Profile;
use crate::op::{Base, Op, Target};
use crate::outcome::Subject;
use crate::tree::show;
use crate::volume::{VolumeSubject, walk};

/// Operations of a further life.
const OPERATIONS: usize = 40;
/// How many images are made of it.
const BUDGET: Budget = Budget {
    exhaust: 3,
    window: 6,
    total: 16,
};

/// Runs, cuts and examines another life of an image that a power cut has left: the first of so
/// many.
pub(super) fn go_on(
    stage: &Stage,
    left: &Arc<RamDevice>,
    name: &str,
    random: &mut Random,
    lives: usize,
) -> Result<(), String> {
    let seed = random.word();
    let (own, left) = (stage.clone(), Arc::clone(left));
    let recording = effort::within(LIMIT, "a further life", move || {
        let directory = format!("life{lives}");
        Recording::after(&own, &left, directory, Profile::crashes(), seed, OPERATIONS)
    })?;
    let Some(recording) = recording else {
        return Ok(());
    };
    examine_lives(&recording, &format!("{name}-then"), seed, BUDGET, lives).map(|_| ())
}

/// Recovers an image and removes all that is in it; then e2fsck must find nothing.
pub(super) fn remove_all(stage: &Stage, left: &Arc<RamDevice>) -> Result<(), String> {
    let device = Arc::new(left.fork());
    let (own, below) = (stage.clone(), Arc::<RamDevice>::clone(&device));
    effort::within(LIMIT, "removing all files", move || {
        catching_panics(|| {
            let subject = VolumeSubject::open(below as Arc<dyn Device>, own.options);
            let mut subject = subject.map_err(|error| format!("open: {error}"))?;
            remove_below_root(&mut subject)?;
            subject.close().map_err(|error| format!("{error:#}"))
        })
    })?;
    check_device(&device).map_err(|error| format!("{error:#}"))
}

fn remove_below_root(subject: &mut VolumeSubject) -> Result<(), String> {
    let tree = walk(subject.volume(), InodeNumber::ROOT);
    let tree = tree.map_err(|failure| format!("the walk failed: {failure}"))?;
    let kept: [&[u8]; 2] = [b"", b"lost+found"];
    let removed = tree
        .items
        .iter()
        .filter(|(path, _)| !kept.contains(&&path[..]));
    // Directories come before what is in them.
    for (path, item) in removed.rev() {
        let at = Target {
            base: Base::Root,
            path: path
                .split(|&byte| byte == b'/')
                .map(<[u8]>::to_vec)
                .collect(),
        };
        let op = match item.facts.kind {
            FileType::Directory => Op::RemoveDirectory(at),
            _ => Op::Unlink(at),
        };
        subject
            .run(&op)
            .map_err(|failure| format!("removing {}: {failure}", show(path)))?;
    }
    Ok(())
}
