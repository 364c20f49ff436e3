//! Permissions of stored files, and their combination for a file of the mount that is made of
//! several stored files.
//!
//! Invariant: a user other than the owner of the mount is granted no more on a file of the mount
//! than on each stored file that it is made of. If the exact answer cannot be expressed, less is
//! granted. POSIX access control lists are not read; where a file has one, its group bits are the
//! mask of the list.

use super::{Key, Readable};

/// The permission bits of a stored file or directory, and the owner and group to which they apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Bits for the owner, the group and others, as in stat(2).
    mode: u16,
    /// Owner of the files; `None` if they have different owners.
    owner: Option<u32>,
    /// Group of the files; `None` if they have different groups.
    group: Option<u32>,
}

/// Shifts of the bits for the owner, the group and others.
const CLASSES: [u16; 3] = [6, 3, 0];

impl Permissions {
    /// All permissions for the owner of the mount, none for other users.
    pub const OWNER_ONLY: Permissions = Permissions {
        mode: 0o700,
        owner: None,
        group: None,
    };

    /// All permissions for all users.
    pub const EVERYONE: Permissions = Permissions {
        mode: 0o777,
        owner: None,
        group: None,
    };

    /// Returns the permissions of a file with this mode, owner and group.
    pub fn new(mode: u32, owner: u32, group: u32) -> Self {
        Permissions {
            mode: (mode & 0o777) as u16,
            owner: Some(owner),
            group: Some(group),
        }
    }

    /// Returns the permissions of a file that this process creates with this mode.
    pub fn of_new_file(mode: u32) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Permissions::new(mode, user, group)
    }

    /// Returns the permission bits for the owner, the group and others.
    pub fn mode(self) -> u32 {
        self.mode.into()
    }

    /// Returns the permissions that remain if the file is shown with another owner and group.
    ///
    /// A user whose class changes gets only the bits that are set for each class to which the user
    /// may belong in the store. The owner keeps the bits of the owner: the owner of the mount acts
    /// as the owner of the files, having mounted the store or been named by root.
    fn under(self, owner: Option<u32>, group: Option<u32>) -> Self {
        let [user, mut members, mut others] = CLASSES.map(|shift| self.mode >> shift & 7);
        if group.is_none() || self.group != group {
            members &= others;
            others = members;
        }
        if owner.is_none() || self.owner != owner {
            members &= user;
            others &= user;
        }
        Permissions {
            mode: user << 6 | members << 3 | others,
            owner,
            group,
        }
    }

    /// Returns the permission bits for a file that is shown with this owner and group.
    pub fn bits(self, owner: u32, group: u32) -> u16 {
        self.under(Some(owner), Some(group)).mode
    }

    /// Returns the permissions that both `self` and `other` grant.
    pub fn and(self, other: Permissions) -> Self {
        let owner = self.owner.filter(|_| self.owner == other.owner);
        let group = self.group.filter(|_| self.group == other.group);
        let a = self.under(owner, group);
        let b = other.under(owner, group);
        Permissions {
            mode: a.mode & b.mode,
            owner,
            group,
        }
    }

    /// Returns the permissions that a directory grants on its files: reading if names can be listed
    /// and looked up, writing if files can be replaced.
    pub fn inside(self) -> Self {
        let inside = CLASSES.map(|shift| match self.mode >> shift & 7 {
            bits if bits & 1 == 0 => 0,
            bits => bits << shift,
        });
        Permissions {
            mode: inside.into_iter().sum(),
            ..self
        }
    }

    /// Returns the permissions that a directory grants on a file below it whose name is known: all
    /// of them to users who may search the directory.
    pub fn search(self) -> Self {
        Permissions {
            mode: (self.mode & 0o111) * 7,
            ..self
        }
    }

    /// Returns the permissions of a directory inside a file, such as an archive: users who may read
    /// the file may search it.
    pub fn of_level(self) -> Self {
        Permissions {
            mode: self.mode | (self.mode & 0o444) >> 2,
            ..self
        }
    }

    /// Returns the permissions of a copy that only its owner writes.
    pub fn written_by_owner(self) -> Self {
        Permissions {
            mode: self.mode & !0o022 | 0o200,
            ..self
        }
    }

    /// Returns whether every user who may read a file with these permissions may read `other`, too.
    pub fn readers_may_read(self, other: Permissions) -> bool {
        self.mode & 0o444 & !other.under(self.owner, self.group).mode == 0
    }
}

/// Returns the permissions that both arguments grant. `None` stands for a store without modes,
/// which grants everything.
pub fn both(a: Option<Permissions>, b: Option<Permissions>) -> Option<Permissions> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.and(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the permissions that a directory of a store grants on the files below it. A directory
/// that the store cannot look at grants nothing, a missing one hides nothing.
pub fn granted_by(store: &(impl Readable + ?Sized), directory: &Key) -> Option<Permissions> {
    match store.stat(directory) {
        Ok(found) => found?.permissions.map(Permissions::search),
        Err(_) => Some(Permissions::OWNER_ONLY),
    }
}

/// Returns the permissions that the directories between `top` and `key` grant on the file at `key`.
/// `top` and the root of the store are not among them.
pub fn granted_between(
    store: &(impl Readable + ?Sized),
    top: &Key,
    key: &Key,
) -> Option<Permissions> {
    let mut granted = None;
    let mut level = key.parent();
    while level != *top && !level.is_root() {
        granted = both(granted, granted_by(store, &level));
        level = level.parent();
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the bits that the store grants to a user.
    fn granted(p: Permissions, user: u32, groups: &[u32]) -> u16 {
        let class = match () {
            () if p.owner == Some(user) => 6,
            () if p.group.is_some_and(|group| groups.contains(&group)) => 3,
            () => 0,
        };
        p.mode >> class & 7
    }

    fn any_permissions() -> impl Strategy<Value = Permissions> {
        (0u32..0o1000, 0u32..3, 0u32..3)
            .prop_map(|(mode, owner, group)| Permissions::new(mode, owner, group))
    }

    proptest! {
        /// A user other than the owner of the mount and root gets no bit that one of the files
        /// denies.
        #[test]
        fn users_are_granted_no_more_than_by_each_file(
            files in proptest::collection::vec(any_permissions(), 1..4),
            (owner, group) in (0u32..3, 0u32..3),
            user in 0u32..4,
            groups in proptest::sample::subsequence(vec![0u32, 1, 2], 0..=3),
        ) {
            let all = files.iter().copied().reduce(Permissions::and).unwrap();
            let shown = Permissions::new(all.bits(owner, group).into(), owner, group);
            prop_assume!(user != owner);
            let bits = granted(shown, user, &groups);
            for file in files {
                prop_assert_eq!(bits & !granted(file, user, &groups), 0, "{:?} as {:?}", file, shown);
            }
        }

        #[test]
        fn a_file_with_the_owner_and_group_of_the_mount_keeps_its_mode(p in any_permissions()) {
            prop_assert_eq!(p.bits(p.owner.unwrap(), p.group.unwrap()), p.mode);
            prop_assert_eq!(p.and(p), p);
        }
    }

    #[test]
    fn directories_grant_access_to_reachable_files_alone() {
        assert_eq!(Permissions::new(0o751, 0, 0).inside().mode, 0o751);
        assert_eq!(Permissions::new(0o640, 0, 0).inside().mode, 0);
        assert_eq!(Permissions::new(0o751, 0, 0).search().mode, 0o777);
        assert_eq!(Permissions::new(0o740, 0, 0).search().mode, 0o700);
    }

    #[test]
    fn readers_of_a_file_may_read_files_that_grant_as_much() {
        let public = Permissions::new(0o755, 0, 0);
        assert!(public.readers_may_read(Permissions::new(0o644, 0, 0)));
        assert!(public.readers_may_read(Permissions::new(0o644, 5, 5)));
        assert!(!public.readers_may_read(Permissions::new(0o640, 0, 0)));
        assert!(Permissions::new(0o750, 0, 7).readers_may_read(Permissions::new(0o640, 0, 7)));
        assert!(!Permissions::new(0o750, 0, 7).readers_may_read(Permissions::new(0o640, 0, 8)));
        assert!(Permissions::OWNER_ONLY.readers_may_read(Permissions::new(0o600, 3, 3)));
    }
}
