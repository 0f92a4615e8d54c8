"""The viewer: what it lets in, what its pages say, and that data is never markup."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import polars as pl
import pytest
from support.curation_data import HALF, RIGHT, WRONG, score_frame, task_row, write

from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.curriculum.stage import Paths
from toolsample_cli.curriculum.stage import run as curriculum
from toolsample_cli.errors import DataError
from toolsample_cli.filter.stage import run as run_filter
from toolsample_cli.shards import schema
from toolsample_cli.stage import Options
from toolsample_cli.view.run_tree import runs_below

pytest.importorskip("starlette")
from toolsample_cli.view.server import make_app, templates

PORT, TOKEN = 8123, "secret-token"
EVIL = "<script>alert(1)</script>\x1b[31m\u202e\"'&"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds on eight tasks, one of which tries to be markup."""
    run = tmp_path_factory.mktemp("view") / "run"
    messages = json.dumps([{"role": "user", "content": EVIL}])
    tasks = [task_row(f"t{i}", messages_json=messages) if i == 3 else task_row(f"t{i}") for i in range(8)]
    write(schema.TASKS, run / "corpus", [schema.frame(schema.TASKS, tasks)])
    curriculum(Paths(run / "corpus"), run / "round-0", CurriculumConfig(tasks_per_round=8), Options())
    last = None
    for number in (1, 2):
        here = run / f"round-{number}"
        rows = {f"t{i}": [RIGHT, HALF, WRONG, RIGHT] if i % 2 else [WRONG] * 4 for i in range(8)}
        write(schema.SCORES, here / "scores", [score_frame(rows, round=number)])
        run_filter(here / "scores", last, here / "groups", FilterConfig(), Options())
        last = here / "groups"
        write(schema.TASKS, here / "tasks", [schema.frame(schema.TASKS, tasks)])
    return run


class Client:
    """Requests to the application as a browser would send them."""

    def __init__(self, run: Path) -> None:
        from starlette.testclient import TestClient

        base = f"http://127.0.0.1:{PORT}"
        self.http = TestClient(make_app([run], TOKEN, PORT), base_url=base, follow_redirects=False)
        answer = self.http.get("/", params={"token": TOKEN})
        assert answer.status_code == 303 and answer.headers["location"] == "/"

    def page(self, path: str, code: int = 200, **query: object) -> str:
        answer = self.http.get(f"{path}?{urlencode(query)}")
        assert answer.status_code == code, answer.text
        return answer.text


@pytest.fixture(scope="module")
def client(run_folder: Path) -> Client:
    return Client(run_folder)


class TestGuard:
    def test_no_token_no_page(self, run_folder: Path):
        from starlette.testclient import TestClient

        http = TestClient(make_app([run_folder], TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}")
        for path in ("/", "/round", "/task?id=t1", "/static/app.js", "/?token=wrong"):
            assert http.get(path).status_code == 403

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "localhost.evil:8123"]
    )
    def test_another_host_is_refused_even_with_the_token(self, client: Client, host: str):
        """What a page elsewhere reaches by rebinding its name to this machine."""
        assert client.http.get("/", params={"token": TOKEN}, headers={"host": host}).status_code == 403

    def test_another_origin_is_refused(self, client: Client):
        assert client.http.get("/", headers={"origin": "http://evil.example"}).status_code == 403
        assert client.http.get("/", headers={"origin": f"http://127.0.0.1:{PORT}"}).status_code == 200

    def test_it_is_read_only(self, client: Client):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.http.request(method, "/").status_code == 405

    def test_the_cookie_is_not_for_scripts_and_the_policy_allows_no_outside(self, run_folder: Path):
        fresh = Client(run_folder)
        answer = fresh.http.get("/", params={"token": TOKEN})
        assert (
            "httponly" in answer.headers["set-cookie"].lower()
            and "samesite=strict" in answer.headers["set-cookie"].lower()
        )
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy

    @pytest.mark.parametrize(
        "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2f..%2ferrors.py"]
    )
    def test_no_path_leaves_the_static_folder(self, client: Client, path: str):
        answer = client.http.get(path)
        assert answer.status_code in (404, 405) and "import" not in answer.text


class TestPages:
    def test_the_overview_has_every_round_and_its_numbers(self, client: Client):
        page = client.page("/")
        assert "/round?run=run&amp;round=2" in page
        (chart,) = [c for c in _charts(page) if c["title"].startswith("Components")]
        exact = {row["x"]: row["y"] for row in chart["rows"] if row["series"] == "exact"}
        assert exact == {1: 0.25, 2: 0.25}
        (groups,) = [c for c in _charts(page) if c["title"] == "Groups by what was right"]
        assert {row["series"]: row["y"] for row in groups["rows"] if row["x"] == 2} == {
            "all right": 0, "none right": 0, "dead, none right": 4, "mixed": 4
        }  # fmt: skip

    def test_a_round_is_asked_questions(self, client: Client):
        page = client.page("/round", round=2, kind="groups", where="n_exact = 2", sort="reward_mean", desc="1")
        assert "4 rows" in page and "/task?run=run&amp;id=t1" in page and "id=t2" not in page
        page = client.page("/round", round=2, ask="never-solved")
        assert "id=t2" in page and "4 rows" in page

    @pytest.mark.parametrize(
        "where",
        [
            "read_csv('/etc/passwd') is null",
            "(select 1) = 1",
            "count(*) > 1",
            "no_such = 1",
            "1; drop table x",
            "reward",
        ],
    )
    def test_a_question_that_cannot_be_asked_says_why(self, client: Client, where: str):
        page = client.page("/round", round=2, kind="scores", where=where)
        assert '<p class="error">' in page and "root:" not in page

    @pytest.mark.parametrize(
        "query", [{"round": 99}, {"round": "x"}, {"run": "../../etc"}, {"kind": "../../corpus"}, {"page": "9" * 30}]
    )
    def test_a_wrong_address_is_a_sentence(self, client: Client, query: dict):
        answer = client.http.get("/round?" + urlencode(query))
        assert answer.status_code in (200, 422) and "error" in answer.text and "Traceback" not in answer.text

    def test_a_task_shows_what_was_asked_as_text(self, client: Client):
        page = client.page("/task", id="t3")
        assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;\\u001b[31m\\u202e" in page
        assert "/sample?run=run&amp;id=t3/2/0" in page.replace("%2F", "/")

    def test_unknown_ids_are_named(self, client: Client):
        assert "no task" in client.page("/task", 422, id="nope")
        assert "no sample" in client.page("/sample", 422, id="../../x/1/0")

    def test_a_run_that_is_being_written_and_a_damaged_file(self, run_folder: Path, tmp_path: Path):
        import shutil

        run = tmp_path / "run"
        shutil.copytree(run_folder, run)
        (run / "round-3" / "scores.tmp").mkdir(parents=True)
        (run / "round-3" / "rollouts").mkdir()
        growing = Client(run)
        assert "round=3" in growing.page("/") and "No scores in this round yet" in growing.page("/round", round=3)
        (run / "round-2" / "state.json").write_text("{", encoding="utf-8")
        assert "state.json: not valid JSON" in growing.page("/", 422)

    def test_a_folder_without_rounds_is_refused_at_once(self, tmp_path: Path):
        with pytest.raises(DataError, match="no round in it"):
            make_app([tmp_path], TOKEN, PORT)


def test_no_data_ends_the_script_element_that_holds_it():
    page = (
        templates()
        .from_string("<script type='application/json'>{{ x|data }}</script>")
        .render(x={"a": "</script>" + EVIL})
    )
    assert page.count("</script>") == 1 and json.loads(page.split(">", 1)[1].rsplit("<", 1)[0])["a"].endswith(
        "\u202e\"'&"
    )


def test_runs_of_several_arms_are_found_by_their_paths(tmp_path: Path):
    for arm in ("a/seed-0", "a/seed-1", "b/seed-0"):
        (tmp_path / arm / "round-0").mkdir(parents=True)
    (tmp_path / "c" / "notes").mkdir(parents=True)
    assert [run.name for run in runs_below(tmp_path)] == ["a/seed-0", "a/seed-1", "b/seed-0"]


def _charts(page: str) -> list[dict]:
    parts = page.split('<script type="application/json">')[1:]
    return [json.loads(part.partition("</script>")[0]) for part in parts]


def test_looking_writes_nothing(run_folder: Path):
    """The shards are read as they are: nothing is written beside them."""
    before = {file: file.stat().st_mtime_ns for file in run_folder.rglob("*")}
    Client(run_folder).page("/")
    assert before == {file: file.stat().st_mtime_ns for file in run_folder.rglob("*")}
    assert pl.read_parquet(next((run_folder / "round-1" / "scores").glob("*.parquet"))).height == 32
