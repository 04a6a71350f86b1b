//! Edits of ext4 images without mounting them, and copies out of images. The image gets all changes
//! of an edit or none, even if the process is killed or the power fails.
//!
//! [`EditSession`] takes any number of [`Change`]s, a tar ([`EditSession::apply_tar`]), a layer of
//! a container image ([`EditSession::apply_layer`]), changes of the superblock
//! ([`EditSession::tune`]) or calls on its volume, and commits all of them at once: as one
//! transaction of the image's journal if they fit, else on a clone of the image that is renamed
//! into place. [`Reader`] walks an image, copies trees out of it, and writes it as a tar.
//!
//! ```
//! use pext4_edit::{change, EditOptions, EditSession};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("root.img");
//! # let device = pext4_block::FileDevice::create(&image, 16 << 20)?;
//! # pext4_image::mkfs::mkfs(&device, &pext4_image::mkfs::Options::default())?;
//! # drop(device);
//! # let volume = pext4_fs::Volume::open_image(&image, pext4_fs::MountOptions::default())?;
//! # volume.paths().create_dir("/etc")?;
//! # volume.paths().write("/etc/shadow", "root:*:::::::\n")?;
//! # volume.close()?;
//! let mut session = EditSession::open(&image, &EditOptions::default())?;
//! let hostname = change::WriteFile::new("/etc/hostname", "appliance\n");
//! session.apply(&hostname.into())?;
//! let private = change::SetMode::new("/etc/shadow", "u=rw,go=".parse()?);
//! session.apply(&private.into())?;
//! let prepared = session.prepare()?;
//! println!("{:?}", prepared.plan());
//! prepared.commit()?;
//! # let reader = pext4_edit::Reader::open(&image)?;
//! # assert_eq!(reader.volume().paths().read("/etc/hostname")?, b"appliance\n");
//! # assert_eq!(reader.volume().paths().attributes("/etc/shadow")?.mode & 0o777, 0o600);
//! # Ok(())
//! # }
//! ```
//!
//! Reading needs only read permission for the image file:
//!
//! ```
//! use pext4_edit::Reader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("root.img");
//! # let device = pext4_block::FileDevice::create(&image, 16 << 20)?;
//! # pext4_image::mkfs::mkfs(&device, &pext4_image::mkfs::Options::default())?;
//! # drop(device);
//! let reader = Reader::open(&image)?;
//! reader.walk("/", &mut |file| {
//!     println!("{} {}", file.attributes.size, String::from_utf8_lossy(&file.path));
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod acls;
pub mod change;
mod copy_limit;
mod directory_limit;
mod edited_clone;
mod error;
mod flags;
mod free;
mod get;
mod host;
mod image_path;
mod image_tree;
mod mode;
mod reader;
mod session;
mod source;
mod staging;
mod tar;
mod tree_writer;
mod tune;
mod unreadable;

pub use change::{Change, IntoDirectory, check_attribute_name};
pub use directory_limit::DirectoryLimit;
pub use error::{EditError, Result};
pub use flags::{FlagChange, InvalidFlags};
pub use get::{Copied, GetOptions};
pub use mode::{InvalidMode, ModeChange};
pub use pext4_block::{Amount, CloneMethod, Phase, Progress, ProgressState};
pub use pext4_fs::CommitOutcome;
pub use pext4_ondisk::superblock::ErrorPolicy;
pub use reader::{Reader, Visited, mounted_by_kernel};
pub use session::{EditOptions, EditSession, OnClone, Plan, Prepared, Way};
pub use tar::apply::{AttributeFilter, UnpackOptions, Unpacked};
pub use tar::write::{ExportOptions, Exported};
pub use tree_writer::Overrides;
pub use tune::Tuning;
pub use unreadable::OnSkipped;
