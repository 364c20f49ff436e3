//! What the manual tells beyond the help: paragraphs and examples of each verb, files, the environment. It is text alone.

/// Names, and what each is.
pub type Table = &'static [(&'static str, &'static str)];

/// What the page of a verb has beside its help.
pub struct Page {
    /// The verb; empty for the page of zarrfs itself.
    pub verb: &'static str,
    /// Of the description, one below the other, separated by empty lines.
    pub description: &'static str,
    /// Commands, and what they do.
    pub examples: Table,
}

/// Control files and others.
pub const FILES: Table = &[
    (".zarrfs/stats, .zarrfs/stats.json", "At the root of a mount, by name, never listed: what it has done and met."),
    (".zarrfs/sync", "Opening it stores everything that was written. It names what could not be stored."),
    ("/etc/fuse.conf", "With a line user_allow_other users who are not root may mount with --allow-other."),
    ("/etc/fstab", "Stores that are mounted at boot, with the type fuse.zarrfs: see zarrfs-mount(1)."),
];

/// Variables of the environment.
pub const ENVIRONMENT: Table = &[
    ("TMPDIR", "Where decoded chunks wait whose row does not fit into the cache; /var/tmp unless set."),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE",
        "Credentials of S3, as its own tools take them.",
    ),
    ("AWS_REGION, AWS_ENDPOINT_URL", "Where buckets are, without --region and --endpoint-url."),
    ("GOOGLE_APPLICATION_CREDENTIALS", "The file with the credentials of Google Cloud Storage."),
    (
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN",
        "The account of Azure Blob Storage.",
    ),
    ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "Proxies for stores on servers."),
    ("LC_ALL, LC_CTYPE, LANG", "info --map draws in plain ASCII unless the locale is UTF-8."),
];

const ZARRFS: &str = "\
A mount is the same hierarchy with the codecs taken off: every array is a directory with its decoded chunks as files, its \
flat bytes as one file data.raw, and headers that let other programs open that file. Whatever can read raw binary reads a \
compressed, chunked array, and changes it in place.

Stores are directories, zip archives (PATH.zip), URLs of web servers (http://, https://), and buckets (s3://, gs://, az://, \
abfs://). Names may lead on to a group or array in the store.";

const MOUNT: &str = "\
The command returns when the mount answers. What was written is stored when a file is closed or synced, and at the latest \
when the mount ends. SIGTERM, SIGINT and SIGHUP unmount; while files are open the mount ends with the last of them, or with \
a second signal.

mount(8) mounts stores with the type fuse.zarrfs, and so does a line in /etc/fstab; each option may stand there without its \
dashes. Those of mount(8) and of systemd are accepted: nofail, _netdev, user, x-systemd.automount and others.";

const CHECK: &str = "\
Every group, array and stored chunk is looked at: whether documents are valid and .zmetadata says the same, whether chunks \
have a size that they can have or, with --deep, can be decoded, and what else lies in the store.

Each finding is one line: how much it matters, where it is, what it is and what can be done. With --json it is an object with \
level, path, kind and message in the list findings. Of the same kind in one directory the first twenty are told, and how \
many more there are; chunks are told one by one.";

const INFO: &str = "\
A map shows the chunk grid: the last dimension from left to right, the last but one downwards, a panel for each index of \
those before. A single dimension goes on in the next line. Where the grid is larger than the picture a cell stands for \
several chunks, and the map says for how many.";

const LS: &str = "\
Names that begin with a dot are listed, too. A directory has a slash after its name. What an array takes in the store is \
exact up to 1024 chunks, and an estimate beyond that.";

/// The pages that have more than their help.
pub const PAGES: &[Page] = &[
    Page {
        verb: "",
        description: ZARRFS,
        examples: &[
            ("zarrfs mount x.zarr mnt", "Show the store x.zarr below the directory mnt."),
            ("dd if=mnt/air/data.raw bs=1M | md5sum", "Read an array as plain bytes."),
            ("zarrfs umount mnt", "Store what was written, and unmount."),
        ],
    },
    Page {
        verb: "mount",
        description: MOUNT,
        examples: &[
            ("zarrfs mount -o ro x.zarr mnt", "Mount for reading alone."),
            ("zarrfs mount --anon s3://BUCKET/x.zarr mnt", "Mount a store in a public bucket."),
            (
                "zarrfs mount --containers nc x.zarr mnt; ncdump -h mnt/dataset.nc",
                "Show each group as a netCDF file, too.",
            ),
            ("/srv/climate.zarr /mnt/climate fuse.zarrfs ro,allow_other,nofail 0 0", "A line of /etc/fstab."),
        ],
    },
    Page {
        verb: "umount",
        description: "",
        examples: &[("zarrfs umount --lazy mnt", "Unmount also while a program has a file open.")],
    },
    Page {
        verb: "info",
        description: INFO,
        examples: &[
            ("zarrfs info x.zarr", "All groups and arrays, with shape, dtype, codecs and sizes."),
            ("zarrfs info --map x.zarr/air", "Which chunks are stored, and how large they are."),
            ("zarrfs info --json x.zarr | jq -r '.[].path'", "The paths of them all."),
        ],
    },
    Page {
        verb: "ls",
        description: LS,
        examples: &[
            ("zarrfs ls -l x.zarr/air", "The files of an array with their sizes, decoded and stored."),
            ("zarrfs ls -R s3://BUCKET/x.zarr", "All names of a store."),
        ],
    },
    Page {
        verb: "check",
        description: CHECK,
        examples: &[
            ("zarrfs check x.zarr", "Look at all documents, names and sizes."),
            (
                "zarrfs check --deep --json x.zarr | jq -r '.findings[] | select(.kind == \"chunk\").path'",
                "The chunks that can't be decoded.",
            ),
        ],
    },
    Page {
        verb: "cat",
        description: "",
        examples: &[(
            "zarrfs cat x.zarr/air --offset 16 --length 2 | od -An -td2",
            "The ninth of many 16-bit integers.",
        )],
    },
    Page {
        verb: "header",
        description: "",
        examples: &[("zarrfs header x.zarr/air --format vrt", "What gdalinfo finds in data.vrt of a mount.")],
    },
    Page {
        verb: "put",
        description: "",
        examples: &[("zarrfs put x.zarr/air < new.raw", "Replace the values of an array.")],
    },
    Page {
        verb: "create",
        description: "",
        examples: &[(
            "zarrfs create x.zarr/t --shape 62,37,53 --chunks 24,16,24 --dtype '<i2' --from-raw t.raw",
            "Make an array of a file of flat bytes.",
        )],
    },
    Page {
        verb: "stats",
        description: "",
        examples: &[("zarrfs stats mnt --watch 1s", "What a mount does, each second.")],
    },
    Page {
        verb: "completions",
        description: "",
        examples: &[(
            "zarrfs completions bash > ~/.local/share/bash-completion/completions/zarrfs",
            "Install them for bash.",
        )],
    },
    Page {
        verb: "man",
        description: "",
        examples: &[("zarrfs man --all ~/.local/share/man/man1", "Install all pages.")],
    },
];
