//! The options of `-o`, named as those of `mount(8)`.
//!
//! Some apply to the image, some to the volume, some to the kernel, some to several of them.
//! Set-user-id files and devices are off by default, since an image may come from anyone.

mod error;
mod names;

use std::path::Path;
use std::time::Duration;

use pext4_block::Access;
use pext4_fs::AccessTimes;
use pext4_fs::options::{AttributeCache, MountOptions, OnError, Reserve, Scaling};

pub use error::OptionError;
pub use names::WITH_EFFECT;

/// Maximal value of `commit=`, in seconds.
const MAX_COMMIT_SECONDS: u64 = 3600;

/// The options of a mount that concern the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Writes are refused.
    pub read_only: bool,
    /// Users other than the one that mounted may access the mount.
    pub allow_other: bool,
    /// The kernel checks permissions even if only root can access the mount.
    pub check_permissions: bool,
    /// Set-user-id and set-group-id bits take effect.
    pub set_id: bool,
    /// Device files give access to their devices.
    pub devices: bool,
    /// Programs may be executed.
    pub execute: bool,
    /// Symbolic links on the mount are followed.
    pub follow_links: bool,
    /// When reading changes access times.
    pub access_times: AccessTimes,
    /// Whether listing a directory changes its access time.
    pub directory_access_times: bool,
    /// Changes of directories are synchronous.
    pub synchronous_directories: bool,
    /// All changes are synchronous.
    pub synchronous: bool,
    /// The server is asked when a file is opened, so that it can refuse what it would refuse to
    /// write.
    pub strict_open: bool,
    /// Requests come through `io_uring` if the kernel offers that.
    pub io_uring: bool,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: false,
            check_permissions: false,
            set_id: false,
            devices: false,
            execute: true,
            follow_links: true,
            access_times: AccessTimes::default(),
            directory_access_times: true,
            synchronous_directories: false,
            synchronous: false,
            strict_open: false,
            io_uring: false,
        }
    }
}

/// Where the file system is in its file or block device: in all of it, or in a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageRange {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; `None`: all that follow.
    pub length: Option<u64>,
}

/// All options of a mount.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Those of the image.
    pub image: ImageRange,
    /// Those of the volume.
    pub volume: MountOptions,
    /// Those of the kernel.
    pub kernel: KernelOptions,
    switches: Switches,
}

/// Options of Linux for single mechanisms. They hold beside `scaling=`, in whatever order.
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    optimize_scan: Option<bool>,
    without_attribute_cache: bool,
}

impl Switches {
    fn apply_to(self, scaling: &mut Scaling) {
        scaling.optimize_scan = self.optimize_scan.unwrap_or(scaling.optimize_scan);
        if self.without_attribute_cache {
            scaling.attribute_cache = AttributeCache::Off;
        }
    }
}

impl Options {
    /// Applies a list of options separated by commas; later ones win.
    ///
    /// # Errors
    ///
    /// The first option that is not accepted.
    pub fn apply(&mut self, list: &str) -> Result<(), OptionError> {
        list.split(',')
            .filter(|option| !option.is_empty())
            .try_for_each(|option| self.one(option))?;
        self.switches.apply_to(&mut self.volume.scaling);
        Ok(())
    }

    /// The access to the image that the volume needs.
    #[must_use]
    pub fn access(&self) -> Access {
        match self.volume.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        }
    }

    /// The options of a volume that this process serves on `directory`: the image remembers the
    /// directory, and who may enter decides who may take the blocks that are kept for root.
    #[must_use]
    pub fn volume_on(&self, directory: &Path) -> MountOptions {
        let mut volume = self.volume.clone();
        volume.mounted_on = directory.to_string_lossy().into_owned();
        // Delayed writes of the kernel have no user. If only root may enter, all of them are
        // root's.
        let is_root = rustix::process::geteuid().is_root();
        volume.reserve = match (is_root, self.kernel.allow_other) {
            (true, false) => Reserve::Everybody,
            (true, true) => Reserve::Owner,
            (false, _) => Reserve::Nobody,
        };
        volume
    }

    fn one(&mut self, option: &str) -> Result<(), OptionError> {
        let kernel = &mut self.kernel;
        match option {
            "remount" => return Err(OptionError::Remount),
            "ro" | "rw" => {
                kernel.read_only = option == "ro";
                self.volume.read_only = kernel.read_only;
            }
            "noload" | "norecovery" => self.volume.skip_replay = true,
            "allow_other" => kernel.allow_other = true,
            "default_permissions" => kernel.check_permissions = true,
            "suid" | "nosuid" => kernel.set_id = option == "suid",
            "dev" | "nodev" => kernel.devices = option == "dev",
            "exec" | "noexec" => kernel.execute = option == "exec",
            "symfollow" | "nosymfollow" => kernel.follow_links = option == "symfollow",
            "strict_open" | "nostrict_open" => kernel.strict_open = option == "strict_open",
            "io_uring" | "no_io_uring" => kernel.io_uring = option == "io_uring",
            "noatime" => kernel.access_times = AccessTimes::Never,
            "strictatime" => kernel.access_times = AccessTimes::Strict,
            "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                kernel.access_times = AccessTimes::Relative;
            }
            "diratime" | "nodiratime" => kernel.directory_access_times = option == "diratime",
            "dirsync" => kernel.synchronous_directories = true,
            "sync" | "async" => kernel.synchronous = option == "sync",
            // Linux accepts both spellings.
            "no_mbcache" | "nombcache" => self.switches.without_attribute_cache = true,
            "grpid" | "bsdgroups" => self.volume.inherit_group = Some(true),
            "nogrpid" | "sysvgroups" => self.volume.inherit_group = Some(false),
            "discard" | "nodiscard" => self.volume.discard = Some(option == "discard"),
            _ => return self.with_value(option),
        }
        Ok(())
    }

    fn with_value(&mut self, option: &str) -> Result<(), OptionError> {
        let wrong = |wants| OptionError::Value {
            option: option.to_owned(),
            wants,
        };
        let bytes = |value: &str| value.parse().map_err(|_| wrong("a number of bytes"));
        let id = |value: &str| names::parse_number(value).ok_or_else(|| wrong("a number"));
        match option.split_once('=') {
            Some(("commit", value)) => {
                self.volume.commit_interval = commit_interval(value).map_err(wrong)?;
            }
            Some(("offset", value)) => self.image.offset = bytes(value)?,
            // As for losetup(8), 0 means no limit.
            Some(("sizelimit", value)) => {
                self.image.length = Some(bytes(value)?).filter(|&bytes| bytes > 0);
            }
            Some(("resuid", value)) => self.volume.reserve_uid = Some(id(value)?),
            Some(("resgid", value)) => self.volume.reserve_gid = Some(id(value)?),
            Some(("errors", "continue")) => self.volume.on_error = Some(OnError::Continue),
            // A server cannot stop the machine; it does what is nearest, as for an image that
            // specifies this.
            Some(("errors", "remount-ro" | "panic")) => {
                self.volume.on_error = Some(OnError::ReadOnly);
            }
            Some(("errors", _)) => return Err(wrong("`continue`, `remount-ro` or `panic`")),
            Some(("scaling", value)) => {
                let scaling = Scaling::parse(value);
                self.volume.scaling = scaling.map_err(|problem| OptionError::Scaling {
                    option: option.to_owned(),
                    problem,
                })?;
            }
            Some(("mb_optimize_scan", value @ ("0" | "1"))) => {
                self.switches.optimize_scan = Some(value == "1");
            }
            Some(("mb_optimize_scan", _)) => return Err(wrong("0 or 1")),
            None if names::has_value(option) => return Err(wrong("a value, after `=`")),
            _ => return names::take_without_effect(option),
        }
        Ok(())
    }
}

/// The time between commits.
fn commit_interval(value: &str) -> Result<Duration, &'static str> {
    let seconds = names::parse_number(value).map(u64::from);
    match seconds.filter(|&seconds| seconds <= MAX_COMMIT_SECONDS) {
        // As in Linux, 0 means the default.
        Some(0) => Ok(MountOptions::default().commit_interval),
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("a number of seconds, at most 3600"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Access, AccessTimes, Duration, ImageRange, KernelOptions, OnError, OptionError, Options,
        Path, Reserve,
    };

    fn parsed(list: &str) -> Result<Options, OptionError> {
        let mut options = Options::default();
        options.apply(list).map(|()| options)
    }

    #[test]
    fn numbers_are_read_as_linux_reads_them() {
        for (option, seconds) in [
            ("10", 10),
            ("010", 8),
            ("0x10", 16),
            ("0X10", 16),
            ("+7", 7),
            ("+010", 8),
            ("+0x10", 16),
        ] {
            let options = parsed(&format!("commit={option},resuid={option}")).expect("a number");
            assert_eq!(
                options.volume.commit_interval.as_secs(),
                seconds,
                "{option}"
            );
            assert_eq!(options.volume.reserve_uid.map(u64::from), Some(seconds));
        }
        for option in ["08", "0x", "x10", "1_0", " 5", "-1", "++7", "0+7", "0x+7"] {
            assert!(parsed(&format!("commit={option}")).is_err(), "{option}");
            assert!(parsed(&format!("resuid={option}")).is_err(), "{option}");
        }
    }

    #[test]
    fn options_reach_the_volume_and_the_kernel() {
        let options = parsed("ro,allow_other,commit=30,errors=remount-ro,discard,noatime").unwrap();
        assert!(options.volume.read_only && options.kernel.read_only);
        assert!(options.kernel.allow_other && !options.kernel.check_permissions);
        assert!(
            parsed("default_permissions")
                .unwrap()
                .kernel
                .check_permissions
        );
        assert_eq!(options.kernel.access_times, AccessTimes::Never);
        assert_eq!(options.volume.commit_interval, Duration::from_secs(30));
        assert_eq!(options.volume.on_error, Some(OnError::ReadOnly));
        assert_eq!(options.volume.discard, Some(true));
        let inherits = |list| parsed(list).unwrap().volume.inherit_group;
        let lists = ["", "bsdgroups", "grpid,nogrpid", "sysvgroups,grpid"];
        assert_eq!(
            lists.map(inherits),
            [None, Some(true), Some(false), Some(true)]
        );
    }

    #[test]
    fn a_volume_knows_its_directory_and_who_may_enter() {
        let is_root = rustix::process::geteuid().is_root();
        for (list, access, reserve) in [
            ("ro", Access::ReadOnly, Reserve::Everybody),
            ("commit=7,allow_other", Access::ReadWrite, Reserve::Owner),
        ] {
            let options = parsed(list).expect("sound options");
            assert_eq!(options.access(), access);
            let volume = options.volume_on(Path::new("/mnt/there"));
            assert_eq!(volume.mounted_on, "/mnt/there");
            assert_eq!(volume.commit_interval, options.volume.commit_interval);
            assert_eq!(volume.read_only, options.volume.read_only);
            let reserve = if is_root { reserve } else { Reserve::Nobody };
            assert_eq!(volume.reserve, reserve);
        }
    }

    #[test]
    fn access_times_are_relative_unless_asked_otherwise() {
        let times = |list| {
            let kernel = parsed(list).unwrap().kernel;
            (kernel.access_times, kernel.directory_access_times)
        };
        assert_eq!(times("lazytime"), (AccessTimes::Relative, true));
        assert_eq!(times("noatime,norelatime"), (AccessTimes::Relative, true));
        assert_eq!(
            times("strictatime,nodiratime"),
            (AccessTimes::Strict, false)
        );
        assert_eq!(
            times("nodiratime,noatime,diratime"),
            (AccessTimes::Never, true)
        );
    }

    #[test]
    fn later_options_win_and_empty_ones_say_nothing() {
        let options = parsed("ro,,suid,dev,commit=9").unwrap();
        let mut later = options;
        later.apply("rw,nosuid,nodev,commit=0,").unwrap();
        assert_eq!(later.kernel, KernelOptions::default());
        assert!(!later.volume.read_only);
        assert_eq!(later.volume.commit_interval, Duration::from_secs(5));
    }

    #[test]
    fn options_of_fstab_are_accepted() {
        let list = "defaults,relatime,user,noauto,nofail,_netdev,x-systemd.automount,acl,comment=a b,loop,\
             delalloc,init_itable=10,X-mount.mkdir,i_version,stripe=16,journal_ioprio=3,bsddf,debug";
        assert_eq!(parsed(list).unwrap().kernel, KernelOptions::default());
        for (list, follows) in [("nosymfollow", false), ("nosymfollow,symfollow", true)] {
            assert_eq!(parsed(list).unwrap().kernel.follow_links, follows, "{list}");
        }
        for (list, through_ring) in [("io_uring", true), ("io_uring,no_io_uring", false)] {
            assert_eq!(
                parsed(list).unwrap().kernel.io_uring,
                through_ring,
                "{list}"
            );
        }
        for (list, asks) in [("strict_open", true), ("strict_open,nostrict_open", false)] {
            assert_eq!(parsed(list).unwrap().kernel.strict_open, asks, "{list}");
        }
        let text = parsed("remount,ro").unwrap_err().to_string();
        assert!(
            text.starts_with("option `remount`: a mount keeps"),
            "{text}"
        );
    }

    #[test]
    fn options_of_ext4_are_accepted_where_what_they_ask_holds() {
        let list = "data=writeback,barrier=0,nobarrier,data_err=ignore,data_err=abort,dax=never,nocheck,\
             check=none,noreservation,mblk_io_submit,nomblk_io_submit,sb=1,nowarn_on_error,\
             journal_ioprio=7,inode_readahead_blks=0,inode_readahead_blks=32,stripe=0x10,\
             init_itable=10,auto_da_alloc=0,max_dir_size_kb=0,nodioread_nolock,inlinecrypt";
        let options = parsed(list).unwrap();
        assert_eq!(options.kernel, KernelOptions::default());
        assert_eq!(
            format!("{:?}", options.volume),
            format!("{:?}", Options::default().volume)
        );
        let volume = parsed("errors=panic,resuid=1000,resgid=70000")
            .unwrap()
            .volume;
        assert_eq!(volume.on_error, Some(OnError::ReadOnly));
        let owners = (volume.reserve_uid, volume.reserve_gid);
        assert_eq!(owners, (Some(1000), Some(70000)));
    }

    #[test]
    fn options_of_ext4_that_are_not_obeyed_are_refused_by_name() {
        for (option, why) in [
            ("data=journal", "not journaled"),
            ("max_dir_size_kb=64", "directories may grow"),
            ("usrquota", "usage is counted; limits are not"),
            ("usrjquota=aquota.user", "usage is counted; limits are not"),
            ("jqfmt=vfsv1", "usage is counted; limits are not"),
            ("context=system_u:object_r:tmp_t:s0", "SELinux"),
            ("dax", "no direct access"),
            ("dax=always", "no direct access"),
            ("minixdf", "as with `bsddf`"),
            ("sb=32768", "replaced by its first copy"),
            ("abort", "`ro` refuses writes"),
            ("debug_want_extra_isize=32", "as the superblock asks for"),
            ("X-mount.subdir=a", "`mount --bind`"),
        ] {
            let text = parsed(option).unwrap_err().to_string();
            let start = format!("option `{option}` is not supported: ");
            assert!(text.starts_with(&start) && text.contains(why), "{text}");
        }
        assert!(parsed("X-mount.mkdir,usrjquota=,noquota").is_ok());
    }

    #[test]
    fn mechanisms_have_switches() {
        let [options, turned] = [
            "scaling=seeds:-try-lock,mb_optimize_scan=0",
            "mb_optimize_scan=0,scaling=seeds:-try-lock",
        ]
        .map(|list| parsed(list).unwrap());
        assert_eq!(turned.volume.scaling, options.volume.scaling);
        let text = options.volume.scaling.to_string();
        assert_eq!(text, "seeds,try-lock=wait,mb_optimize_scan=0");
        for off in ["no_mbcache", "nombcache", "no_mbcache,scaling=full"] {
            let text = parsed(off).unwrap().volume.scaling.to_string();
            assert_eq!(text, "full,attribute-cache=off");
        }
        let text = parsed("scaling=none").unwrap_err().to_string();
        assert!(text.starts_with("option `scaling=none`: there is no switch `none`"));
        assert!(parsed("mb_optimize_scan=2").is_err());
    }

    #[test]
    fn a_partition_is_named_by_its_bytes() {
        let image = |list| parsed(list).unwrap().image;
        assert_eq!(image("ro"), ImageRange::default());
        let whole = ImageRange {
            offset: 1 << 20,
            length: None,
        };
        assert_eq!(image("offset=1048576,sizelimit=0"), whole);
        assert_eq!(image("sizelimit=4096").length, Some(4096));
        for bare in ["commit", "mb_optimize_scan"] {
            let text = parsed(bare).unwrap_err().to_string();
            assert_eq!(text, format!("option `{bare}` wants a value, after `=`"));
        }
        let text = parsed("sizelimit=-1").unwrap_err().to_string();
        assert_eq!(text, "option `sizelimit=-1` wants a number of bytes");
        let text = parsed("offset=1M").unwrap_err().to_string();
        assert_eq!(text, "option `offset=1M` wants a number of bytes");
    }

    #[test]
    fn errors_name_the_option() {
        let text = parsed("ro,bogus").unwrap_err().to_string();
        let expected = "option `bogus` is not known; `pext4 mount --help` names the options";
        assert_eq!(text, expected);
        let text = parsed("scaling=full,-frees").unwrap_err().to_string();
        let expected = "option `-frees` is not known; in `scaling=` a switch follows a colon, as in \
                        scaling=full:-frees; `pext4 mount --help` names the options";
        assert_eq!(text, expected);
        let text = parsed("ro,noatim").unwrap_err().to_string();
        let expected = "option `noatim` is not known; did you mean `noatime`?; \
                        `pext4 mount --help` names the options";
        assert_eq!(text, expected);
        for wrong in [
            "commit=",
            "commit=-1",
            "commit=3601",
            "commit=soon",
            "errors=halt",
            "resuid=root",
            "resgid",
            "stripe=abc",
            "stripe",
            "journal_ioprio=8",
            "inode_readahead_blks=33",
            "inode_readahead_blks=0x80000000",
            "min_batch_time=-1",
            "barrier=yes",
        ] {
            let text = parsed(wrong).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("option `{wrong}` wants ")),
                "{text}"
            );
        }
        assert!(matches!(parsed("commits"), Err(OptionError::Unknown(_))));
    }
}
