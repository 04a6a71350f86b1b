//! Results as people see them: on a terminal, in figures, in a report.

mod number;
mod plot;
mod table;
mod text;

pub use number::{nanoseconds, share, thousands};
pub use table::align;
pub use text::{print, print_ablation};
