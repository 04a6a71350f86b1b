//! Where the contents of a built image lie, as the reader shows it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pext4_edit::Reader;

use super::images::Workshop;
use crate::common::succeed;

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// The file with holes, and where it has data.
const SPARSE: &str = "tree/sparse";
const DATA: [Range<u64>; 4] = [
    0..4 * BLOCK,
    100 * BLOCK..101 * BLOCK,
    256 * BLOCK..900 * BLOCK,
    9000 * BLOCK..9010 * BLOCK,
];

/// Small files, larger ones, one that several threads copy, one with holes, and hundreds in a
/// directory. Returns the paths in the image and the data of each.
fn mixed(workshop: &Workshop) -> Vec<(String, Vec<Range<u64>>)> {
    let mut files = vec![("/sparse".to_owned(), DATA.to_vec())];
    let mut write = |path: String, size: u64| {
        let size = usize::try_from(size).expect("it fits into memory");
        workshop.write(&format!("tree{path}"), &vec![7; size]);
        let end = (size as u64).next_multiple_of(BLOCK);
        files.push((path, std::iter::once(0..end).collect()));
    };
    for number in 0..400 {
        write(format!("/many/{number}"), 1 + number * 61);
    }
    for (number, size) in [1, 4096, 4097, 262_145, 3 << 20, 21 << 20]
        .into_iter()
        .enumerate()
    {
        write(format!("/{number}/small"), 100);
        write(format!("/{number}/file"), size);
    }
    let path = workshop.write(SPARSE, b"");
    let sparse = File::options().write(true).open(path).expect("it is ours");
    for data in DATA {
        let length = usize::try_from(data.end - data.start).expect("it fits into memory");
        let written = sparse.write_all_at(&vec![9; length], data.start);
        written.expect("there is room");
    }
    files
}

/// The ranges of a file and of the device that its extents connect.
fn extents(image: &Reader, path: &str) -> Vec<(Range<u64>, Range<u64>)> {
    let volume = image.volume();
    let file = volume.paths().attributes(path).expect("it was built");
    let extents = volume.extents(file.inode, 0, 1000).expect("it is sound");
    let ranges = extents.iter().map(|extent| {
        assert!(!extent.unwritten, "{path}: {extent:?}");
        let of = |start| start..start + extent.length;
        (of(extent.logical), of(extent.physical))
    });
    ranges.collect()
}

/// The image has free runs that hold each of these files whole.
#[test]
fn each_file_is_one_run_whatever_the_number_of_threads() {
    let workshop = Workshop::new();
    let files = mixed(&workshop);
    for threads in ["1", "2", "7"] {
        let mut build = workshop.build(["-q", "--force", "--threads", threads]);
        succeed(build.arg(workshop.path("tree")));
        let image = Reader::open(&workshop.image).expect("it was built");
        for (path, data) in &files {
            let extents = extents(&image, path);
            let mapped: Vec<_> = extents.iter().map(|(data, _)| data.clone()).collect();
            assert_eq!(mapped, *data, "{path}: an extent for each piece of data");
            let homes = extents.windows(2).map(|pair| (&pair[0].1, &pair[1].1));
            for (home, next) in homes {
                assert_eq!(home.end, next.start, "{path}: the pieces lie together");
            }
        }
    }
    workshop.check();
}
