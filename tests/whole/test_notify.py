"""`notify` in a whole run: a restart and the end are posted to a URL that no file of the run contains."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

from web import answering
from whole_run import FAULTY, ONE_WORKER


def test_a_restart_and_the_end_are_posted_and_the_url_is_in_no_file(make_run, tmp_path):
    posts = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            """Say nothing."""

        def do_POST(self):
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    strike = {"fault": "kill", "rank": 0, "at_call": 5, "marker": str(tmp_path / "struck")}
    run = make_run("told", args=strike, notify="${HOOK}/T0B0", **FAULTY, **ONE_WORKER)
    with answering(server := HTTPServer(("127.0.0.1", 0), Handler)):
        run.start(HOOK=f"http://127.0.0.1:{server.server_port}/hidden").end(0)
    assert [(post["event"], post["state"], post["step"]) for post in posts] == [
        ("restart", "", 4),
        ("ended", "done", run.result.step),
    ]
    assert "signal 9" in posts[0]["text"] and posts[1]["text"].endswith("done (finished)")
    files = [path for path in (run.folder / "runs").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"/hidden" in path.read_bytes()]
