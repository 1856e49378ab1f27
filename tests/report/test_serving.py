"""The live page's server: this machine alone, and new rows as they come."""

import json
import threading
import urllib.error
import urllib.request

import pytest
from report_results import snapshots

from normscope.report.serving import HOST, Live, server


@pytest.fixture
def running(tmp_path):
    path = tmp_path / "run.jsonl"
    snapshots(path, steps=1)
    with server(Live([path], "normscope report --serve"), 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield path, f"http://{HOST}:{found.server_port}"
        found.shutdown()
        thread.join()


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_a_row_that_lands_is_the_next_state(running):
    path, address = running
    assert "connect-src &#x27;self&#x27;" in get(f"{address}/")
    before = json.loads(get(f"{address}/state"))
    assert before == json.loads(get(f"{address}/state"))
    assert f'data-live="{before["version"]}"' in get(f"{address}/")
    snapshots(path, steps=1, first=77)
    assert json.loads(get(f"{address}/state")) != before
    assert '"x":[0,77]' in get(f"{address}/body").replace(".0", "")


def test_a_file_caught_in_a_write_keeps_the_state_before(running):
    path, address = running
    before = get(f"{address}/body")
    path.write_bytes(path.read_bytes()[:10])
    assert get(f"{address}/body") == before


def test_only_its_own_address_is_answered(running):
    _, address = running
    for path, host, status in (
        ("/", "evil.example", 403),
        ("/../etc/passwd", None, 404),
        ("/state", "evil.example", 403),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(address + path, **({"Host": host} if host else {}))
        assert refused.value.code == status
        refused.value.close()


def test_a_taken_port_says_so(running):
    path, address = running
    port = int(address.rpartition(":")[2])
    with pytest.raises(ValueError, match=rf"Port {port} on 127.0.0.1 cannot be used: .*--port 0"):
        server(Live([path], ""), port)


def test_a_run_without_a_snapshot_yet_is_waited_for(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("")
    live = Live([path], "")
    assert "Nothing yet." in live.page()
    snapshots(path, steps=1)
    assert "Nothing yet." not in live.body()
