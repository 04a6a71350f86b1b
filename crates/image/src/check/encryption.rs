//! Encryption: how each inode says that it is encrypted, and whether those of one directory agree.
//!
//! What an encrypted file or directory has as its *context* is a policy and a nonce: the policy says by
//! which key and how, the nonce is its own. All that is in an encrypted directory has the directory's
//! policy. The first pass notes the policy of each inode that is marked as encrypted; the second
//! compares. Keys are not needed for that, and contents stay ciphertext.

use std::collections::HashMap;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::xattr::{Attribute, Value};
use pext4_sync::{Class, Mutex};

use super::catalogue::Kind;
use super::directories::Subject;

/// Number of the prefix of attributes that tell how an inode is encrypted.
const INDEX_ENCRYPTION: u8 = 9;
/// What stands behind that prefix in the name of a context.
const CONTEXT: &[u8] = b"c";
const NONCE_SIZE: usize = 16;
/// Bytes of a policy of the first version: the version, two modes, flags, the key's description.
const FIRST_SIZE: usize = 12;
/// Bytes of one of the second: the same with a longer name of the key, and four bytes more.
const SECOND_SIZE: usize = 24;
/// Fewest bytes of an encrypted name: one block of a cipher.
pub(super) const MIN_NAME: usize = 16;
/// Locks that share the inodes between them.
const SHARDS: usize = 16;

/// A policy: its bytes, and zeroes behind.
type Policy = [u8; SECOND_SIZE];

/// Number of a policy among those seen. Two are equal as their numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicyNumber(u32);

/// What an inode's context tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Policy(Policy),
    /// It cannot be.
    Wrong,
    /// It lies in another inode, and is not read.
    Elsewhere,
}

impl Context {
    /// The context among attributes.
    pub(super) fn among(list: &[Attribute]) -> Option<Self> {
        let context = list
            .iter()
            .find(|attribute| attribute.is_named(INDEX_ENCRYPTION, CONTEXT))?;
        Some(match &context.value {
            Value::Inline(bytes) => Self::decode(bytes),
            Value::Inode { .. } => Self::Elsewhere,
        })
    }

    /// Versions after the second are not known: as to e2fsck, they are all one policy.
    fn decode(bytes: &[u8]) -> Self {
        let size = match bytes.first() {
            None | Some(0) => return Self::Wrong,
            Some(1) => FIRST_SIZE,
            Some(2) => SECOND_SIZE,
            Some(_) => return Self::Policy([u8::MAX; SECOND_SIZE]),
        };
        if bytes.len() != size + NONCE_SIZE {
            return Self::Wrong;
        }
        let mut policy = Policy::default();
        policy[..size].copy_from_slice(&bytes[..size]);
        Self::Policy(policy)
    }
}

/// The policies of all inodes that are marked as encrypted.
pub(super) struct Policies {
    numbers: Mutex<HashMap<Policy, u32>>,
    /// By inode; `None` where the policy is not known, and so not compared.
    shards: Vec<Mutex<HashMap<u32, Option<PolicyNumber>>>>,
}

impl Policies {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(Class::Leaf, HashMap::new());
        Self {
            numbers: Mutex::new(Class::Leaf, HashMap::new()),
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
        }
    }

    fn shard(&self, inode: InodeNumber) -> &Mutex<HashMap<u32, Option<PolicyNumber>>> {
        &self.shards[inode.get() as usize % SHARDS]
    }

    /// Notes what an encrypted inode's context tells.
    pub(super) fn note(&self, inode: InodeNumber, context: Option<Context>) {
        let number = match context {
            Some(Context::Policy(policy)) => Some(self.number(policy)),
            Some(Context::Wrong | Context::Elsewhere) | None => None,
        };
        self.shard(inode).lock().insert(inode.get(), number);
    }

    fn number(&self, policy: Policy) -> PolicyNumber {
        let mut numbers = self.numbers.lock();
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        PolicyNumber(*numbers.entry(policy).or_insert(next))
    }

    /// The policy of an inode; `None` where it is not encrypted, `Some(None)` where it is not known how.
    pub(super) fn of(&self, inode: InodeNumber) -> Option<Option<PolicyNumber>> {
        self.shard(inode).lock().get(&inode.get()).copied()
    }
}

/// Judges what a name in an encrypted directory leads to. Pipes, sockets and devices have no content,
/// and are not encrypted.
pub(super) fn check_target(
    directory: &Subject<'_>,
    target: InodeNumber,
    kind: Option<FileType>,
    block: Option<u64>,
    shown: &dyn Fn() -> String,
) {
    let has_policy = matches!(
        kind,
        Some(FileType::Regular | FileType::Directory | FileType::Symlink)
    );
    let Some(expected) = directory.policy.filter(|_| has_policy) else {
        return;
    };
    let problem = match directory.tree.examination.policies.of(target) {
        None => "not encrypted",
        Some(Some(policy)) if policy != expected => "encrypted by another policy",
        Some(_) => return,
    };
    directory.report(Kind::EncryptionPolicy, block, || {
        format!("'{}', inode {target}: {problem}", shown())
    });
}
