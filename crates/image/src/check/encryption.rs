//! Encryption: the encryption context of each inode, and whether those in one directory agree.
//!
//! The *context* of an encrypted file or directory consists of a policy, which specifies the key
//! and the modes, and a nonce of its own. Everything in an encrypted directory has the directory's
//! policy. Pass 1 records the policy of each inode that is marked as encrypted, and pass 2 compares
//! them. This needs no keys; contents are not decrypted.

use std::collections::HashMap;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::xattr::{Attribute, Value};
use pext4_sync::{Class, Mutex};

use super::catalogue::Kind;
use super::directories::DirectorySubject;

/// The index of the attribute prefix for encryption.
const INDEX_ENCRYPTION: u8 = 9;
/// The name of a context, without its prefix.
const CONTEXT: &[u8] = b"c";
const NONCE_SIZE: usize = 16;
/// Bytes of a version 1 policy: the version, two modes, flags, the key's descriptor.
const FIRST_SIZE: usize = 12;
/// Bytes of a version 2 policy: the same with a longer key identifier, and four bytes more.
const SECOND_SIZE: usize = 24;
/// The minimum length of an encrypted name: one cipher block.
pub(super) const MIN_NAME: usize = 16;
/// The number of locks, each for a part of the inodes.
const SHARDS: usize = 16;

/// The bytes of a policy, padded with zeroes.
type Policy = [u8; SECOND_SIZE];

/// The number of a policy. Two policies are equal if their numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicyNumber(u32);

/// An inode's encryption context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Policy(Policy),
    /// The context is malformed.
    Wrong,
    /// The context is stored in another inode, and is not read.
    Elsewhere,
}

impl Context {
    /// Finds the context in a list of attributes.
    pub(super) fn among(list: &[Attribute]) -> Option<Self> {
        let context = list
            .iter()
            .find(|attribute| attribute.is_named(INDEX_ENCRYPTION, CONTEXT))?;
        Some(match &context.value {
            Value::Inline(bytes) => Self::decode(bytes),
            Value::Inode { .. } => Self::Elsewhere,
        })
    }

    /// Decodes a context. Versions after the second are not known, and are all treated as one
    /// policy, as by e2fsck.
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
    /// By inode; `None` if the policy is not known, and so is not compared.
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

    /// Records the policy of an encrypted inode.
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

    /// The policy of an inode. `None` if it is not encrypted, `Some(None)` if its policy is
    /// unknown.
    pub(super) fn of(&self, inode: InodeNumber) -> Option<Option<PolicyNumber>> {
        self.shard(inode).lock().get(&inode.get()).copied()
    }
}

/// Checks the target of a name in an encrypted directory. Pipes, sockets and devices have no
/// content and are not encrypted.
pub(super) fn check_target(
    directory: &DirectorySubject<'_>,
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
