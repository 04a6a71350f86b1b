//! Path operations of a volume: trailing slashes, and dangling links.

mod images;

use images::Image;
use pext4_fs::{Refusal, Result};

#[test]
fn a_slash_at_the_end_is_for_directories() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.write("/file", b"content").expect("a file");
    paths.create_dir("/dir/").expect("a directory");
    let refused: [(Result<()>, Refusal); 8] = [
        (paths.remove_file("/file/"), Refusal::NotADirectory),
        (paths.rename("/file/", "/other"), Refusal::NotADirectory),
        (paths.rename("/file", "/other/"), Refusal::NotADirectory),
        (paths.hard_link("/file", "/other/"), Refusal::NotFound),
        (paths.symlink("file", "/other/"), Refusal::NotFound),
        (paths.create("/other/").map(drop), Refusal::IsADirectory),
        (paths.write("/file/", b""), Refusal::IsADirectory),
        (paths.open("/file/").map(drop), Refusal::NotADirectory),
    ];
    for (number, (result, refusal)) in refused.into_iter().enumerate() {
        let error = result.expect_err("it is no directory");
        assert!(error.is(refusal), "{number}: {error}");
    }
    assert_eq!(paths.read("/file").expect("untouched"), b"content");
    paths.rename("/dir/", "/moved/").expect("a directory");
    paths.remove_dir("/moved/").expect("a directory");
    volume.close().expect("it closes");
    image.assert_clean();
}

#[test]
fn a_file_is_made_where_a_link_leads() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let volume = image.open();
    let paths = volume.paths();
    paths.create_dir("/dir").expect("a directory");
    paths.symlink("../far", "/dir/near").expect("a link");
    paths.symlink("/dir/near", "/link").expect("a link");
    paths.write("/link", b"content").expect("a new file");
    assert_eq!(paths.read("/far").expect("it was made"), b"content");
    paths.symlink("missing/file", "/nowhere").expect("a link");
    let error = paths.write("/nowhere", b"").expect_err("no directory");
    assert!(error.is(Refusal::NotFound), "{error}");
    paths.symlink("round", "/round").expect("a link");
    let error = paths.write("/round", b"").expect_err("a circle");
    assert!(error.is(Refusal::TooManySymlinks), "{error}");
    volume.close().expect("it closes");
    image.assert_clean();
}
