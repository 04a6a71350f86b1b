//! Requests of the kernel, decoded. Names, values and content are borrowed from where they arrived.

mod decode;

use zerocopy::FromBytes;

use crate::device_number::DeviceNumber;
use crate::wire;

pub(crate) use decode::{Body, Message};

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The node that it names; of operations on names the directory.
    pub node: u64,
    /// The process that waits for the reply.
    pub caller: Caller,
    /// What is to be done.
    pub operation: Operation<'a>,
    /// Whether it came through a ring. Then the thread that serves it is kept on one processor, as
    /// a rule its caller's, and no other thread takes requests in its place.
    pub is_through_ring: bool,
}

/// The process that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread; 0 if the server cannot see it, or for what the kernel does itself.
    pub thread: u32,
}

/// The operations that a server may be asked for.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Looks up a name.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// Reads attributes.
    GetAttributes {
        /// Whether the kernel names an open file.
        has_file: bool,
    },
    /// Reads the attributes of `statx(2)`, for those that [`Operation::GetAttributes`] lacks.
    Statx,
    /// Changes attributes.
    SetAttributes(SetAttributes),
    /// Reads a symbolic link.
    ReadLink,
    /// Makes a symbolic link.
    MakeSymlink {
        /// Its name.
        name: &'a [u8],
        /// Its content.
        target: &'a [u8],
    },
    /// Makes a file other than a directory or symbolic link.
    MakeNode {
        /// Its name.
        name: &'a [u8],
        /// Kind and permissions.
        mode: u32,
        /// The caller's mask, which is not applied yet.
        umask: u32,
        /// Of a device.
        device: DeviceNumber,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Its name.
        name: &'a [u8],
        /// Permissions.
        mode: u32,
        /// The caller's mask, which is not applied yet.
        umask: u32,
    },
    /// Makes and opens a regular file without a name.
    MakeUnnamed {
        /// Permissions.
        mode: u32,
        /// The caller's mask, which is not applied yet.
        umask: u32,
    },
    /// Removes a name of anything but a directory.
    Unlink {
        /// The name.
        name: &'a [u8],
    },
    /// Removes a directory.
    RemoveDirectory {
        /// Its name.
        name: &'a [u8],
    },
    /// Moves a name.
    Rename {
        /// The old name.
        name: &'a [u8],
        /// The node of the directory for the new one.
        new_parent: u64,
        /// The new name.
        new_name: &'a [u8],
        /// Those of `renameat2(2)`.
        flags: u32,
    },
    /// Gives a node another name.
    Link {
        /// The node; the request's is that of the directory.
        node: u64,
        /// The new name.
        new_name: &'a [u8],
    },
    /// Reads content.
    Read {
        /// First byte.
        offset: u64,
        /// Most bytes.
        size: u32,
        /// Those with which the file was opened.
        flags: i32,
    },
    /// Writes content.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
        /// Whether the kernel writes from its page cache, and has acknowledged the bytes before.
        is_writeback: bool,
        /// Whether set-id bits must be cleared.
        clears_set_id: bool,
    },
    /// Sizes and counts of the volume.
    Statfs,
    /// Opens a file.
    Open {
        /// Those of `open(2)`.
        flags: i32,
    },
    /// Closes a file that was opened by a request.
    Release,
    /// Opens a directory.
    OpenDirectory {
        /// Those of `open(2)`.
        flags: i32,
    },
    /// Closes a directory that was opened by a request.
    ReleaseDirectory {
        /// The handle that the reply gave it.
        handle: u64,
    },
    /// Makes a file or directory durable.
    Sync {
        /// Whether only what is needed to read the content.
        data_only: bool,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Those of `setxattr(2)`.
        flags: u32,
        /// Whether the file loses its set-group-id bit if this is an access list; `None` if the
        /// kernel does not say that ([`Features::SET_GROUP_ID_OF_LISTS`]).
        ///
        /// [`Features::SET_GROUP_ID_OF_LISTS`]: crate::Features::SET_GROUP_ID_OF_LISTS
        clears_set_group_id: Option<bool>,
    },
    /// Reads an extended attribute.
    GetXattr {
        /// Its name.
        name: &'a [u8],
        /// Bytes that the caller has room for; 0 asks for the length.
        room: u32,
    },
    /// Lists the names of extended attributes.
    ListXattr {
        /// As in [`Operation::GetXattr`].
        room: u32,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Its name.
        name: &'a [u8],
    },
    /// Lists names.
    List {
        /// Where to begin: zero, or the cookie of an entry, behind which to continue.
        cookie: u64,
        /// Most bytes of the reply.
        size: u32,
        /// Those with which the directory was opened.
        flags: i32,
    },
    /// Lists names with attributes.
    ListWithAttributes {
        /// As in [`Operation::List`].
        cookie: u64,
        /// As in [`Operation::List`].
        size: u32,
        /// As in [`Operation::List`].
        flags: i32,
    },
    /// Checks an access.
    Access {
        /// That of `access(2)`.
        mask: u32,
    },
    /// Executes a command of `ioctl(2)`.
    Control {
        /// Its number.
        command: u32,
        /// What it comes with.
        input: &'a [u8],
        /// Most bytes of its result.
        room: u32,
    },
    /// Allocates, zeroes or frees a range.
    Allocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// That of `fallocate(2)`.
        mode: u32,
    },
    /// Looks for data or a hole.
    Seek {
        /// From this byte on.
        offset: i64,
        /// That of `lseek(2)`.
        whence: i32,
    },
    /// The kernel ends the connection.
    Destroy,
    /// Something else, by its number.
    Other(u32),
}

/// New attributes; `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttributes {
    /// Kind and permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of access.
    pub accessed: Option<NewTime>,
    /// Time of modification.
    pub modified: Option<NewTime>,
    /// Time of change.
    pub changed: Option<NewTime>,
    /// Whether the kernel names an open file.
    pub has_file: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// That of the server's clock.
    Now,
    /// This one; nanoseconds count forward.
    At {
        /// Seconds since 1970.
        seconds: i64,
        /// Below a second.
        nanoseconds: u32,
    },
}

/// Nodes that the kernel has forgotten.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten<'a> {
    /// A single one, with the number of holds.
    one: Option<(u64, u64)>,
    /// The bytes of many.
    many: &'a [u8],
}

impl Forgotten<'_> {
    /// Each node, and how many holds are released.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let many = self.many.chunks_exact(size_of::<wire::ForgetOne>());
        let many = many.filter_map(|bytes| wire::ForgetOne::read_from_bytes(bytes).ok());
        let one = self.one.into_iter();
        one.chain(many.map(|forgotten| (forgotten.node, forgotten.count)))
    }
}
