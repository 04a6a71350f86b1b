//! `pext4 tree`: an image's files as a tree.
//!
//! The image may be hostile: directories may contain each other or have several names, and may be
//! nested deeper than the stack allows. So the walk has its own stack and lists each directory
//! once. As directories may share blocks, those that are listed have a limit ([`DirectoryLimit`]).
//! After a file that cannot be read it continues.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use pext4_edit::DirectoryLimit;
use pext4_fs::{Attributes, FileType, InodeNumber};

use super::record::Record;
use crate::count::count;
use crate::device::ImageArgument;
use crate::failure::ReadErrors;
use crate::viewer::{ListedName, Viewer};
use crate::{names, output, size};

/// Show an image's files as a tree
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// The directory to begin with
    #[arg(default_value = "/")]
    path: OsString,
    /// Levels to descend
    #[arg(long, value_name = "LEVELS")]
    depth: Option<usize>,
    /// Print JSON: one object a line, with the path as its name
    #[arg(long)]
    json: bool,
}

/// A directory that is being listed.
struct Level {
    directory: InodeNumber,
    /// The remaining names, in reverse order.
    left: Vec<ListedName>,
    /// The length of the directory's path in bytes.
    path_length: usize,
}

/// A file of the walk.
struct File {
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

struct Walk<'a> {
    viewer: &'a Viewer,
    arguments: &'a Arguments,
    levels: Vec<Level>,
    /// The directories that were found.
    met: HashSet<InodeNumber>,
    limit: DirectoryLimit,
    path: Vec<u8>,
    directories: u64,
    files: u64,
    bytes: u64,
    read_errors: ReadErrors,
}

/// Runs the command.
///
/// # Errors
///
/// The image, or a file in it, cannot be read; the path does not lead to a directory.
pub fn run(arguments: &Arguments) -> Result<()> {
    let viewer = Viewer::open(&arguments.image)?;
    let mut output = output::buffered();
    viewer.with(&arguments.path, |root| {
        if root.file_type != FileType::Directory {
            let (image, path) = (arguments.image.file.display(), &arguments.path);
            bail!(
                "{image}: {}: it is no directory; `pext4 ls` and `stat` show files",
                names::show(path.as_bytes())
            );
        }
        if !arguments.json {
            writeln!(output, "{}", names::show(arguments.path.as_bytes()))?;
        }
        let mut walk = Walk::new(&viewer, arguments);
        walk.met.insert(root.inode);
        if arguments.depth != Some(0) {
            walk.descend(root);
        }
        let written = walk.run(&mut output);
        let written = written.and_then(|()| Ok(output.flush()?));
        walk.read_errors.end(written)
    })
}

impl<'a> Walk<'a> {
    fn new(viewer: &'a Viewer, arguments: &'a Arguments) -> Self {
        let mut path = arguments.path.as_bytes().to_vec();
        while path.last() == Some(&b'/') {
            path.pop();
        }
        Self {
            viewer,
            arguments,
            levels: Vec::new(),
            met: HashSet::new(),
            limit: DirectoryLimit::new(viewer.volume()),
            path,
            directories: 0,
            files: 0,
            bytes: 0,
            read_errors: ReadErrors::default(),
        }
    }

    fn descend(&mut self, directory: &Attributes) {
        let (mut left, read) = match self.limit.take(directory) {
            Ok(()) => self.viewer.names(directory.inode),
            Err(error) => (Vec::new(), Err(error.into())),
        };
        let read = read.with_context(|| match self.path.as_slice() {
            b"" => names::show(b"/"),
            path => names::show(path),
        });
        self.read_errors.skip(read);
        left.reverse();
        self.levels.push(Level {
            directory: directory.inode,
            left,
            path_length: self.path.len(),
        });
    }

    fn run(&mut self, output: &mut dyn Write) -> Result<()> {
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.path_length);
            let directory = level.directory;
            let Some(name) = level.left.pop() else {
                self.levels.pop();
                continue;
            };
            self.path.push(b'/');
            self.path.extend_from_slice(&name.bytes);
            let file = self.file(directory, &name);
            let file = file.with_context(|| names::show(&self.path));
            if let Some(file) = self.read_errors.skip(file) {
                self.visit(&name.bytes, &file, output)?;
            }
        }
        if !self.arguments.json {
            let directories = count(self.directories, "directory", "directories");
            let files = count(self.files, "file", "files");
            let bytes = size::show(self.bytes);
            writeln!(output, "\n{directories}, {files}, {bytes}")?;
        }
        Ok(())
    }

    fn file(&self, directory: InodeNumber, name: &ListedName) -> Result<File> {
        let attributes = self.viewer.child(directory, name)?;
        let target = self.viewer.target(&attributes)?;
        Ok(File { attributes, target })
    }

    fn visit(&mut self, name: &[u8], file: &File, output: &mut dyn Write) -> Result<()> {
        let is_directory = file.attributes.file_type == FileType::Directory;
        let again = is_directory && !self.met.insert(file.attributes.inode);
        if again {
            let damage = anyhow!("a second name of a directory; `pext4 check` tells more");
            let damage = damage.context(names::show(&self.path));
            self.read_errors.skip::<()>(Err(damage));
        } else {
            self.count(&file.attributes);
        }
        if self.arguments.json {
            let record = Record::new(&self.path, &file.attributes, file.target.as_deref());
            serde_json::to_writer(&mut *output, &record).map_err(io::Error::from)?;
            writeln!(output)?;
        } else {
            self.draw(name, file, again, output)?;
        }
        let deeper = self
            .arguments
            .depth
            .is_none_or(|depth| self.levels.len() < depth);
        if is_directory && deeper && !again {
            self.descend(&file.attributes);
        }
        Ok(())
    }

    fn count(&mut self, attributes: &Attributes) {
        if attributes.file_type == FileType::Directory {
            self.directories += 1;
        } else {
            self.files += 1;
        }
        if attributes.file_type == FileType::Regular {
            self.bytes = self.bytes.saturating_add(attributes.size);
        }
    }

    fn draw(&self, name: &[u8], file: &File, again: bool, output: &mut dyn Write) -> Result<()> {
        let (last, above) = self.levels.split_last().expect("the name is of a level");
        for level in above {
            write!(
                output,
                "{}",
                if level.left.is_empty() {
                    "    "
                } else {
                    "|   "
                }
            )?;
        }
        let branch = if last.left.is_empty() { "`-- " } else { "|-- " };
        write!(output, "{branch}{}", names::show(name))?;
        match file.attributes.file_type {
            FileType::Directory => write!(output, "/")?,
            FileType::Regular => write!(output, "  ({})", size::show(file.attributes.size))?,
            _ => {}
        }
        if let Some(target) = &file.target {
            write!(output, " -> {}", names::show(target))?;
        }
        writeln!(
            output,
            "{}",
            if again {
                "  (shown above: a loop or a second name)"
            } else {
                ""
            }
        )?;
        Ok(())
    }
}
