//! Text of the manual pages that the help does not have: files, the environment, and examples of
//! each verb.

/// Pairs of a name and its description.
pub type ManSection = &'static [(&'static str, &'static str)];

/// Control files, and files of the system.
pub const FILES: ManSection = &[
    (
        ".zarrfs/stats, .zarrfs/stats.json",
        "Counters and problems of a mount, at its root. They are never listed.",
    ),
    (
        ".zarrfs/metrics",
        "The counters in the text format of Prometheus.",
    ),
    (
        ".zarrfs/sync",
        "Opening it stores everything that was written. Its content names the chunks that could not be stored.",
    ),
    (
        "/etc/fuse.conf",
        "With a line user_allow_other users who are not root may mount with --allow-other.",
    ),
    (
        "/etc/fstab",
        "Stores that are mounted at boot, with the type fuse.zarrfs: see zarrfs-mount(1).",
    ),
];

/// Environment variables.
pub const ENVIRONMENT: ManSection = &[
    (
        "TMPDIR",
        "Default of --spill-dir; /var/tmp if it is not set. zarrfs run mounts there; in /tmp if it is not set.",
    ),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE",
        "Credentials of S3, as its own tools take them.",
    ),
    (
        "AWS_REGION, AWS_ENDPOINT_URL",
        "Defaults of --region and --endpoint-url.",
    ),
    (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "The file with the credentials of Google Cloud Storage.",
    ),
    (
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN",
        "The account of Azure Blob Storage.",
    ),
    (
        "HTTPS_PROXY, HTTP_PROXY, NO_PROXY",
        "Proxies for stores on servers.",
    ),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "info --map draws in plain ASCII unless the locale is UTF-8.",
    ),
];

/// Examples of each verb, with their descriptions. The first are those of zarrfs itself.
pub const EXAMPLES: &[(&str, ManSection)] = &[
    (
        "",
        &[
            (
                "zarrfs mount x.zarr mnt",
                "Show the store x.zarr below the directory mnt.",
            ),
            (
                "dd if=mnt/air/data.raw bs=1M | md5sum",
                "Read an array as plain bytes.",
            ),
            ("zarrfs umount mnt", "Store what was written, and unmount."),
        ],
    ),
    (
        "mount",
        &[
            ("zarrfs mount -o ro x.zarr mnt", "Mount read-only."),
            (
                "zarrfs mount --anon s3://BUCKET/x.zarr mnt",
                "Mount a store in a public bucket.",
            ),
            (
                "zarrfs mount --containers nc x.zarr mnt; ncdump -h mnt/dataset.nc",
                "Show each group also as a netCDF file.",
            ),
            (
                "/srv/climate.zarr /mnt/climate fuse.zarrfs ro,allow_other,nofail 0 0",
                "A line of /etc/fstab.",
            ),
        ],
    ),
    (
        "umount",
        &[(
            "zarrfs umount --lazy mnt",
            "Unmount even while a program has a file open.",
        )],
    ),
    (
        "run",
        &[
            (
                "zarrfs run --containers nc s3://BUCKET/x.zarr -- cdo sinfo {}/dataset.nc",
                "Let a program read a store in a bucket, and leave nothing mounted.",
            ),
            (
                "zarrfs run x.zarr -- sh -c 'head -c 8 new.raw 1<>\"$ZARRFS_MOUNT/air/data.raw\"'",
                "Change the first bytes of an array.",
            ),
            (
                "zarrfs run -I % x.zarr -- find % -name data.vrt -exec gdalinfo {} +",
                "Let find have its own {}.",
            ),
        ],
    ),
    (
        "info",
        &[
            (
                "zarrfs info x.zarr",
                "List all groups and arrays, with dtype, dimensions, size and units.",
            ),
            (
                "zarrfs info --map x.zarr/air",
                "Draw which chunks are stored, and how large they are.",
            ),
            (
                "zarrfs info --json x.zarr | jq -r '.[].path'",
                "List their paths.",
            ),
        ],
    ),
    (
        "ls",
        &[
            (
                "zarrfs ls -l x.zarr/air",
                "List the files of an array with their decoded and stored sizes.",
            ),
            (
                "zarrfs ls -R s3://BUCKET/x.zarr",
                "List all names of a store.",
            ),
        ],
    ),
    (
        "check",
        &[
            (
                "zarrfs check x.zarr",
                "Check all documents, names and sizes.",
            ),
            (
                "zarrfs check --deep --json x.zarr | jq -r '.findings[] | select(.kind == \"chunk\").path'",
                "List the chunks that can't be decoded.",
            ),
        ],
    ),
    (
        "cat",
        &[
            (
                "zarrfs cat x.zarr/air --offset 16 --length 2 | od -An -td2",
                "Print the ninth of many 16-bit integers.",
            ),
            (
                "zarrfs cat x.zarr/air --box 10,3:20,5:40 --format tif > part.tif",
                "Make a GeoTIFF of a window of one time step.",
            ),
        ],
    ),
    (
        "header",
        &[(
            "zarrfs header x.zarr/air --format vrt",
            "Print the data.vrt that gdalinfo opens in a mount.",
        )],
    ),
    (
        "put",
        &[(
            "zarrfs put x.zarr/air < new.raw",
            "Replace the values of an array.",
        )],
    ),
    (
        "create",
        &[(
            "zarrfs create x.zarr/t --shape 62,37,53 --chunks 24,16,24 --dtype '<i2' --from-raw t.raw",
            "Create an array from a file of flat bytes.",
        )],
    ),
    (
        "migrate",
        &[
            (
                "zarrfs migrate --to 3 x.zarr",
                "Convert a store of Zarr v2 to v3, in place.",
            ),
            (
                "zarrfs migrate --shards auto x.zarr new.zarr",
                "Copy a store to one of Zarr v3 with fewer files.",
            ),
        ],
    ),
    (
        "pack",
        &[
            (
                "zarrfs pack x.zarr x.zip",
                "Copy a store into one file, which takes one inode.",
            ),
            (
                "zarrfs pack --overlay changes x.zip new.zip",
                "Copy an archive with the changes that were made in a mount.",
            ),
        ],
    ),
    (
        "overlay",
        &[
            (
                "zarrfs mount x.zarr.zip mnt --overlay changes",
                "Mount an archive as a writable store.",
            ),
            ("zarrfs overlay diff changes", "Show what was changed."),
            (
                "zarrfs overlay commit changes x.zarr",
                "Write the changes to an unpacked copy.",
            ),
        ],
    ),
    (
        "stats",
        &[(
            "zarrfs stats mnt --watch 1s",
            "Show each second what a mount does.",
        )],
    ),
    (
        "completions",
        &[(
            "zarrfs completions bash > ~/.local/share/bash-completion/completions/zarrfs",
            "Install them for bash.",
        )],
    ),
    (
        "man",
        &[(
            "zarrfs man --all ~/.local/share/man/man1",
            "Install all pages.",
        )],
    ),
];
