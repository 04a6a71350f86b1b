//! How small a file system can get.
//!
//! The answer to "does it fit" is a plan that was made. Which sizes are worth a plan is estimated
//! first: blocks in use that are no metadata of groups, the metadata of the groups that would stay,
//! and some room for maps, since what moves may end up in more pieces.

use pext4_block::Device;

use super::image::Image;
use super::plan::Plan;
use super::shape::Shape;
use super::{grow, shrink};
use crate::error::{Error, Result};

/// Room for maps, as a share of what is in use: tried in this order.
const SHARES: [u64; 4] = [8192, 1024, 128, 16];
/// And so many blocks.
const MIN_ROOM: u64 = 8;

/// What must be kept.
pub(super) struct Requirements {
    /// Blocks in use that are no metadata of groups.
    data: u64,
    /// Inodes in use.
    inodes: u64,
}

impl Requirements {
    pub fn from_image(image: &Image<'_>) -> Self {
        let geometry = &image.geometry;
        let (mut blocks, mut inodes) = (0, 0);
        for (group, descriptor) in geometry.groups().zip(&image.descriptors) {
            blocks += u64::from(geometry.blocks_in(group) - descriptor.free_clusters);
            inodes += u64::from(geometry.inodes_per_group - descriptor.free_inodes);
        }
        Self {
            data: blocks.saturating_sub(geometry.metadata_blocks()),
            inodes,
        }
    }

    fn fits(&self, shape: &Shape, room: u64) -> bool {
        let geometry = &shape.geometry;
        let blocks = geometry.blocks_count - u64::from(geometry.first_data_block);
        let taken = geometry.metadata_blocks().saturating_add(self.data);
        self.inodes <= u64::from(geometry.inodes_count) && taken.saturating_add(room) <= blocks
    }

    /// Refuses a shape that is too small for sure, with the smallest that may do.
    pub fn check(&self, image: &Image<'_>, shape: &Shape) -> Result<()> {
        if self.fits(shape, 0) {
            return Ok(());
        }
        let room = MIN_ROOM + self.data / SHARES[0];
        let least = self.smallest(image, room);
        let blocks = least.map_or(image.geometry.blocks_count, |least| {
            least.geometry.blocks_count
        });
        let block_size = u64::from(image.geometry.block_size);
        Err(Error::Impossible(format!(
            "{} bytes are too few: {} are the least for what it holds",
            shape.geometry.blocks_count.saturating_mul(block_size),
            blocks.saturating_mul(block_size)
        )))
    }

    /// The smallest shape that should do with so much room; `None` if that is the present one.
    fn smallest(&self, image: &Image<'_>, room: u64) -> Option<Shape> {
        let (mut low, mut high) = (0, image.geometry.blocks_count);
        let mut best = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let shape = Shape::new(&image.superblock, &image.geometry, middle).ok();
            match shape.filter(|shape| self.fits(shape, room)) {
                Some(shape) => {
                    best = Some(shape);
                    high = middle;
                }
                None => low = middle + 1,
            }
        }
        best.filter(|shape| shape.geometry.blocks_count < image.geometry.blocks_count)
    }
}

/// Plans the smallest file system that holds what there is.
pub(super) fn plan(device: &dyn Device, image: &Image<'_>) -> Result<Plan> {
    let required = Requirements::from_image(image);
    let mut last = None;
    for share in SHARES {
        let room = MIN_ROOM + required.data / share;
        let Some(shape) = required.smallest(image, room) else {
            break;
        };
        match shrink::plan(Image::open(device)?, shape) {
            Err(Error::Impossible(reason)) => last = Some(reason),
            done => return done,
        }
    }
    let Some(reason) = last else {
        let present = Image::open(device)?;
        let blocks = present.geometry.blocks_count;
        let shape = Shape::new(&present.superblock, &present.geometry, blocks)?;
        return grow::plan(present, shape);
    };
    Err(Error::Impossible(reason))
}
