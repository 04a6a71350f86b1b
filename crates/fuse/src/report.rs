//! The attributes by which a mount reports on itself, and one by which it is changed.

/// The attribute whose value is a report of the mount as text. The root has it, as has every file
/// without an own attribute of this name; `listxattr` does not list it.
pub const REPORT: &str = "user.pext4.report";
/// The same report as JSON.
pub const REPORT_JSON: &str = "user.pext4.report.json";
/// The most bytes of a value, as Linux limits them.
pub const MAX_VALUE: usize = 64 << 10;
/// What the server has reported, a line each, the oldest first (see [`ErrorLog`](crate::ErrorLog)).
pub const MESSAGES: &str = "user.pext4.messages";
/// Whether block searches use the index of groups: 0 or 1. Every user who may write to the root
/// can set it there.
pub const OPTIMIZE_SCAN: &str = "user.pext4.mb_optimize_scan";
