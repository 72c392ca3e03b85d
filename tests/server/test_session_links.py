"""F055: where the folder of sessions should be a symlink leads nowhere."""

import pytest
from tier_served_kit import real_tiered, serving

from kvist.server.sessions.shelf import Shelf

LONG = list(range(1000, 1200))


@pytest.mark.parametrize("which", ["sessions", "one tenant's"])
def test_a_symlink_is_refused_and_not_followed(tmp_path, which, caplog):
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "home"
    elsewhere.mkdir()
    with serving(real_tiered(home)) as client:
        client.complete(LONG)
        shelf = Shelf.of(home / "sessions", "default").folder
        link = home / "sessions" if which == "sessions" else shelf
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(elsewhere)
        for answer in (
            client.post("/v1/sessions/mine/save", {"token_ids": LONG}),
            client.post("/v1/sessions/mine/restore"),
            client.get("/v1/sessions"),
            client.http.delete("/v1/sessions/mine"),
        ):
            assert answer.status_code == 503 and "symlink" in answer.text, answer.text
            assert str(tmp_path) not in answer.text
        assert not list(elsewhere.iterdir()) and str(link) in caplog.text
        link.unlink()
        assert client.post("/v1/sessions/mine/save", {"token_ids": LONG}).status_code == 200
        assert (shelf / "mine.kvist").is_file() and not list(elsewhere.iterdir())
