//! Output of results: on a terminal, in figures, in a report.

mod figure;
mod markdown;
mod number;
mod plot;
mod report;
mod svg;
mod table;
mod text;

pub use figure::{Curve, Figure, Sort, draw};
pub use number::{nanoseconds, share, thousands};
pub use report::{Page, left_over, load, readme, report};
pub use table::align;
pub use text::{print, print_ablation};
