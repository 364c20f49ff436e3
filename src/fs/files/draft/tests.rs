use super::*;

fn node() -> Node {
    Node::Value(Key::root().child("x").unwrap())
}

#[test]
fn a_draft_is_written_anywhere_and_shared() {
    let drafts = Drafts::default();
    let draft = drafts
        .open(&node(), 2, Some(b"0123".to_vec()), None, 10)
        .unwrap();
    assert!(!draft.lock().changed);
    draft.write_at(2, b"ab").unwrap();
    draft.write_at(6, b"c").unwrap();
    let shared = drafts.open(&node(), 2, None, None, 10).unwrap();
    let read = |offset, len| {
        let mut out = vec![9];
        copy_range(shared.lock().text.bytes(), offset, len, &mut out);
        out
    };
    assert_eq!(
        (read(1, 100), draft.lock().changed),
        (b"1ab\0\0c".to_vec(), true)
    );
    draft.set_len(3).unwrap();
    assert_eq!((read(2, 1), read(3, 1)), (b"a".to_vec(), vec![]));
}

#[test]
fn a_draft_has_a_limit_and_an_end() {
    let drafts = Drafts::default();
    let draft = drafts.open(&node(), 2, None, None, 4).unwrap();
    assert!(draft.lock().changed, "a new file is one as it is");
    assert_eq!(draft.write_at(2, b"abc").unwrap_err().errno(), libc::EFBIG);
    assert_eq!(
        draft.write_at(u64::MAX, b"a").unwrap_err().errno(),
        libc::EFBIG
    );
    assert_eq!(draft.set_len(5).unwrap_err().errno(), libc::EFBIG);
    assert_eq!(draft.lock().text.bytes(), b"");
    drafts.forget(&node().path());
    assert!(!draft.lock().changed && drafts.get(&node().path()).is_none());
    drop(drafts.open(&node(), 2, None, None, 4).unwrap());
    assert!(drafts.get(&node().path()).is_none());
}

#[test]
fn a_draft_is_renamed_with_its_file() {
    let drafts = Drafts::default();
    let to = Node::Value(Key::root().child("y").unwrap());
    let [draft, old] =
        [node(), to.clone()].map(|node| drafts.open(&node, 2, None, None, 4).unwrap());
    drafts.renamed(&node().path(), &to);
    assert!(
        drafts.get(&node().path()).is_none()
            && Arc::ptr_eq(&draft, &drafts.get(&to.path()).unwrap())
    );
    assert_eq!((draft.node(), draft.lock().changed), (to.clone(), true));
    // processes that have the replaced file open can still write it, and only they see that
    old.write_at(0, b"1").unwrap();
    assert!(!old.lock().changed && old.lock().text.bytes() == b"1");
    assert!(drafts.take(&to.path()) && !drafts.take(&to.path()));
    assert_eq!(draft.write_at(0, b"1").unwrap_err().errno(), libc::ESTALE);
    assert_eq!(draft.set_len(1).unwrap_err().errno(), libc::ESTALE);
}
