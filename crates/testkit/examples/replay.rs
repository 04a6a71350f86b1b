//! Replays files of operations: `cargo run -p pext4-testkit --example replay -- FILE...`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut failed = false;
    for file in std::env::args().skip(1) {
        match pext4_testkit::campaign::replay_file(Path::new(&file)) {
            Ok(()) => println!("{file}: passes"),
            Err(error) => {
                failed = true;
                println!("{error:#}");
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
