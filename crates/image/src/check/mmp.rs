//! Pass 0: multiple mount protection.

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::mmp::{Mmp, Use};

use super::catalogue::Kind;
use super::findings::{Findings, Place};
use super::volume::Volume;

/// Checks the block, and reports a recorded use of the file system.
pub(super) fn check(volume: &Volume, findings: &Findings) {
    if !volume.geometry.features.has_incompat(Incompat::MMP) {
        return;
    }
    let block = volume.superblock.mmp_block;
    let place = || Place::whole().block(block);
    if !volume.contains(block, 1) {
        return findings.add(Kind::MmpBlock, place(), || {
            "it lies outside the file system".to_owned()
        });
    }
    let bytes = match volume.block(block) {
        Ok(bytes) => bytes,
        Err(error) => return findings.add(Kind::Unreadable, place(), || error.to_string()),
    };
    let usage = match Mmp::decode(&bytes, volume.seed) {
        Ok(mmp) => mmp.usage(),
        Err(corrupt) => return findings.corrupt(Kind::MmpBlock, place(), &corrupt),
    };
    match usage {
        Use::Clean => {}
        Use::Mounted(_) => findings.add(Kind::MmpInUse, place(), || {
            "last used by a mount".to_owned()
        }),
        // Nobody mounts it until that is cleared.
        Use::Checking => findings.add(Kind::MmpBlock, place(), || {
            "a checker uses it, or ended without saying so".to_owned()
        }),
        Use::Unknown(sequence) => findings.add(Kind::MmpBlock, place(), || {
            format!("its sequence {sequence:#010X} is none of a mount or a checker")
        }),
    }
}
