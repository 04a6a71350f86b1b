//! One thread with random operations, compared with the model and checked by e2fsck at the end.

use pext4_testkit::campaign::{self, Stage};
use pext4_testkit::effort::seeds;
use pext4_testkit::op::generate::Taste;
use pext4_testkit::oracle::format::{Features, Format, everyday};

/// Size of the images in bytes.
const SIZE: u64 = 48 << 20;

fn everywhere(name: &str, taste: Taste, count: u64, operations: usize) {
    for format in everyday(SIZE) {
        let stage = Stage::new(format).expect("mke2fs makes it");
        for seed in seeds(count) {
            campaign::run(&stage, name, taste, seed, operations);
        }
    }
}

#[test]
fn everything_a_little() {
    everywhere("everything", Taste::everything(), 10, 800);
}

#[test]
fn contents_above_all() {
    everywhere("contents", Taste::contents(), 8, 800);
}

#[test]
fn many_names() {
    everywhere("names", Taste::names(), 3, 2500);
}

#[test]
fn without_checksums() {
    let format = Format::new(SIZE, 1024, Features::NoChecksums);
    let stage = Stage::new(format).expect("mke2fs makes it");
    for seed in seeds(6) {
        campaign::run(&stage, "nochecksums", Taste::everything(), seed, 800);
    }
}

#[test]
fn with_a_cache_that_is_too_small() {
    let mut stage =
        Stage::new(Format::new(SIZE, 1024, Features::Upstream)).expect("mke2fs makes it");
    stage.options.cache_size = 256 << 10;
    for seed in seeds(20) {
        campaign::run(&stage, "smallcache", Taste::names(), seed, 2000);
        campaign::run(&stage, "smallcache", Taste::contents(), seed, 500);
    }
}
