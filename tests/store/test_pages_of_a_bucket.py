"""The live pages over a root in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.states import meta, snapshot
from tests.store.proxy import Proxy
from tests.store.servers import Server
from tests.ui.serving import Pages, links, site_over, words
from unbroken.repo.repository import Repository


def test_runs_in_a_bucket_have_pages(
    seaweedfs: Server, through: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    root = seaweedfs.place()
    for job in ("dqn", "ppo"):
        with Repository.open(root, job, create=True).writer() as writer:
            for step in (10, 20):
                writer.write(snapshot(step=step), meta(step, metrics={"reward": float(step)}))
    with site_over(root) as site:
        pages = Pages(site)
        site.looking.glances(site.catalogue.runs(), seconds=60)
        listed = pages.get("/")
        assert {"/runs/dqn", "/runs/ppo"} <= set(links(listed))
        assert "1–2 of 2 runs" in words(listed)
        said = words(pages.get("/runs/dqn"))
        assert "newest checkpoint step 20" in said
        assert "on disk –" in said
        assert "policy_weights" in words(pages.get("/runs/dqn/checkpoints/1"))
        assert "Every object is as it was written." in words(pages.done(pages.post("/runs/dqn/verify")))
        pages.post("/runs/dqn/difference", ("checkpoint", "1"), ("checkpoint", "2"))
        (comparison, *_) = site.jobs.of(f"{root}/dqn")
        assert comparison.wait(60)
        assert "counters different" in words(pages.get("/runs/dqn/difference?a=1&b=2"))
        assert pages.get("/runs/nothing").status_code == 404
