//! The corruptions: what each does to which image, and what e2fsck says to it. They are kept by
//! subject.

mod attributes;
mod encryption;
mod inodes;
mod maps;
mod names;
mod quotas;
mod summaries;
mod volume;

use pext4_image::check::Kind;

use super::bases::Base;
use super::image::Image;

/// What e2fsck says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Complains,
    /// It says nothing, and why that is so.
    Silent(&'static str),
    /// It is not asked, and why.
    NotAsked(&'static str),
}

pub type Edit = fn(&mut Image);

/// A finding, an image, what e2fsck says, and the edit of the image that brings it about.
pub type Corruption = (Kind, Base, Beside, Edit);

/// Why e2fsck has nothing to say.
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
