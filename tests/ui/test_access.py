"""Who may ask the live pages: names, origins, tokens, and the user at the other end of a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.ui.serving import ELSEWHERE, PORT, Pages, site_over, words
from unbroken.ui.app.access import FORM_KEY, Access, host_name, owner_of


def rules(
    host: str = "127.0.0.1", *, owner: int | None = None, hosts: frozenset[str] = frozenset()
) -> Access:
    return Access(host, PORT, hosts=hosts, owner=lambda peer, port: owner)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Pages]:
    """Pages asked by somebody on this machine of whom nothing is known."""
    with site_over(tmp_path, access=rules()) as site:
        yield Pages(site)


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Pages]:
    """Pages asked by this user on this machine."""
    with site_over(tmp_path, access=rules(owner=os.geteuid())) as site:
        yield Pages(site)


def test_who_is_not_known_gets_no_page_and_is_told_what_to_open(stranger: Pages) -> None:
    for path in ("/", "/runs/x", "/static/page.css", "/jobs/1", "/?token=wrong", "/?token="):
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "with its token" in words(answer)


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: Pages) -> None:
    answer = stranger.get(f"/?q=dqn&token={stranger.site.access.token}&page=2")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?q=dqn&page=2"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.partition(";")[0]
    assert pair == f"unbroken-{PORT}={stranger.site.access.token}"
    assert stranger.get("/", cookie=pair).status_code == 200
    assert stranger.get("/", cookie=f"other=1; {pair}").status_code == 200
    assert stranger.get("/", cookie=f"unbroken-{PORT}=x").status_code == 401
    assert stranger.get("/", cookie=pair.replace(str(PORT), "9999")).status_code == 401


def test_a_token_cannot_send_a_browser_elsewhere(stranger: Pages) -> None:
    answer = stranger.get(f"//evil.example/a?token={stranger.site.access.token}")
    assert answer.headers.get("location", "/").startswith("/")
    assert not answer.headers.get("location", "/").startswith("//")


def test_a_program_gives_the_token_in_a_header(stranger: Pages) -> None:
    assert stranger.get("/", authorization=f"Bearer {stranger.site.access.token}").status_code == 200
    assert stranger.get("/", authorization="Bearer no").status_code == 401
    assert stranger.get("/", authorization=f"Basic {stranger.site.access.token}").status_code == 401


def test_on_this_machine_ones_own_processes_need_no_token(mine: Pages) -> None:
    assert mine.get("/").status_code == 200


@pytest.mark.parametrize("owner", [None, 4_000_000_000], ids=["not known", "another user"])
def test_another_user_of_this_machine_needs_it(tmp_path: Path, owner: int | None) -> None:
    with site_over(tmp_path, access=rules(owner=owner)) as site:
        assert Pages(site).get("/").status_code == 401


def test_of_users_only_ones_own_needs_no_token_not_even_the_one_who_may_do_everything(tmp_path: Path) -> None:
    access = Access("127.0.0.1", PORT, owner=lambda peer, port: 0, user=1000)
    with site_over(tmp_path, access=access) as site:
        assert Pages(site).get("/").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "runs.example"},
        {"x-forwarded-for": "192.0.2.7"},
        {"forwarded": "for=192.0.2.7"},
        {"x-real-ip": "192.0.2.7"},
        {"via": "1.1 proxy"},
    ],
    ids=["its name", "X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"],
)
def test_what_others_ask_through_a_proxy_of_this_user_needs_the_token(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    access = rules(owner=os.geteuid(), hosts=frozenset({"runs.example"}))
    with site_over(tmp_path, access=access) as site:
        pages = Pages(site)
        assert pages.ask("GET", "/", headers=headers).status_code == 401
        known = {**headers, "authorization": f"Bearer {access.token}"}
        assert pages.ask("GET", "/", headers=known).status_code == 200


def test_others_are_served_while_the_kernel_is_asked_whose_connection_it_is(tmp_path: Path) -> None:
    asked, served = threading.Event(), threading.Event()
    waited: list[bool] = []

    def owner(peer: tuple[str, int], port: int) -> int:
        asked.set()
        waited.append(served.wait(60))
        return os.geteuid()

    with site_over(tmp_path, access=Access("127.0.0.1", PORT, owner=owner)) as site:
        pages = Pages(site)

        async def both() -> list[int]:
            statuses: list[int] = []

            async def ask(**headers: str) -> None:
                async with pages.client() as client:
                    statuses.append((await client.get("/static/icon.svg", headers=headers)).status_code)
                served.set()

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.to_thread.run_sync(asked.wait, 60)
                group.start_soon(partial(ask, authorization=f"Bearer {site.access.token}"))
            return statuses

        assert anyio.run(both) == [200, 200]
    assert waited == [True]


def test_the_head_of_a_page_is_that_of_the_page_without_its_body(mine: Pages) -> None:
    for path in ("/", "/nothing", "/static/page.css"):
        head, whole = mine.ask("HEAD", path), mine.get(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers == whole.headers


def test_from_another_machine_it_is_needed_whoever_asks(tmp_path: Path) -> None:
    with site_over(tmp_path, access=rules("0.0.0.0", owner=os.geteuid())) as site:
        there = Pages(site, peer=ELSEWHERE, host=f"192.0.2.1:{PORT}")
        assert there.get("/").status_code == 401
        assert there.get("/", authorization=f"Bearer {site.access.token}").status_code == 200
        # Nor is it enough to come from this machine: what is open to a network may be asked through a proxy here.
        assert Pages(site).get("/").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8484",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.0.2.1",
        "",
        "a@127.0.0.1",
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(mine: Pages, host: str) -> None:
    answer = mine.get("/", host=host)
    assert answer.status_code == 421
    assert "--allow-host" in words(answer)


@pytest.mark.parametrize("host", ["localhost:8484", "127.0.0.1:9999", "[::1]:8484", "LOCALHOST"])
def test_the_names_of_this_machine_are_known_at_any_port(mine: Pages, host: str) -> None:
    assert mine.get("/", host=host).status_code == 200


def test_a_server_for_a_network_is_asked_by_address_or_by_a_name_that_was_allowed(tmp_path: Path) -> None:
    access = rules("0.0.0.0", hosts=frozenset({"runs.example"}))
    with site_over(tmp_path, access=access) as site:
        pages = Pages(site, peer=ELSEWHERE)
        token = f"Bearer {access.token}"
        assert pages.get("/", host="192.0.2.1:8484", authorization=token).status_code == 200
        assert pages.get("/", host="runs.example", authorization=token).status_code == 200
        assert pages.get("/", host="evil.example", authorization=token).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=["another site", "no site", "another port", "said by the browser", "a neighbour"],
)
def test_a_form_of_another_page_does_nothing(mine: Pages, headers: dict[str, str]) -> None:
    fields = [(FORM_KEY, mine.site.access.form_key)]
    answer = mine.ask("POST", "/jobs/x/cancel", fields=fields, headers=headers)
    assert answer.status_code == 403
    assert "did not come from one of these pages" in words(answer)


def test_a_form_of_ours_carries_a_key_of_this_start(mine: Pages) -> None:
    own = {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin"}
    assert (
        mine.ask(
            "POST", "/jobs/x/cancel", fields=[(FORM_KEY, mine.site.access.form_key)], headers=own
        ).status_code
        == 404
    )
    for fields in ([], [(FORM_KEY, "")], [(FORM_KEY, "x")]):
        answer = mine.ask("POST", "/jobs/x/cancel", fields=fields, headers=own)
        assert answer.status_code == 400
        assert "Open the page again" in words(answer)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_not_for_these_pages(mine: Pages, method: str) -> None:
    assert mine.ask(method, "/").status_code == 403


def test_a_page_of_another_site_is_never_told_that_it_may_read(mine: Pages) -> None:
    answer = mine.get("/", origin="http://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_forbids_scripts_that_stand_in_it_frames_and_guesses(
    mine: Pages, stranger: Pages
) -> None:
    for answer in (mine.get("/"), mine.get("/nothing"), mine.get("/static/page.js"), stranger.get("/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_no_page_has_a_script_of_its_own(mine: Pages) -> None:
    text = mine.get("/").text
    assert "<script>" not in text
    assert "javascript:" not in text
    assert " onclick=" not in text


def test_a_form_that_is_too_long_is_refused_before_it_is_read_to_its_end(mine: Pages) -> None:
    answer = mine.ask("POST", "/jobs/x/cancel", fields=[("a", "x" * 100_000)])
    assert answer.status_code == 400


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_kernel_says_whose_connection_it_is(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listening:
        listening.bind((address, 0))
        listening.listen()
        port = listening.getsockname()[1]
        with socket.create_connection((address, port)) as asking:
            peer = asking.getsockname()[:2]
            assert owner_of(peer, port) == os.geteuid()
            assert owner_of((peer[0], peer[1]), port + 1 if port < 65535 else 1) is None


def test_the_kernel_says_it_of_a_connection_of_another_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}; read -r _ <&3"
        asking = subprocess.Popen(["bash", "-c", connect], user=65534, cwd="/", stdin=subprocess.DEVNULL)
        accepted, peer = listening.accept()
        with accepted:
            assert owner_of(peer, port) == 65534
            accepted.sendall(b"\n")
        assert asking.wait(30) == 0


def test_malformed_names_are_no_names() -> None:
    for text in ("", ":80", "a b", "[::1", "[x]:80", "::1", "host:port", "host:80:90", "a/b"):
        assert host_name(text) == "", text
