//! The specimens, whose makers are the tools of e2fsprogs.

use pext4_testkit::effort::scratch;
use pext4_testkit::mutate::{Specimen, write_journal};
use pext4_testkit::oracle::check::recover;
use pext4_testkit::oracle::format::Features;
use pext4_testkit::oracle::{run, tool};

#[test]
fn a_specimen_has_a_bit_of_everything() {
    for features in [Features::NoChecksums, Features::Upstream] {
        let specimen = Specimen::with_journal(features).expect("made");
        let whats: Vec<&str> = specimen
            .spots
            .iter()
            .map(|spot| spot.what.as_str())
            .collect();
        for what in [
            "Inode table",
            "Directory /many",
            "Extent node",
            "Attribute block",
            "Journal",
        ] {
            assert!(whats.contains(&what), "{what} is not in {whats:?}");
        }
        assert!(
            whats
                .iter()
                .filter(|what| **what == "Directory /many")
                .count()
                > 5
        );
    }
}

#[test]
fn journals_of_debugfs_can_be_replayed() {
    let folder = scratch();
    let image = folder.path().join("image");
    for features in [
        Features::NoChecksums,
        Features::Debian12,
        Features::Upstream,
    ] {
        for version in [2, 3] {
            Specimen::make(features)
                .expect("made")
                .device
                .save(&image)
                .expect("saved");
            write_journal(&image, version).expect("written");
            let told = run(tool("dumpe2fs").arg("-h").arg(&image)).expect("readable");
            assert!(told.contains("needs_recovery"), "{told}");
            recover(&image).unwrap_or_else(|error| panic!("{features:?}, {version}: {error:#}"));
        }
    }
}
