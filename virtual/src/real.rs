//! Measures real threads with ordinary locks, for the comparison that `pext4-virtual --validate`
//! prints. The one argument is a `Request` as JSON, the output the result as JSON.

use anyhow::{Context, Result, bail, ensure};
use pext4_sync::meter;
use pext4_virtual::measure::measure;
use pext4_virtual::setup::{NoObserver, Setup};

/// What is told to somebody who starts it by hand.
const USAGE: &str = "usage: pext4-real REQUEST
`pext4-virtual --validate --real pext4-real ...` starts it; REQUEST is JSON, of the form that
virtual/src/setup.rs defines";

fn main() -> Result<()> {
    ensure!(!meter::is_built_in(), "build it without default features");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [request] = words.as_slice() else {
        bail!(USAGE);
    };
    let request = serde_json::from_str(request).context(USAGE)?;
    let measured = measure(&Setup::of(&request)?, NoObserver)?;
    println!("{}", serde_json::to_string(&measured.counted)?);
    Ok(())
}
