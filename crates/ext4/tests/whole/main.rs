//! The file system by its library, on images that mke2fs makes and e2fsck checks.
//!
//! One program, so that it links once; each module has a topic of its own. What changes the whole
//! process is a program of its own (`times.rs` stops the clock).

#[path = "../images/mod.rs"]
mod images;

mod after_errors;
mod attributes;
mod bitmaps;
mod by_path;
mod casefold;
mod casefold_model;
mod clusters;
mod damaged_files;
mod damaged_groups;
mod damaged_maps;
mod durability;
mod encryption;
mod endings;
mod failed_allocations;
mod first_steps;
mod full_host;
mod grown_inodes;
mod hurd;
mod index_nodes;
mod inherited_lists;
mod inline;
mod label;
mod layers;
mod limits;
mod logged_superblocks;
mod lying_journals;
mod map_formats;
mod names;
mod numbers;
mod panics;
mod paths;
mod projects;
mod promises;
mod quotas;
mod scaling;
mod scattered_files;
mod sharing;
mod strange_images;
mod stray_names;
mod superblock_defaults;
mod torn_superblocks;
mod trim;
mod unfinished_truncations;
mod values;
mod verity;
