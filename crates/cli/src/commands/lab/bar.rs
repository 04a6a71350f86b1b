//! A line on terminals that shows the progress of a run.

use std::io::{IsTerminal, Write, stderr};

use pext4_lab::experiment::Progress;

const WIDTH: usize = 30;

/// The line, which is removed on drop.
pub struct Bar {
    is_shown: bool,
}

impl Bar {
    /// One on standard error if that is a terminal.
    pub fn new() -> Self {
        Self {
            is_shown: stderr().is_terminal(),
        }
    }

    /// Redraws the line.
    pub fn show(&self, workload: &str, progress: Progress<'_>) {
        if self.is_shown {
            // If the terminal is gone, the progress is lost.
            let _ = write!(stderr(), "\r\x1b[K{}", line(workload, progress));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn line(workload: &str, progress: Progress<'_>) -> String {
    let Progress {
        done,
        all,
        side,
        tasks,
    } = progress;
    let filled = (WIDTH * done).checked_div(all).unwrap_or(0).min(WIDTH);
    let (full, rest) = ("#".repeat(filled), ".".repeat(WIDTH - filled));
    format!("{workload}  [{full}{rest}] {done}/{all}  {side}, tasks {tasks}")
}

#[cfg(test)]
mod tests {
    use super::{Progress, line};

    #[test]
    fn it_fills() {
        let at = |done, all| {
            line(
                "w",
                Progress {
                    done,
                    all,
                    side: "full",
                    tasks: 2,
                },
            )
        };
        assert!(at(0, 3).contains(&format!("[{}] 0/3", ".".repeat(30))));
        assert!(at(3, 3).contains(&format!("[{}] 3/3  full, tasks 2", "#".repeat(30))));
        assert!(at(0, 0).contains("0/0"));
    }
}
