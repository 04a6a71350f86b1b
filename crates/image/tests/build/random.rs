//! Random trees: each must be in the image unchanged. The seed of a failure is printed;
//! `BUILD_SEED` sets it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use pext4_image::build::{Builder, Source};

use crate::oracle::compare;

fn name(random: &mut Rng, number: usize) -> String {
    let length = random.u64(..40);
    let letters = (0..length).map(|_| char::from(b'a' + random.u64(..26) as u8));
    format!("{}{number}", letters.collect::<String>())
}

fn make(root: &Path, random: &mut Rng) {
    let mut directories = vec![root.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..200 + random.u64(..800) as usize {
        let parent = directories[random.u64(..directories.len() as u64) as usize].clone();
        let path = parent.join(name(random, number));
        match random.u64(..10) {
            0 => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            1 => symlink("s".repeat(1 + random.u64(..100) as usize), &path).unwrap(),
            2 if !files.is_empty() => {
                let target = &files[random.u64(..files.len() as u64) as usize];
                fs::hard_link(target, &path).unwrap();
            }
            3 => {
                let file = File::create(&path).unwrap();
                let size = random.u64(..3 << 20);
                file.set_len(size).unwrap();
                for _ in 0..random.u64(..20) {
                    let at = random.u64(..size + 1);
                    let length = random.u64(..20_000).min(size - at) as usize;
                    file.write_all_at(&vec![7; length], at).unwrap();
                }
                files.push(path);
            }
            _ => {
                let bits = random.u64(..15);
                let size = random.u64(..1 << bits) as usize;
                fs::write(&path, vec![number as u8; size]).unwrap();
                files.push(path);
            }
        }
    }
}

#[test]
fn random_trees_come_back() {
    let given = std::env::var("BUILD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = given.map_or(1..9, |seed: u64| seed..seed + 1);
    for seed in seeds {
        eprintln!("BUILD_SEED={seed}");
        let mut random = Rng::with_seed(seed);
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        make(&tree, &mut random);
        let image = folder.path().join("image");
        let block_size = [1024, 2048, 4096][random.u64(..3) as usize];
        Builder::new()
            .source(Source::Directory(tree.clone()))
            .block_size(block_size)
            .threads(1 + random.u64(..4) as usize)
            .build(&image)
            .unwrap();
        compare(&image, &tree);
    }
}
