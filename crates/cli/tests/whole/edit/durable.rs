//! An edit by a clone that is told to be made stays made when the power fails after that, and the
//! image is whole when it fails before. By the journal `crates/edit/tests/whole/crash.rs` tests
//! that.

use super::images::{cat, image, on};
use crate::common::traced::{calls, can_trace, check_order};

#[test]
fn a_clone_is_durable_before_it_replaces_the_image_and_its_name_after_that() {
    if !can_trace() {
        return;
    }
    let place = image("16M");
    let host = place.point.join("file");
    std::fs::write(&host, vec![b'x'; 200_000]).expect("a fresh place");
    let host = host.to_str().expect("text");
    let edit = on(&place, "put", &["-q", "--by", "clone", host, "/file"]);
    check_order(&calls(&edit), &place.image);
    assert_eq!(cat(&place, "/file").len(), 200_000);
    place.check();
}
