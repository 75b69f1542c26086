"""S3 under faults: what passes is ridden out, what does not is named at once, and nothing is ever torn.

What holds of every store is in test_storage.py.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from test_storage import MARKER, any_tree, contents, make_tree

from clustertrain.errors import StorageError
from clustertrain.storage import location, open_store, probe, s3_client, s3_tree
from support.fault_proxy import (
    FaultProxy,
    cut_answer,
    cut_request,
    flip_answer,
    flip_request,
    get,
    late_listing,
    listing,
    lost_answer,
    put,
    reset,
    stall,
    status,
    without_conditions,
)

MIB = 1 << 20
DATA = random.Random(0).randbytes(6 * MIB)


@pytest.fixture(scope="module")
def proxy_before():
    """One proxy for each server, since a new address means a new client, which takes a while to make."""
    with ExitStack() as stack:
        made = {}

        def proxy_before(endpoint):
            if endpoint not in made:
                made[endpoint] = stack.enter_context(FaultProxy(endpoint))
            made[endpoint].calm()
            made[endpoint].requests.clear()
            return made[endpoint]

        yield proxy_before


@pytest.fixture
def proxy(s3, proxy_before):
    return proxy_before(s3.endpoint)


@pytest.fixture
def store(s3, proxy):
    return open_store(s3.location("runs", endpoint=proxy.endpoint))


@pytest.fixture
def moto_proxy(moto_s3, proxy_before):
    return proxy_before(moto_s3.endpoint)


@pytest.fixture
def moto_store(moto_s3, moto_proxy):
    """For faults that only the client handles."""
    return open_store(moto_s3.location("runs", endpoint=moto_proxy.endpoint))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Short pauses and small parts, so that little time and few bytes show what many would."""
    monkeypatch.setattr(s3_client, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(s3_client, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(s3_tree, "PART_BYTES", 5 * MIB)


def refusal(action):
    with pytest.raises(StorageError) as caught:
        action()
    text = str(caught.value)
    assert text.count("\n") == 1
    return text


# ------------------------------------------------------------------------------------ what may pass


@pytest.mark.parametrize(
    "fault", [status(500), status(503), status(429), reset()], ids=["500", "503", "429", "reset"]
)
def test_every_operation_survives_transient_errors(moto_store, moto_proxy, fault):
    """Each operation meets the fault four times, and comes to the same end."""

    def storm():
        moto_proxy.calm()
        moto_proxy.script(fault, times=4)

    storm()
    moto_store.write_atomic("a", b"1")
    storm()
    assert moto_store.read_or_none("a") == b"1"
    storm()
    assert moto_store.list("") == ["a"]
    storm()
    assert moto_store.create_exclusive("b", b"2")
    storm()
    make_tree(moto_store, "trees/one", x=b"3")
    storm()
    assert moto_store.trees("trees", MARKER) == ["one"]
    storm()
    moto_store.remove_tree("trees/one", MARKER)
    assert moto_store.list("trees") == []


def test_a_server_that_is_down_for_a_while_is_waited_for(moto_store, moto_proxy, monkeypatch):
    """It is up again when a request has failed, in the pause before the next one."""
    moto_store.write_atomic("a", b"1")
    moto_proxy.down()
    why = "did not succeed in 0.1 s of retries; the last error was: EndpointConnectionError: Could not"
    with pytest.raises(StorageError, match=why):  # it is really down
        open_store(replace(moto_store.location, retry_s=0.1)).read_or_none("a")
    monkeypatch.setattr(s3_client.random, "uniform", lambda low, high: moto_proxy.up() or low)
    assert moto_store.read_or_none("a") == b"1"


def test_a_request_without_an_answer_is_sent_again(moto_s3, monkeypatch):
    monkeypatch.setattr(s3_client, "READ_TIMEOUT_S", 1.0)
    with FaultProxy(moto_s3.endpoint) as proxy:
        store = open_store(moto_s3.location("runs", endpoint=proxy.endpoint))
        proxy.script(stall(), times=1)
        store.write_atomic("a", DATA)
        proxy.script(stall(), times=1)
        assert store.read_or_none("a") == DATA
        proxy.script(stall(2 * MIB), when=get, times=1)
        assert contents(store, "a") == DATA
        assert proxy.count() >= 6


@pytest.mark.parametrize("at", [0, 1, MIB - 1, MIB, 5 * MIB + 7], ids=str)
def test_a_download_continues_at_the_byte_where_it_was_cut(store, proxy, at):
    store.write_atomic("a", DATA)
    proxy.script([cut_answer(at), cut_answer(0), reset()], when=get)
    assert contents(store, "a") == DATA
    ranges = [request.headers.get("range") for request in proxy.requests if get(request)]
    whole = at // MIB * MIB  # whole blocks that had come; boto3 gives what follows only together
    assert ranges == [None, f"bytes={whole}-", f"bytes={whole}-", f"bytes={whole}-"]


def test_small_files_are_read_again_when_cut_or_changed_on_the_way(store, proxy):
    store.write_atomic("a", b"12345")
    proxy.script([cut_answer(0), cut_answer(3), flip_answer(2)], when=get)
    assert store.read_or_none("a") == b"12345"
    assert proxy.count(get) == 4


def test_a_file_that_changes_while_it_is_read_is_an_error(store, proxy):
    store.write_atomic("a", DATA)
    proxy.script(cut_answer(2 * MIB), when=get, times=1)
    blocks = store.blocks("a")
    next(blocks)
    store.write_atomic("a", DATA[::-1])
    text = refusal(lambda: b"".join(blocks))
    assert "was changed or removed while it was read, at byte" in text


@pytest.mark.parametrize("at", [0, 1, 3 * MIB, 5 * MIB - 1], ids=str)
def test_an_upload_that_is_cut_is_made_again(store, proxy, at):
    proxy.script([cut_request(at), cut_request(at)], when=put)
    make_tree(store, "trees/one", big=DATA, small=b"1" * 100)
    assert contents(store, "trees/one/big") == DATA
    assert store.trees("trees", MARKER) == ["one"]


@pytest.mark.s3
def test_bytes_that_change_on_the_way_up_are_sent_again(versitygw_s3):
    with FaultProxy(versitygw_s3.endpoint) as proxy:
        store = open_store(versitygw_s3.location("runs", endpoint=proxy.endpoint))
        proxy.script([flip_request(0), flip_request(2)], when=put)
        store.write_atomic("a", b"12345")
        assert proxy.count(put) == 3
        proxy.script([flip_request(1000)], when=lambda r: put(r) and "partNumber" in r.query)
        make_tree(store, "trees/one", big=DATA)
        assert (store.read_or_none("a"), contents(store, "trees/one/big")) == (b"12345", DATA)


def conditional(request):
    return "if-none-match" in request.headers


def test_a_conditional_put_whose_answer_was_lost_counts_as_created(store, proxy):
    proxy.script(lost_answer(), when=conditional, times=1)
    assert store.create_exclusive("a", b"mine")
    proxy.script(lost_answer(), when=conditional, times=1)
    assert not store.create_exclusive("a", b"mine")
    proxy.script(lost_answer(), when=lambda r: conditional(r) and MARKER in r.path, times=1)
    make_tree(store, "trees/one", x=b"1")
    assert store.trees("trees", MARKER) == ["one"]


def test_a_completion_whose_answer_was_lost_is_found_done(store, proxy):
    proxy.script(lost_answer(), when=lambda r: r.method == "POST" and "uploadId" in r.query, times=1)
    make_tree(store, "trees/one", big=DATA)
    assert contents(store, "trees/one/big") == DATA


# ------------------------------------------------------------------------- servers that lack something


def test_a_server_that_does_not_find_what_is_to_be_removed(moto_store, moto_proxy):
    moto_proxy.script(status(404, "NoSuchKey"), when=lambda r: r.method == "DELETE")
    probe(moto_store)
    moto_store.remove("a")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (without_conditions(), r"a file was created twice .*\nUse a server with conditional writes"),
        (status(501, "NotImplemented"), "HTTP 501 NotImplemented"),
    ],
    ids=["ignored", "refused"],
)
def test_the_probe_refuses_a_server_without_conditional_writes(moto_s3, moto_store, moto_proxy, fault, said):
    moto_proxy.script(fault, when=conditional)
    with pytest.raises(StorageError, match=said):
        probe(moto_store)
    assert moto_s3.all_keys() == []


def test_a_late_listing_hides_nothing_that_was_committed(store, proxy):
    make_tree(store, "trees/one", x=b"1")
    proxy.script(late_listing(), when=listing)
    assert store.trees("trees", MARKER) == ["one"]
    make_tree(store, "trees/two", x=b"2")
    assert store.trees("trees", MARKER) == ["one", "two"]
    store.remove_tree("trees/one", MARKER)
    assert store.trees("trees", MARKER) == ["two"]
    assert store.collect_leftovers("trees", MARKER, any_tree) in ([], ["one"])
    assert contents(store, "trees/two/x") == b"2"


# ------------------------------------------------------------------------------------ what will not pass


@pytest.mark.parametrize(
    "case",
    [
        (403, "AccessDenied"),
        (400, "ExpiredToken"),
        (403, "SignatureDoesNotMatch"),
        (507, "InsufficientStorage"),
    ],
    ids=lambda case: case[1],
)
def test_a_refusal_is_reported_at_once(moto_store, moto_proxy, moto_s3, case):
    number, code = case
    moto_proxy.script(status(number, code))
    for action, method in [
        (lambda: moto_store.write_atomic("a", b"1"), "PUT"),
        (lambda: moto_store.read_or_none("a"), "GET"),
        (lambda: next(moto_store.blocks("a")), "GET"),
        (lambda: moto_store.list("a"), "LIST"),
        (lambda: moto_store.remove("a"), "DELETE"),
    ]:
        before = moto_proxy.count()
        text = refusal(action)
        assert f"{method} s3://{moto_s3.bucket}/runs/a" in text
        assert f"HTTP {number} {code}" in text
        assert location.CREDENTIAL_CHAIN in text
        assert moto_proxy.count() == before + (2 if code == "ExpiredToken" else 1)


def test_credentials_that_were_renewed_in_the_file_are_read_again(moto_s3, moto_proxy, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def log_in(key: str) -> None:
        (tmp_path / "credentials").write_text(f"[p]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    log_in("OLD")
    store = open_store(moto_s3.location("runs", endpoint=moto_proxy.endpoint, profile="p"))
    store.write_atomic("a", b"1")
    moto_proxy.script(status(400, "ExpiredToken"), when=lambda r: "=OLD/" in r.headers["authorization"])
    assert "HTTP 400 ExpiredToken" in refusal(lambda: store.write_atomic("a", b"2"))
    log_in("NEW")
    assert store.list("") == ["a"]
    store.write_atomic("a", b"3")
    assert store.read_or_none("a") == b"3"


def test_the_files_of_a_script_beside_the_trees_cost_no_request_each(moto_store, moto_proxy):
    make_tree(moto_store, "trees/one", a=b"1")
    for step in range(20):
        moto_store.write_atomic(f"trees/step-{step}.pt", b"2")
    before = moto_proxy.count()
    assert moto_store.trees("trees", MARKER) == ["one"]
    assert moto_store.collect_leftovers("trees", MARKER, any_tree) == []
    assert moto_proxy.count() - before < 20
    assert len(moto_store.list("trees")) == 21


def test_a_bucket_that_is_not_there_is_named(s3):
    store = open_store(replace(s3.location(), uri=f"s3://{s3.bucket}-nope/runs"))
    for action in (lambda: probe(store), lambda: store.read_or_none("a"), lambda: store.list("")):
        text = refusal(action)
        assert f"s3://{s3.bucket}-nope/" in text
        assert "HTTP 404 NoSuchBucket" in text


@pytest.mark.s3
def test_a_wrong_secret_is_named(versitygw_s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with FaultProxy(versitygw_s3.endpoint) as proxy:
        store = open_store(versitygw_s3.location("runs", endpoint=proxy.endpoint))
        text = refusal(lambda: probe(store))
    assert "HTTP 403 SignatureDoesNotMatch" in text
    assert "another" not in text.replace("another server", "")


def test_without_credentials_the_chain_is_named(moto_s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with FaultProxy(moto_s3.endpoint) as proxy:
        store = open_store(moto_s3.location("runs", endpoint=proxy.endpoint))
        text = refusal(lambda: probe(store))
        assert proxy.count() == 0
    assert "was not sent: Unable to locate credentials" in text
    assert location.CREDENTIAL_CHAIN in text


# ------------------------------------------------------------------------------------------------ trees


def test_large_files_go_up_in_parts_while_they_are_written(store, proxy, monkeypatch):
    tree = store.new_tree("trees/one")
    with tree.create("big") as file:
        for start in range(0, len(DATA), 100_000):
            file.write(DATA[start : start + 100_000])
        deadline = time.monotonic() + 60
        while not proxy.count(lambda r: "partNumber=1" in r.query):
            assert time.monotonic() < deadline, "no part went up before the file was closed"
            time.sleep(0.01)
    assert store.trees("trees", MARKER) == []
    tree.commit(MARKER, b"")
    assert contents(store, "trees/one/big") == DATA
    assert proxy.count(lambda r: "partNumber" in r.query) == 2


def test_parts_are_as_many_as_s3_takes():
    sizes = [s3_tree.part_bytes(number) for number in range(1, 10_001)]
    assert min(sizes) >= 5 * MIB
    assert sum(sizes) >= 1e12


@pytest.mark.parametrize("fault", [status(403), None], ids=["the server refuses", "the writer raises"])
def test_what_was_begun_is_aborted(store, s3, proxy, fault):
    tree = store.new_tree("trees/one")
    with pytest.raises((StorageError, ZeroDivisionError)), tree.create("big") as file:
        file.write(DATA)
        assert s3.uploads() == ["runs/trees/one/big"]
        if fault:
            proxy.script(fault, when=put)
            file.write(DATA)
            file.write(DATA)
        else:
            1 / 0  # noqa: B018
    proxy.calm()
    tree.abort()
    assert s3.uploads() == s3.all_keys() == []


WRITER = """
import sys, time
from clustertrain.storage import open_store, s3_tree
from clustertrain.storage.location import Location
s3_tree.PART_BYTES = 5 << 20
uri, endpoint = sys.argv[1:]
tree = open_store(Location(uri, endpoint=endpoint, region="us-east-1")).new_tree("trees/dead")
with tree.create("small") as file:
    file.write(b"1")
with tree.create("big") as file:
    file.write(bytes(11 << 20))
    print("written", flush=True)
    time.sleep(600)
"""


def test_a_start_goes_on_where_a_policy_forbids_to_abort_uploads(moto_store, moto_proxy, moto_s3):
    upload = moto_s3.client().create_multipart_upload(Bucket=moto_s3.bucket, Key="runs/trees/dead/big")
    moto_proxy.script(status(403, "AccessDenied"), when=lambda r: r.method == "DELETE" and r.query)
    assert moto_store.collect_leftovers("trees", MARKER, any_tree) == ["dead"]
    assert upload["Key"] in moto_s3.uploads()


def test_a_killed_writer_leaves_nothing_visible_and_is_collected(s3, aws_environment):
    store = open_store(s3.location("runs"))
    make_tree(store, "trees/good", x=b"1")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, store.location.uri, s3.endpoint],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **aws_environment},
    ) as writer:
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
    assert store.trees("trees", MARKER) == ["good"]
    assert (s3.uploads(), "runs/trees/dead/small" in s3.all_keys()) == (["runs/trees/dead/big"], True)
    assert store.collect_leftovers("trees", MARKER, any_tree) == ["dead"]
    assert s3.uploads() == []
    assert s3.all_keys() == ["runs/trees/.newest", "runs/trees/good/DONE", "runs/trees/good/x"]


@pytest.mark.parametrize("requests", range(1, 6))
def test_a_tree_that_is_removed_in_part_is_no_tree(moto_store, moto_proxy, moto_s3, requests):
    """The server refuses after so many requests; what is left is not taken for whole, and is collected."""
    make_tree(moto_store, "trees/one", a=b"1", b=b"2")
    moto_proxy.script([None] * requests + [status(403)])
    try:
        moto_store.remove_tree("trees/one", MARKER)
    except StorageError:
        assert "runs/trees/one/b" in moto_s3.all_keys()
    moto_proxy.calm()
    assert moto_store.trees("trees", MARKER) == []
    moto_store.collect_leftovers("trees", MARKER, any_tree)
    assert moto_s3.all_keys() == ["runs/trees/.newest"]
