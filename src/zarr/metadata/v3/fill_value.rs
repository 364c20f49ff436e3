//! The fill values of v3: from JSON to the bytes of one item, and back.
