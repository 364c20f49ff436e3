//! A reader of the `.npy` files among the fixtures of numcodecs.

/// Returns the item size and the item bytes, in memory order, of a `.npy` file of version 1 or 2
/// with a plain dtype.
pub fn read(file: &[u8]) -> (usize, &[u8]) {
    assert_eq!(&file[..6], b"\x93NUMPY");
    let (start, length) = match file[6] {
        1 => (10, usize::from(u16::from_le_bytes([file[8], file[9]]))),
        _ => (
            12,
            u32::from_le_bytes([file[8], file[9], file[10], file[11]]) as usize,
        ),
    };
    let header = std::str::from_utf8(&file[start..start + length]).unwrap();
    let dtype = header
        .split("'descr': '")
        .nth(1)
        .expect("a plain dtype")
        .split('\'')
        .next()
        .unwrap();
    let size = zarrfs_format::dtype::DType::parse_str(dtype)
        .unwrap()
        .size();
    (size, &file[start + length..])
}
