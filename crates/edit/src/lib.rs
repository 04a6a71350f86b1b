//! Edits of ext4 images without mounting them: all changes or none, also when the process is killed
//! or the power goes; and copies out of images.
//!
//! [`EditSession`] takes any number of [`Change`]s, a tar ([`EditSession::apply_tar`]) or calls on
//! its volume, and makes all of them true at once: as one transaction of the image's journal where
//! they fit, else on a clone of the image that is renamed into place. [`Reader`] walks an image,
//! copies trees out of it, and writes it as a tar.
//!
//! ```no_run
//! use pext4_edit::{Change, EditOptions, EditSession};
//!
//! # fn main() -> pext4_edit::Result<()> {
//! let mut session = EditSession::open("root.img".as_ref(), &EditOptions::default())?;
//! session.apply(&Change::Write {
//!     path: b"/etc/hostname".to_vec(),
//!     content: b"appliance\n".to_vec(),
//!     overrides: Default::default(),
//! })?;
//! session.apply(&Change::SetMode {
//!     path: b"/etc/shadow".to_vec(),
//!     mode: "u=rw,go=".parse().expect("a mode"),
//!     recursive: false,
//! })?;
//! let prepared = session.prepare()?;
//! println!("{:?}", prepared.plan());
//! prepared.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! Reading needs no rights but those to the image file:
//!
//! ```no_run
//! use pext4_edit::Reader;
//!
//! # fn main() -> pext4_edit::Result<()> {
//! let reader = Reader::open("root.img".as_ref())?;
//! reader.walk("/etc", &mut |file| {
//!     println!("{} {}", file.attributes.size, String::from_utf8_lossy(&file.path));
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod change;
mod error;
mod free;
mod get;
mod host;
mod lists;
mod mode;
mod plant;
mod progress;
mod reader;
mod session;
mod source;
mod staging;
mod tar;
mod tree;
mod twin;
mod unreadable;

pub use change::{Change, Into};
pub use error::{EditError, Result};
pub use get::{GetOptions, Got};
pub use mode::ModeChange;
pub use plant::Overrides;
pub use progress::Progress;
pub use reader::{Reader, Visited};
pub use session::{EditOptions, EditSession, Plan, Prepared, Way};
pub use tar::apply::Unpacked;
pub use tar::write::Exported;
pub use twin::Made;
pub use unreadable::Leave;
