//! One thread with random operations, compared with the model and checked by e2fsck at the end.

use pext4_testkit::campaign::{self, Stage};
use pext4_testkit::effort::seeds;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::oracle::format::{Features, Format, everyday};

/// Size of the images in bytes.
const SIZE: u64 = 48 << 20;

fn everywhere(name: &str, profile: Profile, count: u64, operations: usize) {
    for format in everyday(SIZE) {
        let stage = Stage::new(format).expect("mke2fs makes it");
        for seed in seeds(count) {
            campaign::run(&stage, name, profile, seed, operations);
        }
    }
}

#[test]
fn everything_a_little() {
    everywhere("everything", Profile::everything(), 10, 800);
}

#[test]
fn contents_above_all() {
    everywhere("contents", Profile::contents(), 8, 800);
}

#[test]
fn many_names() {
    everywhere("names", Profile::names(), 3, 2500);
}

#[test]
fn without_checksums() {
    let format = Format::new(SIZE, 1024, Features::NoChecksums);
    let stage = Stage::new(format).expect("mke2fs makes it");
    for seed in seeds(6) {
        campaign::run(&stage, "nochecksums", Profile::everything(), seed, 800);
    }
}

#[test]
fn with_a_cache_that_is_too_small() {
    let mut stage =
        Stage::new(Format::new(SIZE, 1024, Features::Upstream)).expect("mke2fs makes it");
    stage.options.cache_size = 256 << 10;
    for seed in seeds(20) {
        campaign::run(&stage, "smallcache", Profile::names(), seed, 2000);
        campaign::run(&stage, "smallcache", Profile::contents(), seed, 500);
    }
}
