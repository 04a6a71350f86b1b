//! The corruptions, by subject: each with its image and the reaction of e2fsck.

mod attributes;
mod encryption;
mod inodes;
mod maps;
mod names;
mod quotas;
mod summaries;
pub mod volume;

use pext4_image::check::Kind;

use super::bases::Base;
use super::image::Image;

/// The reaction of e2fsck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Complains,
    /// It reports nothing, for this reason.
    Silent(&'static str),
    /// It is not run, for this reason.
    NotAsked(&'static str),
}

pub type Edit = fn(&mut Image);

/// A finding, an image, the reaction of e2fsck, and the modification that causes the finding.
pub type Corruption = (Kind, Base, Beside, Edit);

/// Why e2fsck reports nothing.
const NOTE: &str = "a note: nothing is wrong";

/// All of them.
pub fn corruptions() -> Vec<Corruption> {
    [
        volume::volume(),
        inodes::inodes(),
        inodes::reserved(),
        maps::maps(),
        attributes::attributes(),
        encryption::contexts(),
        encryption::policies(),
        encryption::links(),
        names::names_of(),
        names::indexes(),
        names::links(),
        summaries::summaries(),
        quotas::headers(),
        quotas::trees(),
        quotas::usage(),
    ]
    .concat()
}
