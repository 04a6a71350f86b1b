//! Changing the label of an open volume: with and without a journal, and labels that do not fit the
//! field.

use std::os::unix::fs::FileExt;

use pext4_fs::Refusal;
use pext4_ondisk::Corrupt;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

use crate::images::Image;

#[test]
fn a_label_is_kept_and_one_that_does_not_fit_changes_nothing() {
    for arguments in [&["-L", "old"][..], &["-L", "old", "-O", "^has_journal"]] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        assert_eq!(volume.label(), b"old");
        for wrong in [&b"seventeen-letters"[..], b"a\0b"] {
            let refusal = volume.set_label(wrong).expect_err("it does not fit");
            assert!(refusal.is(Refusal::Invalid), "{refusal}");
        }
        assert_eq!(volume.label(), b"old");
        volume.set_label(b"sixteen-letters!").expect("it fits");
        volume.close().expect("a clean end");
        image.assert_clean();
        let volume = image.open();
        assert_eq!(volume.label(), b"sixteen-letters!");
        volume.set_label(b"").expect("none is one too");
        assert_eq!(volume.label(), b"");
        volume.close().expect("a clean end");
        image.assert_clean();
    }
}

fn superblock_at(image: &[u8], place: usize) -> Result<Superblock, Corrupt> {
    Superblock::decode(image[place..].first_chunk().expect("within the image"))
}

#[test]
fn every_copy_of_the_superblock_gets_the_label() {
    let Some(image) = Image::make(&["-b", "1024", "-g", "4096", "-L", "old"]) else {
        return;
    };
    let bytes = std::fs::read(&image.path).expect("the image");
    let superblock = superblock_at(&bytes, 1024).expect("sound");
    let geometry = Geometry::of(&superblock).expect("sound");
    let groups = geometry.groups().skip(1);
    let copies = groups.filter_map(|group| geometry.superblock_copy(group));
    let places: Vec<u64> = copies.map(|block| block.get() * 1024).collect();
    assert!(places.len() > 2, "{places:?}");
    let opened = std::fs::OpenOptions::new().write(true).open(&image.path);
    let file = opened.expect("the image");
    // A corrupt copy is left corrupt.
    let spoilt = file.write_all_at(&[1; 8], places[1] + 200);
    spoilt.expect("it is ours");
    drop(file);
    let volume = image.open();
    volume.set_label(b"new").expect("it fits");
    volume.close().expect("a clean end");
    let bytes = std::fs::read(&image.path).expect("the image");
    for (number, place) in places.iter().enumerate() {
        let place = usize::try_from(*place).expect("small");
        let copy = superblock_at(&bytes, place);
        match number {
            1 => assert!(copy.is_err(), "its checksum is wrong as before"),
            _ => assert_eq!(&copy.expect("sound").volume_name[..4], b"new\0"),
        }
    }
}
