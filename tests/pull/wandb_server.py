"""A W&B server small enough to read: what wandb's client and its service ask, on 127.0.0.1.

Queries and answers have the shapes that wandb 0.31's sources and its service's binary hold: the
GraphQL operations behind ``wandb.init`` and ``wandb.Api``, the file stream that carries a run's
history and summary, and Parquet exports of a history.
"""

import gzip
import io
import json
import math
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq

HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


def in_words(value):
    """Non-finite numbers as W&B's API gives them: as strings."""
    if isinstance(value, dict):
        return {key: in_words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_words(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def row(step, **values):
    """A row as the trainer logs it."""
    out = {"step": step, "tokens": step * 1024, "train_loss": 5.0 + 1 / step, "lr": 1e-3 / step}
    return out | {"grad_norm": 0.1, "step_ms": 12.5, "tokens_per_s": 81920.0} | values


class StoredRun:
    """One run as the server keeps it.

    Attributes:
        history: Rows in the order received.
        exported: How many rows, from the first, are served as Parquet; the rest are live.
        hidden: Steps whose rows the server has lost.
        line_count: What it says it has received; None: as many rows as there are.
    """

    def __init__(self, name, config, *, display=None, group=None):
        self.name, self.display, self.group = name, display or name, group
        self.config = {key: {"value": value} for key, value in config.items()}
        self.history, self.summary, self.state = [], {}, "running"
        self.exported, self.hidden, self.line_count = 0, set(), None

    def log(self, *rows):
        for row in rows:
            self.history.append({"_step": row["step"], "_timestamp": 1.7e9, "_runtime": 1.0, **row})
            self.summary |= self.history[-1]
        return self

    def end(self, state, **summary):
        self.state = state
        self.summary |= summary
        return self

    def lines(self):
        return len(self.history) if self.line_count is None else self.line_count

    def node(self):
        last = max((row["_step"] for row in self.history), default=-1)
        return {
            "id": f"id-{self.name}",
            "name": self.name,
            "projectId": "1",
            "displayName": self.display,
            "sweepName": None,
            "state": self.state,
            "config": json.dumps(self.config),
            "group": self.group,
            "jobType": None,
            "commit": None,
            "tags": [],
            "readOnly": False,
            "createdAt": "2026-01-01T00:00:00",
            "heartbeatAt": "2026-01-01T00:00:00",
            "description": None,
            "notes": None,
            "systemMetrics": "{}",
            "summaryMetrics": json.dumps(in_words(self.summary)),
            "historyLineCount": self.lines(),
            "historyKeys": {"lastStep": last} if self.history else None,
            "user": {"name": "Me", "username": "me"},
        }

    def served(self, low, high):
        rows = self.history[self.exported :]
        rows = [row for row in rows if low <= row["_step"] < high]
        return [json.dumps(in_words(row)) for row in rows if row["_step"] not in self.hidden]

    def parquet(self):
        names = sorted({name for row in self.history[: self.exported] for name in row})
        rows = self.history[: self.exported]
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()


class WandbServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        projects: ``{"entity/project": {name: StoredRun}}``.
        asked: The GraphQL operations received.
        refused: ``{operation: HTTP status}`` of those that are not answered.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.reset()

    def reset(self):
        self.projects, self.asked, self.refused = {}, [], {}

    def add(self, run, project="me/proj"):
        self.projects.setdefault(project, {})[run.name] = run
        return run

    def answer(self, operation, v):
        """The ``data`` of a GraphQL answer to an operation with variables ``v``."""
        if operation in ("Viewer", "GetDefaultEntity"):
            return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}"}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in v["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        project = f"{v.get('entity')}/{v.get('project')}"
        runs = self.projects.get(project)
        run = (runs or {}).get(v.get("run") or v.get("runName") or v.get("name"))
        if operation == "UpsertBucket":
            return self._upsert(v, run)
        if operation == "RunResumeStatus":
            return {"model": self._resumed(v, run)}
        if operation == "Runs":
            return {"project": runs if runs is None else self._page(list(runs.values()), v)}
        fields = {
            "RunHistoryKeys": lambda: {"historyKeys": run.node()["historyKeys"]},
            "RunParquetHistory": lambda: {"parquetHistory": self._exports(project, run)},
            "HistoryPage": lambda: {"history": run.served(v["minStep"], v["maxStep"])},
        }
        return {"project": {"run": fields[operation]()}} if operation in fields else {}

    def _page(self, runs, v):
        wanted = json.loads(v["filters"])
        runs = [run for run in runs if all(getattr(run, k) == w for k, w in wanted.items())]
        if v["order"].startswith("-"):
            runs = runs[::-1]
        begin = int(v.get("cursor") or 0)
        end = begin + min(v["perPage"], 2)  # fewer than asked for, as a server may
        edges = [
            {"node": run.node(), "cursor": str(at)}
            for at, run in enumerate(runs[begin:end], start=begin + 1)
        ]
        page = {"endCursor": str(end), "hasNextPage": end < len(runs)}
        return {
            "internalId": "1",
            "runCount": len(runs),
            "readOnly": False,
            "runs": {"edges": edges, "pageInfo": page},
        }

    def _exports(self, project, run):
        live = [{"_step": float(row["_step"])} for row in run.history[run.exported :]]
        urls = [f"{self.url}/parquet/{project}/{run.name}"] if run.exported else []
        return {"parquetUrls": urls, "liveData": live[:1]}

    def _upsert(self, v, run):
        inserted = run is None
        project = f"{v.get('entity') or 'me'}/{v['project']}"
        if inserted:
            run = self.add(StoredRun(v["name"], {}, group=v.get("groupName")), project)
        run.display = v.get("displayName") or run.display
        if v.get("config"):
            run.config = json.loads(v["config"])
        run.state = "running"
        entity, _, name = project.partition("/")
        place = {"id": "1", "name": name, "entity": {"id": "1", "name": entity}}
        bucket = {"id": f"id-{run.name}", "name": run.name, "displayName": run.display}
        bucket |= {"project": place, "historyLineCount": run.lines(), "config": "{}"}
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _resumed(self, v, run):
        bucket = None
        if run is not None:
            bucket = run.node() | {
                "logLineCount": 0,
                "eventsLineCount": 0,
                "eventsTail": "[]",
                "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
                "wandbConfig": json.dumps({"t": 1}),
            }
        entity = {"id": "1", "name": v.get("entity") or "me"}
        return {"id": "1", "name": v["project"], "entity": entity, "bucket": bucket}

    def stream(self, project, name, body):
        """Take one request of a run's file stream."""
        run = self.projects[project][name]
        files = body.get("files") or {}
        if HISTORY in files:
            del run.history[files[HISTORY]["offset"] :]
            run.history += [json.loads(line) for line in files[HISTORY]["content"]]
        if SUMMARY in files:
            run.summary = json.loads(files[SUMMARY]["content"][-1])
        if body.get("complete"):
            run.state = "failed" if body["exitcode"] else "finished"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: two would wait for each other's acknowledgement

    def log_message(self, *_):
        pass

    def _send(self, content, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def do_POST(self):
        body = json.loads(self._body())
        if stream := re.fullmatch(r"/files/(.+)/([^/]+)/file_stream", self.path):
            self.server.stream(*stream.groups(), body)
            return self._send(b"{}")
        operation = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])[1]
        self.server.asked.append(operation)
        if operation in self.server.refused:
            error = json.dumps({"errors": [{"message": "permission denied"}]})
            return self._send(error.encode(), self.server.refused[operation])
        data = self.server.answer(operation, body.get("variables") or {})
        return self._send(json.dumps({"data": data}).encode())

    def do_PUT(self):
        self._body()
        self._send(b"")

    def do_GET(self):
        _, _, path = self.path.partition("/parquet/")
        project, _, name = path.rpartition("/")
        self._send(self.server.projects[project][name].parquet())
