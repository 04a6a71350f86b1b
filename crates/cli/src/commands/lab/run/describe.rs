//! The settings of a run in words, as its results keep them.

use anyhow::Result;
use pext4_lab::setup::Request;
use pext4_lab::workloads::Mix;

use super::Arguments;
use crate::size;

/// The settings that a reader needs to repeat the run, of images before they are created.
pub(super) fn settings(arguments: &Arguments, request: &Request) -> Result<Vec<(String, String)>> {
    let mut entries = Vec::new();
    let mut add = |name: &str, value: String| entries.push((name.to_owned(), value));
    match (&arguments.path, arguments.compare.is_empty()) {
        (Some(path), _) => add("path", path.display().to_string()),
        (None, true) => add("device", arguments.device.clone()),
        (None, false) => add("compared", "on images in memory".to_owned()),
    }
    match (arguments.steps, arguments.seconds) {
        (Some(steps), _) => add("steps", steps.to_string()),
        (None, Some(seconds)) => add("seconds", seconds.to_string()),
        (None, None) => add(
            "seconds",
            "0.3 or 0.03 for each task of a processor".to_owned(),
        ),
    }
    add("warm-up", arguments.warm_up.to_string());
    add("repeat", arguments.repeat.to_string());
    if arguments.path.is_none() {
        add("commit", format!("{} s", arguments.commit));
    }
    add("seed", arguments.seed.to_string());
    match arguments.files_in_all {
        Some(files) => add("files of all tasks together", files.to_string()),
        None => add("files", arguments.files.to_string()),
    }
    add("file size", size::show(arguments.file_size));
    add("values", arguments.values.to_string());
    let named = Mix::ALL.iter().find(|(_, mix)| *mix == arguments.mix);
    let mix = named.map_or("unknown", |(name, _)| name);
    add("users", format!("{} ({mix})", arguments.users));
    if let Some(percent) = arguments.fill {
        add("filled before", format!("{percent} %"));
    }
    if let Some(size) = arguments.size {
        add("image", size::show(size));
    }
    if let Some(journal) = arguments.journal {
        add("journal", size::show(journal));
    }
    if let Some(size) = request.inode_size()? {
        add("inode size", size.to_string());
    }
    if let Some(cache) = request.pext4_cache() {
        add("cache size", size::show(cache));
    }
    if arguments.meter {
        add("meter", "on".to_owned());
    }
    if arguments.pin {
        add("pinned", "yes".to_owned());
    }
    Ok(entries)
}
