
_zarrfs_or_mountpoints() {
    _zarrfs "$@"
    case "${COMP_WORDS[1]}" in
        stats|umount|unmount) ;;
        *) return 0 ;;
    esac
    if [[ $2 == -* || $3 == --watch ]]; then
        return 0
    fi
    COMPREPLY=()
    local path type
    while read -r _ path type _; do
        printf -v path %b "${path//\\/\\0}"
        if [[ $type == fuse.zarrfs && $path == "$2"* ]]; then
            COMPREPLY+=("$(printf %q "$path")")
        fi
    done </proc/self/mounts
}
complete -F _zarrfs_or_mountpoints -o bashdefault -o default zarrfs
