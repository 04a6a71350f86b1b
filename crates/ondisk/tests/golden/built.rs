//! Structures from the builders, written into images and checked by e2fsck.

use std::ffi::OsStr;
use std::path::Path;

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{Entry, FileType};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::extent::{self, Node, Run};
use pext4_ondisk::htree::{BuiltBlock, Plan, RootInfo};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, InodeNumber};

use crate::image::Image;
use crate::tools::{self, Recipe};

const RECIPE: Recipe = Recipe {
    name: "built",
    mebibytes: 64,
    arguments: &["-t", "ext4", "-b", "1024", "-O", "64bit,metadata_csum"],
    commands: "mkdir /made\n",
};

#[test]
fn a_built_directory_and_a_built_extent_tree_please_the_checker() {
    if !tools::has_tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let source = tools::make_source(folder.path());
    let path = tools::make_image(folder.path(), &source, &RECIPE);
    let names: Vec<Vec<u8>> = tools::names()
        .iter()
        .map(|name| [b"made-", &name[..]].concat())
        .collect();
    let count = build_directory(&Image::open(&path), &names).len();
    let commands = "expand_dir /made\n".repeat(count - 1);
    tools::debugfs(folder.path(), &path, true, commands.as_bytes());
    let mut image = Image::open(&path);
    put_directory(&mut image, &names);
    rebuild_extents(&mut image);
    image.save(&path);
    judge(&path);
}

fn judge(path: &Path) {
    tools::run("e2fsck", [OsStr::new("-fn"), path.as_os_str()], |status| {
        status == 0
    });
}

fn build_directory(image: &Image, names: &[Vec<u8>]) -> Vec<BuiltBlock> {
    let (target, _) = image.find(b"file");
    let (own, _) = image.find(b"made");
    let entry = |position: usize| Entry {
        inode: target,
        file_type: Some(FileType::Regular),
        name: &names[position],
    };
    let hasher = Hasher {
        version: image.superblock.hash_version(),
        signedness: image
            .superblock
            .hash_signedness()
            .expect("mke2fs settles it"),
        seed: image.superblock.hash_seed,
        naming: Naming::Exact,
    };
    let size = usize::try_from(image.geometry.block_size).expect("small");
    let format = image.directory_format();
    let order = names.iter().map(Vec::as_slice);
    let plan = Plan::of(size, format, order, &hasher, 1).expect("two levels hold them");
    let mut blocks = Vec::new();
    plan.write(own, InodeNumber::ROOT, entry, |block| blocks.push(block));
    blocks
}

fn put_directory(image: &mut Image, names: &[Vec<u8>]) {
    let built = build_directory(image, names);
    let info = RootInfo::decode(&built[0].bytes).expect("just made");
    assert_eq!(info.indirect_levels, 1, "enough names for two levels");
    let (own, mut inode) = image.find(b"made");
    let homes = image.blocks_of(&inode);
    assert_eq!(homes.len(), built.len());
    let seed = image.geometry.checksum_seed().expect("metadata_csum is on");
    for (home, mut block) in homes.into_iter().zip(built) {
        block.stamp(InodeSeed::new(seed, own, inode.generation));
        image.block_mut(home).copy_from_slice(&block.bytes);
    }
    inode.flags.insert(InodeFlags::INDEX);
    image.set_inode(own, &inode);
    let (target, mut inode) = image.find(b"file");
    inode.links += u16::try_from(names.len()).expect("small");
    image.set_inode(target, &inode);
}

/// Rebuilds the extent tree of `sparse` in the blocks of its old nodes, and frees the remaining
/// blocks.
fn rebuild_extents(image: &mut Image) {
    let (number, mut inode) = image.find(b"sparse");
    let nodes: Vec<BlockNumber> = image
        .extent_nodes(&inode)
        .into_iter()
        .map(|(block, _)| block)
        .collect();
    let bounds = image.bounds();
    let leaves = nodes
        .iter()
        .map(|&block| Node::parse(image.block(block)).expect("sound"));
    let mut runs: Vec<Run> = leaves
        .filter(|node| node.depth() == 0)
        .flat_map(|node| (0..node.len()).map(move |slot| node.extent(slot, &bounds)))
        .map(|extent| extent.expect("sound"))
        .map(|extent| Run {
            logical: extent.logical,
            start: extent.start,
            length: extent.length,
            unwritten: extent.unwritten,
        })
        .collect();
    runs.sort_by_key(|run| run.logical);
    let extents = extent::extents_of(&runs).expect("they came from a tree");
    let size = usize::try_from(image.geometry.block_size).expect("small");
    let mut free = nodes.into_iter();
    let mut built = extent::build(&extents, size, || free.next()).expect("no more than before");
    let seed = image.geometry.checksum_seed().expect("metadata_csum is on");
    built.stamp(InodeSeed::new(seed, number, inode.generation));
    inode.block = built.root;
    for (home, bytes) in built.nodes {
        image.block_mut(home).copy_from_slice(&bytes);
    }
    for block in free {
        image.free(block);
        let sectors = inode.sectors(image.geometry.block_size);
        let per_block = u64::from(image.geometry.block_size / 512);
        assert!(inode.set_sectors(sectors - per_block, image.geometry.block_size, true));
    }
    image.set_inode(number, &inode);
}
