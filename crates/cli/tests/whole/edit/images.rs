//! Small images, and the commands that read them back.

use std::process::Command;

use serde_json::Value;

use crate::common::{Place, pext4, succeed};

pub fn image(size: &str) -> Place {
    let place = Place::empty();
    succeed(pext4(["mkfs", "-q", "--size", size]).arg(&place.image));
    place
}

/// `pext4 VERB IMAGE ARGUMENTS`.
pub fn on(place: &Place, verb: &str, arguments: &[&str]) -> Command {
    let mut command = pext4([verb]);
    command.arg(&place.image).args(arguments);
    command
}

pub fn cat(place: &Place, path: &str) -> String {
    succeed(&mut on(place, "cat", &[path]))
}

pub fn stat(place: &Place, path: &str) -> Value {
    let text = succeed(&mut on(place, "stat", &["--json", path]));
    let stat: Value = serde_json::from_str(&text).expect("JSON");
    match stat {
        Value::Array(mut stats) => stats.remove(0),
        stat => stat,
    }
}
