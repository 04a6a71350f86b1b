//! Finds the minimum size of a file system.
//!
//! A size is possible if a plan for it succeeds. Candidates are estimated first: used blocks that
//! are not group metadata, the metadata of the remaining groups, and some room for block maps,
//! since moved files may have more extents. Where inodes must keep their numbers, all groups with
//! used inodes remain.

use pext4_block::Device;
use pext4_ondisk::feature::Compat;

use super::image::Image;
use super::plan::Plan;
use super::shape::Shape;
use super::{grow, shrink};
use crate::error::{Error, Result};

/// Room for block maps: the data divided by these, tried in this order.
const SHARES: [u64; 4] = [8192, 1024, 128, 16];
/// How many larger sizes are tried after these, each halfway from the last to the present size:
/// some reasons to refuse, like the quota of a file whose map gets more pieces, depend on where the
/// end is, and not on the room.
const LARGER_SIZES: u32 = 8;
/// Additional room in blocks.
const MIN_ROOM: u64 = 8;

/// What the file system must hold.
pub(super) struct Requirements {
    /// Number of used blocks that are not group metadata.
    data: u64,
    /// Number of used inodes.
    inodes: u64,
    /// Number of groups up to the last one with a used inode, if inodes keep their numbers
    /// (`stable_inodes`); else 0.
    groups: u32,
}

impl Requirements {
    pub fn from_image(image: &Image<'_>) -> Self {
        let geometry = &image.geometry;
        let is_stable = image.superblock.features.has_compat(Compat::STABLE_INODES);
        let (mut blocks, mut inodes, mut groups) = (0, 0, 0);
        for (group, descriptor) in geometry.groups().zip(&image.descriptors) {
            let used = geometry.inodes_per_group - descriptor.free_inodes;
            blocks += u64::from(geometry.blocks_in(group) - descriptor.free_clusters);
            inodes += u64::from(used);
            if is_stable && used > 0 {
                groups = group.get() + 1;
            }
        }
        Self {
            data: blocks.saturating_sub(geometry.metadata_blocks()),
            inodes,
            groups,
        }
    }

    fn fits(&self, shape: &Shape, room: u64) -> bool {
        let geometry = &shape.geometry;
        let blocks = geometry.blocks_count - u64::from(geometry.first_data_block);
        let taken = geometry.metadata_blocks().saturating_add(self.data);
        self.inodes <= u64::from(geometry.inodes_count)
            && self.groups <= geometry.group_count
            && taken.saturating_add(room) <= blocks
    }

    /// Refuses a shape that is certainly too small. The error names the smallest size that should
    /// suffice.
    pub fn check(&self, image: &Image<'_>, shape: &Shape) -> Result<()> {
        if self.fits(shape, 0) {
            return Ok(());
        }
        let why = if self.groups > shape.geometry.group_count {
            ", as the feature stable_inodes forbids to give inodes other numbers"
        } else {
            ""
        };
        Err(self.too_few(image, shape.geometry.blocks_count, why))
    }

    /// The error of a size with too few blocks.
    fn too_few(&self, image: &Image<'_>, blocks: u64, why: &str) -> Error {
        let room = MIN_ROOM + self.data / SHARES[0];
        let least = self.smallest(image, room);
        let least = least.map_or(image.geometry.blocks_count, |least| {
            least.geometry.blocks_count
        });
        let block_size = u64::from(image.geometry.block_size);
        let stated = match blocks {
            0 => "less than a block is".to_owned(),
            blocks => format!("{} bytes are", blocks.saturating_mul(block_size)),
        };
        Error::Impossible(format!(
            "{stated} too few: {} are the least for what it holds{why}",
            least.saturating_mul(block_size)
        ))
    }

    /// The smallest shape that should suffice with this much room; `None` if it is the current one.
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

/// The shape of a file system of `blocks` blocks. If these are too few for any, the error names the
/// smallest size that should suffice.
pub(super) fn shape(image: &Image<'_>, blocks: u64) -> Result<Shape> {
    match Shape::new(&image.superblock, &image.geometry, blocks) {
        Err(Error::Impossible(_)) if blocks < image.geometry.blocks_count => {
            Err(Requirements::from_image(image).too_few(image, blocks, ""))
        }
        shape => shape,
    }
}

/// Plans the smallest file system that holds the contents.
pub(super) fn plan(device: &dyn Device, image: &Image<'_>) -> Result<Plan> {
    let required = Requirements::from_image(image);
    let mut last = None;
    for shape in candidates(&required, image) {
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

/// The shapes that are tried, from the smallest up.
fn candidates(required: &Requirements, image: &Image<'_>) -> impl Iterator<Item = Shape> {
    let with_room = |share| required.smallest(image, MIN_ROOM + required.data / share);
    let mut shapes: Vec<Shape> = SHARES.into_iter().map_while(with_room).collect();
    let present = image.geometry.blocks_count;
    for _ in 0..LARGER_SIZES {
        let Some(last) = shapes.last().map(|shape| shape.geometry.blocks_count) else {
            break;
        };
        let blocks = last + (present - last).div_ceil(2);
        let shape = Shape::new(&image.superblock, &image.geometry, blocks).ok();
        let shape =
            shape.filter(|shape| (last + 1..present).contains(&shape.geometry.blocks_count));
        let Some(shape) = shape else {
            break;
        };
        shapes.push(shape);
    }
    shapes.into_iter()
}
