//! mke2fs: images as users create them. Features are named one by one, so that the machine's own
//! configuration has no effect.

use std::path::Path;

use anyhow::{Context, Result};
use pext4_block::{Device, RamDevice};

use super::{run, tool};

/// A set of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// The features that Debian 12's mke2fs turns on for ext4.
    Debian12,
    /// The features of upstream's 1.47: as Debian 12, with an orphan file and a stored checksum
    /// seed.
    Upstream,
    /// As Debian 12, without a journal.
    NoJournal,
    /// As Debian 12, without checksums, so that changed bytes are not detected at once.
    NoChecksums,
    /// As Debian 12, with 32-bit block numbers and descriptors of 32 bytes.
    Narrow,
    /// As upstream, with inline data for small files and directories.
    Inline,
    /// The same without checksums.
    InlineNoChecksums,
    /// ext3: a journal, and files with block maps.
    Ext3,
    /// ext2: block maps, and no journal.
    Ext2,
    /// The first ext2: no types in directories, no directory index, no large files.
    FirstExt2,
    /// As upstream, with inodes for large attribute values.
    Values,
    /// The same, with usage counted for users, groups and projects.
    Quotas,
    /// As upstream, with clusters of several blocks.
    Clusters,
}

impl Features {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Debian12,
        Self::Upstream,
        Self::NoJournal,
        Self::NoChecksums,
        Self::Narrow,
        Self::Inline,
        Self::InlineNoChecksums,
        Self::Ext3,
        Self::Ext2,
        Self::FirstExt2,
        Self::Values,
        Self::Quotas,
        Self::Clusters,
    ];

    /// Most bytes of content that an inode of 256 bytes holds.
    #[must_use]
    pub fn inline_room(self) -> u64 {
        match self {
            Self::Inline | Self::InlineNoChecksums => 128,
            _ => 0,
        }
    }

    /// Whether files have extents, not block maps.
    #[must_use]
    pub fn has_extents(self) -> bool {
        !matches!(self, Self::Ext3 | Self::Ext2 | Self::FirstExt2)
    }

    /// Whether values of attributes can have inodes of their own.
    #[must_use]
    pub fn has_value_inodes(self) -> bool {
        matches!(self, Self::Values | Self::Quotas)
    }

    /// Blocks in a cluster, the unit in which space is allocated. Few, so that a small image has
    /// many clusters.
    #[must_use]
    pub fn cluster(self) -> u32 {
        match self {
            Self::Clusters => 4,
            _ => 1,
        }
    }

    /// Whether directory entries have a file type.
    #[must_use]
    pub fn has_types(self) -> bool {
        self != Self::FirstExt2
    }

    fn list(self) -> String {
        let old = "none,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file";
        let common = "none,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,\
                      large_file,huge_file,dir_nlink,extra_isize";
        let more = match self {
            Self::Debian12 => ",has_journal,64bit,metadata_csum",
            Self::Upstream => ",has_journal,64bit,metadata_csum,metadata_csum_seed,orphan_file",
            Self::NoJournal => ",64bit,metadata_csum",
            Self::NoChecksums => ",has_journal,64bit",
            Self::Narrow => ",has_journal,metadata_csum",
            Self::Inline => {
                ",has_journal,64bit,metadata_csum,metadata_csum_seed,orphan_file,inline_data"
            }
            Self::Values => {
                ",has_journal,64bit,metadata_csum,metadata_csum_seed,orphan_file,ea_inode"
            }
            Self::Quotas => {
                ",has_journal,64bit,metadata_csum,metadata_csum_seed,orphan_file,ea_inode,quota,\
                 project"
            }
            Self::Clusters => {
                ",has_journal,64bit,metadata_csum,metadata_csum_seed,orphan_file,bigalloc"
            }
            Self::InlineNoChecksums => ",has_journal,64bit,inline_data",
            Self::Ext3 => return format!("{old},has_journal"),
            Self::Ext2 => return old.to_owned(),
            Self::FirstExt2 => return "none,ext_attr".to_owned(),
        };
        format!("{common}{more}")
    }
}

/// The parameters of an image.
#[derive(Clone, Debug)]
pub struct Format {
    /// Size in bytes.
    pub size: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Features.
    pub features: Features,
    /// Number of inodes; mke2fs chooses it if `None`.
    pub inodes: Option<u32>,
    /// Further arguments of mke2fs.
    pub extra: Vec<String>,
}

impl Format {
    /// An image of this size, block size and feature set.
    #[must_use]
    pub fn new(size: u64, block_size: u32, features: Features) -> Self {
        Self {
            size,
            block_size,
            features,
            inodes: None,
            extra: Vec::new(),
        }
    }

    /// Sets the number of inodes.
    #[must_use]
    pub fn inodes(mut self, count: u32) -> Self {
        self.inodes = Some(count);
        self
    }

    /// Adds arguments for mke2fs.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.extra
            .extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Creates the image as a sparse file.
    pub fn make(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).context("creating the image")?;
        file.set_len(self.size).context("sizing the image")?;
        let mut command = tool("mke2fs");
        command.args(["-q", "-F", "-t", "ext4", "-I", "256", "-m", "0"]);
        command.args([
            "-O",
            &self.features.list(),
            "-b",
            &self.block_size.to_string(),
        ]);
        if self.features == Features::Clusters {
            let size = self.features.cluster() * self.block_size;
            command.args(["-C", &size.to_string()]);
        }
        if let Some(inodes) = self.inodes {
            command.args(["-N", &inodes.to_string()]);
        }
        run(command.args(&self.extra).arg(path)).map(|_| ())
    }

    /// Creates the image in memory.
    pub fn device(&self) -> Result<RamDevice> {
        let folder = crate::effort::scratch();
        let path = folder.path().join("image");
        self.make(&path)?;
        RamDevice::load(&path).context("loading the image")
    }

    /// The text that identifies the format in a file of operations.
    #[must_use]
    pub fn describe(&self) -> String {
        let inodes = self.inodes.unwrap_or(0);
        let format = format!(
            "{} {} {:?} {inodes}",
            self.size, self.block_size, self.features
        );
        [&[format], self.extra.as_slice()].concat().join(" ")
    }

    /// Parses the text of [`Format::describe`].
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().context("size, block size, features, inodes");
        let (size, block_size) = (word()?.parse()?, word()?.parse()?);
        let name = word()?;
        let features = Features::ALL
            .into_iter()
            .find(|one| format!("{one:?}") == name);
        let format = Self::new(size, block_size, features.context("unknown features")?);
        let inodes: u32 = word()?.parse()?;
        Ok(Self {
            inodes: (inodes != 0).then_some(inodes),
            extra: words.map(str::to_owned).collect(),
            ..format
        })
    }
}

/// The common images that tests use: both feature sets, both block sizes, and the variants that use
/// other code paths.
#[must_use]
pub fn everyday(size: u64) -> Vec<Format> {
    let inodes = u32::try_from(size / 8192).expect("test images are small");
    let format = |block_size, features| Format::new(size, block_size, features).inodes(inodes);
    vec![
        format(4096, Features::Debian12),
        format(1024, Features::Upstream),
        format(4096, Features::Upstream),
        format(1024, Features::Debian12),
        format(1024, Features::Narrow),
        format(4096, Features::NoJournal),
        format(1024, Features::Inline),
        format(4096, Features::Inline),
        format(1024, Features::Values),
        format(1024, Features::Quotas),
        format(1024, Features::Clusters),
        format(4096, Features::Clusters),
    ]
}
/// The byte in blocks that were never used, of a device that is soiled.
const SOIL: u8 = 0xA5;

/// Fills the free blocks of an image, as dumpe2fs lists them, with bytes that are not zero.
pub fn soil(device: &RamDevice, block_size: u32) -> Result<()> {
    let folder = crate::effort::scratch();
    let path = folder.path().join("image");
    device.save(&path).context("saving the image")?;
    let told = run(tool("dumpe2fs").arg(&path))?;
    // The lines of groups are indented; one of the superblock has the number of free blocks.
    let lists = told
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let runs = lists.flat_map(|list| list.split(", ").filter(|run| !run.is_empty()));
    let soil = vec![SOIL; block_size as usize];
    for run in runs {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let [first, last] = [first, last].map(str::parse::<u64>);
        for block in first.context("dumpe2fs")?..=last.context("dumpe2fs")? {
            device
                .write_at(block * u64::from(block_size), &soil)
                .context("soiling the image")?;
        }
    }
    Ok(())
}
