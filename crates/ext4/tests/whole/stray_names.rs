//! Entries `.` and `..` where a directory has none: they lead to files that nothing else shows.

use pext4_fs::{Refusal, Volume};

use crate::images::Image;

/// The image of a directory `/in` with the files `data` and `frag`, of which the latter is renamed
/// behind the file system's back to a name of two bytes.
fn with_stray(features: &str, name: &[u8; 2]) -> Option<Volume> {
    let image = Image::make(&["-b", "1024", "-O", features])?;
    let volume = image.open();
    volume.paths().create_dir("/in").expect("room");
    volume.paths().write("/in/data", b"content").expect("room");
    volume.paths().write("/in/frag", b"hidden").expect("room");
    volume.close().expect("a clean close");
    image.change(|bytes| {
        // Also in the log, which may lie before the directory.
        let entry = b"\x04\x01frag";
        let found = bytes.windows(entry.len()).enumerate();
        let found = found.filter(|(_, window)| window == entry);
        let places: Vec<usize> = found.map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "it is in the directory");
        for at in places {
            bytes[at] = 2;
            bytes[at + 2..at + 4].copy_from_slice(name);
        }
    });
    Some(image.open())
}

#[test]
fn a_second_dot_or_dot_dot_hides_no_file_in_silence() {
    for features in ["^metadata_csum,^dir_index", "^metadata_csum,dir_index"] {
        let Some(volume) = with_stray(features, b"..") else {
            return;
        };
        let paths = volume.paths();
        let mut listing = paths.read_dir("/in").expect("it has names");
        // The other file is listed all the same.
        let other = listing.next().expect("a file").expect("its name is sound");
        assert_eq!(other.name, b"data");
        let error = listing
            .next()
            .expect("an error")
            .expect_err("a file has no name");
        assert!(error.to_string().contains("no file can have"), "{error}");
        assert!(listing.next().is_none());
        // It is not removed with the directory, nor when that gets an index.
        paths.remove_file("/in/data").expect("it is there");
        let refused = paths.remove_dir("/in").expect_err("it is not empty");
        assert!(refused.is(Refusal::NotEmpty), "{refused}");
        for number in 0..1000 {
            let name = format!("/in/a-name-of-some-length-{number}");
            paths.write(name, b"").expect("room");
        }
        let listing = paths.read_dir("/in").expect("it has names");
        let (names, errors): (Vec<_>, Vec<_>) = listing.partition(|entry| entry.is_ok());
        assert_eq!((names.len(), errors.len()), (1000, 1), "it is still there");
    }
}
