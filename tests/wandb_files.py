"""What a Weights & Biases run left on disk."""

import time


def finished(folder):
    """The records of the run in `folder`; its service goes on writing for a moment after `finish`."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(200):
        records = list(_wandb_records(path))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise AssertionError("wandb did not finish its file within 20 s")


def _wandb_records(path):
    """A .wandb file is a LevelDB log (blocks of 32 KiB, pieces of checksum, length and type) of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""
