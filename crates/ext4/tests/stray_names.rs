//! Entries `.` and `..` where a directory has none: they lead to files that nothing else shows.

mod images;

use images::Image;
use pext4_fs::{Refusal, Volume};

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
        let entry = b"\x04\x01frag";
        let found = bytes
            .windows(entry.len())
            .position(|window| window == entry);
        let at = found.expect("it is in the directory");
        bytes[at] = 2;
        bytes[at + 2..at + 4].copy_from_slice(name);
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
        let error = paths.read_dir("/in").expect_err("a file has no name");
        assert!(error.to_string().contains("no file can have"), "{error}");
        // The directory's own entries and the other file are listed all the same.
        let directory = paths.resolve("/in").expect("it is there").inode();
        let mut names = Vec::new();
        let listed = volume.read_directory(directory, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        assert!(listed.is_err());
        assert_eq!(names, [&b"."[..], b"..", b"data"]);
        // It is not removed with the directory, nor when that gets an index.
        paths.remove_file("/in/data").expect("it is there");
        let refused = paths.remove_dir("/in").expect_err("it is not empty");
        assert!(refused.is(Refusal::NotEmpty), "{refused}");
        for number in 0..1000 {
            let name = format!("/in/a-name-of-some-length-{number}");
            paths.write(name, b"").expect("room");
        }
        paths.read_dir("/in").expect_err("it is still there");
    }
}
