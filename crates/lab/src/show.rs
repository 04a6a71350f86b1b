//! Output of results: on a terminal, in figures, in a report.

mod ablation;
mod blocks;
mod caption;
mod curves;
mod figure;
mod file;
mod markdown;
mod number;
mod overview;
mod plot;
mod predictions;
mod report;
mod svg;
mod table;
mod text;

pub use figure::{Curve, Figure, Sort, draw};
pub use number::{nanoseconds, share, size, tasks, thousands};
pub use report::{DOCUMENTS, Page, drawings, left_over, load, load_below, readme, report};
pub use table::align;
pub use text::{print, print_ablation};
