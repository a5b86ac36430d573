from __future__ import annotations

from pathlib import Path

from benchmarks import page_cache


def test_what_was_written_since_is_what_is_new_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"12345")
    (tmp_path / "kept").write_bytes(b"123")
    before = page_cache.listing(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "new").write_bytes(b"1234567")
    (tmp_path / "next").write_bytes(b"1234")
    (tmp_path / "next").replace(tmp_path / "old")
    assert page_cache.written_since(before, tmp_path) == 7 + 4
    assert page_cache.size(tmp_path) == 7 + 4 + 3


def test_what_is_still_cached_after_a_drop_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    page_cache.warm(tmp_path)
    assert page_cache._cached(tmp_path / "file") == 1 << 20
    # A file system in memory keeps everything, and then it has to say so.
    assert page_cache.drop(tmp_path) in (0, 1 << 20)
