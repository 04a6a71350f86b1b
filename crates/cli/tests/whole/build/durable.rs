//! An image that is told to be built is whole under its name when the power fails after that.

use super::images::Workshop;
use crate::common::traced::{calls, can_trace, check_order};

#[test]
fn an_image_is_durable_before_it_has_its_name_and_its_name_after_that() {
    if !can_trace() {
        return;
    }
    let workshop = Workshop::new();
    workshop.write("tree/large", &vec![7; 9 << 20]);
    for number in 0..30 {
        workshop.write(&format!("tree/folder/{number}"), b"small");
    }
    // The second one replaces the first.
    for options in [&["-q"][..], &["-q", "--force"]] {
        let mut build = workshop.build(options);
        build.arg(workshop.path("tree"));
        check_order(&calls(&build), &workshop.image);
        workshop.check();
    }
}
