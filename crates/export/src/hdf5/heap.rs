//! Global heap collections as the "HDF5 File Format Specification Version 3.0" defines them in
//! III.E: objects that values of variable length refer to. This module does not know what these
//! hold.

/// Size of a sequence in bytes: the number of its items, and the place of its object.
pub const SEQUENCE: usize = 16;

/// Smallest size of a collection in bytes.
const MIN_COLLECTION: usize = 4096;

/// Size in bytes of the header of a collection, and of that of each object.
const HEADER: usize = 16;

/// Size in bytes from which on a collection gets no more objects. HDF5 reads whole collections, and
/// the number of an object has 16 bits.
const FULL: usize = 64 << 10;

/// The place of an object in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapPlace {
    /// The offset of its collection among all of them, in bytes.
    collection: u64,
    /// Its number in the collection, from 1 on.
    number: u16,
}

impl HeapPlace {
    /// Returns a sequence of `len` items, whose object is here in the heap at `address`.
    pub fn sequence(self, len: usize, address: u64) -> [u8; SEQUENCE] {
        let mut sequence = [0; SEQUENCE];
        sequence[..4].copy_from_slice(&(len as u32).to_le_bytes());
        sequence[4..12].copy_from_slice(&(address + self.collection).to_le_bytes());
        sequence[12..14].copy_from_slice(&self.number.to_le_bytes());
        sequence
    }
}

/// A heap while objects are added.
#[derive(Default)]
pub struct Heap {
    /// All collections; the last one has no size yet.
    bytes: Vec<u8>,
    /// The offset of the last collection in bytes.
    last: usize,
    /// The number of objects in it.
    count: u16,
}

impl Heap {
    /// Adds an object.
    pub fn push(&mut self, object: &[u8]) -> HeapPlace {
        if self.bytes.len() - self.last >= FULL {
            self.close();
        }
        if self.count == 0 {
            self.bytes.extend(b"GCOL\x01\0\0\0");
            self.bytes.extend([0; 8]);
        }
        self.count += 1;
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend([0; 6]);
        self.bytes.extend((object.len() as u64).to_le_bytes());
        self.bytes.extend(object);
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
        HeapPlace {
            collection: self.last as u64,
            number: self.count,
        }
    }

    /// Returns the size in bytes of everything that was added.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the last collection with the object 0, its free space.
    fn close(&mut self) {
        let used = self.bytes.len() - self.last;
        let size = (used + HEADER).max(MIN_COLLECTION);
        self.bytes.extend([0; 8]);
        self.bytes.extend(((size - used) as u64).to_le_bytes());
        self.bytes.resize(self.last + size, 0);
        let place = self.last + HEADER / 2;
        self.bytes[place..place + 8].copy_from_slice(&(size as u64).to_le_bytes());
        self.last += size;
        self.count = 0;
    }

    /// Returns all collections, which begin at multiples of 8 bytes if the first one does.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.close();
        }
        self.bytes
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns the object of a sequence, by the rules of the specification. `heap` is at `address`.
    pub fn object<'a>(heap: &'a [u8], address: u64, sequence: &[u8]) -> &'a [u8] {
        let word = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
        };
        let number = u16::from_le_bytes([sequence[12], sequence[13]]);
        let from = word(sequence, 4) - address as usize;
        assert_eq!(&heap[from..from + 8], b"GCOL\x01\0\0\0");
        let size = word(heap, from + 8);
        assert!(size >= MIN_COLLECTION && size.is_multiple_of(8));
        let collection = &heap[from..from + size];
        let mut at = HEADER;
        let mut found = None;
        for expected in 1.. {
            let own = u16::from_le_bytes([collection[at], collection[at + 1]]);
            let len = word(collection, at + 8);
            if own == 0 {
                assert_eq!(at + len, size, "the free space ends the collection");
                break;
            }
            assert_eq!(own, expected);
            if own == number {
                found = Some(&collection[at + HEADER..at + HEADER + len]);
            }
            at += HEADER + len.next_multiple_of(8);
        }
        found.unwrap()
    }

    #[test]
    fn objects_are_found_and_the_rest_is_free() {
        assert!(Heap::default().into_bytes().is_empty());
        for (count, len) in [
            (1, 0),
            (1, 8),
            (169, 8),
            (170, 8),
            (5000, 0),
            (9000, 8),
            (300, 1001),
            (3, 200_000),
        ] {
            let objects: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; len]).collect();
            let mut heap = Heap::default();
            let places: Vec<HeapPlace> = objects.iter().map(|bytes| heap.push(bytes)).collect();
            let bytes = heap.into_bytes();
            for (place, expected) in places.iter().zip(&objects) {
                let sequence = place.sequence(len, 4096);
                assert_eq!(sequence[..4], (len as u32).to_le_bytes());
                assert_eq!(object(&bytes, 4096, &sequence), expected);
            }
        }
    }
}
