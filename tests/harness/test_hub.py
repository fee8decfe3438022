"""Downloads from a fake hub served by this test: files, refusals, and an unreachable hub."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from moebench.harness.scale.text import train_tokenizer
from moebench.substrate.models.checkpoint import Checkpoint
from tests.harness.commands import call, refused
from tests.substrate.models.checkpoints import make_checkpoint

COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Fake hub with the interface that a download needs; its repositories are folders."""

    root: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        owner, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
        folder = self.root / owner / name
        refusal = {"gated": (403, "GatedRepo"), "broken": (500, "")}.get(owner)
        if owner == "gated" and path.startswith("/api/"):
            refusal = None  # what a repository holds is public, its files are not
        if refusal is None and not folder.is_dir():
            refusal = (404, "RepoNotFound")
        if refusal is None and rest and rest[1] not in ("main", COMMIT):
            refusal = (404, "RevisionNotFound")
        if refusal is not None:
            self._send(*refusal)
        elif path.startswith("/api/"):
            files = [f for f in sorted(folder.rglob("*")) if f.is_file()]
            tree = [self._entry(file, folder) for file in files]
            info = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [
                {"rfilename": entry["path"]} for entry in tree
            ]}  # fmt: skip
            self._send(200, "", json.dumps(tree if rest[:1] == ["tree"] else info).encode(), body)
        else:
            file = folder.joinpath(*rest[2:])
            if file.is_file():
                self._send(200, "", file.read_bytes(), body)
            else:
                self._send(404, "EntryNotFound")

    @staticmethod
    def _entry(file: Path, folder: Path) -> dict[str, object]:
        digest = hashlib.sha1(file.read_bytes()).hexdigest()
        path = file.relative_to(folder).as_posix()
        return {"type": "file", "path": path, "size": file.stat().st_size, "oid": digest}

    def _send(self, code: int, error: str, content: bytes = b"", body: bool = False) -> None:
        self.send_response(code)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Do nothing: requests are not logged."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """Serve a hub with one repository, ``tiny/olmoe``."""
    root = tmp_path / "hub"
    folder = make_checkpoint(root / "tiny" / "olmoe", "olmoe", sharded=True, vocab_size=300)
    train_tokenizer(["Where is the cup?"], 300).save(str(folder / "tokenizer.json"))
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.safetensors").write_bytes(b"another format")
    (folder / "README.md").write_text("a card")
    (root / "gated" / "llama").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (root / "gated" / "llama" / name).write_text("behind a licence")
    handler = type("Handler", (Hub,), {"root": root, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_checkpoint_is_downloaded_once_and_runs(hub: type[Hub]) -> None:
    called = call("models", "fetch", "tiny/olmoe")
    assert called.code == 0, called.err
    out = Path(".moebench/hub/tiny/olmoe")
    names = {file.name for file in out.iterdir() if file.is_file()}
    shards = {file.name for file in (hub.root / "tiny/olmoe").glob("*.safetensors*")}
    assert names == {"config.json", "tokenizer.json", "generation_config.json"} | shards
    assert not (out / "original").exists()
    source = Checkpoint(hub.root / "tiny" / "olmoe")
    assert Checkpoint(out).content_hash() == source.content_hash()
    hub.asked.clear()
    assert call("models", "fetch", "tiny/olmoe").code == 0
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


def test_an_unsupported_family_is_named_before_its_weights_come(hub: type[Hub]) -> None:
    (hub.root / "tiny/olmoe/config.json").write_text('{"model_type": "gpt2"}')
    line = refused("models", "fetch", "tiny/olmoe")
    assert "model_type 'gpt2' is not supported" in line
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


@pytest.mark.parametrize(
    ("repo", "says"),
    [
        ("gated/llama", "gated/llama: its licence must be accepted first, at http"),
        ("tiny/none", "tiny/none: no such repository at http"),
        ("broken/x", "broken/x: the hub refuses"),
        ("not a name", "not a name: not a repository's name; allowed: OWNER/NAME"),
    ],
)
def test_refused_downloads_are_reported_in_one_line(repo: str, says: str, hub: type[Hub]) -> None:
    assert says in refused("models", "fetch", repo)


def test_unknown_revision_is_refused(hub: type[Hub]) -> None:
    line = refused("models", "fetch", "tiny/olmoe", "--revision", "v9")
    assert "tiny/olmoe: has no revision v9" in line


def test_repository_without_configuration_is_refused(hub: type[Hub]) -> None:
    (hub.root / "tiny/olmoe/config.json").unlink()
    line = refused("models", "fetch", "tiny/olmoe")
    assert "tiny/olmoe: holds no config.json with .safetensors files" in line


def test_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    line = refused("models", "fetch", "tiny/olmoe")
    assert "http://127.0.0.1:9 cannot be reached" in line
    assert "--weights" in line


def test_offline_mode_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused("models", "fetch", "tiny/olmoe")
